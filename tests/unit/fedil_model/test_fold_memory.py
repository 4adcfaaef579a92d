from typing import Any

import pytest
import torch
from torch import Tensor

from fedil_model.methods.fedil import aggregation
from fedil_model.methods.fedil.aggregation import IncrementalFold
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import Verdict
from fedil_model.training.exact_sum import BLOCK
from fedil_model.training.flat_model import Weights

SIZE = 4 * BLOCK
NOTHING = torch.zeros(0)


def new_fold(size: int, num_decayed: int, **knobs: Any) -> IncrementalFold:
    generator = torch.Generator().manual_seed(0)
    theta, step = (torch.randn(size, generator=generator) * scale for scale in (0.1, 0.001))
    settings = FedILSettings(**knobs)
    return IncrementalFold(
        Weights(theta, NOTHING), Weights(theta + step, NOTHING), settings, num_decayed, 0.99
    )


@pytest.mark.parametrize(("kept", "models"), [(4 * SIZE, 4), (4 * SIZE - 1, 2)])
def test_the_fold_holds_two_models_and_some_scratch_and_of_small_ones_two_more(
    kept: int, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "KEPT_BYTES", kept)
    fold = new_fold(SIZE, SIZE)
    lent = {t.untyped_storage().data_ptr() for t in (fold.gauge.global_, fold.gauge._server)}
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(fold)}
    own = sum(size for place, size in held.items() if place not in lent)
    assert models * 4 * SIZE <= own <= models * 4 * SIZE + 24 * BLOCK
    fold.add(Weights(torch.full((SIZE,), 1e-3), NOTHING), 0.99)
    fold.drop_sums()
    left = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(fold)}
    assert sum(size for place, size in left.items() if place not in lent) <= own - 2 * 4 * SIZE


@pytest.mark.parametrize("num_decayed", [0, 1000, BLOCK, BLOCK + 1, 2 * BLOCK + 333])
@pytest.mark.parametrize("on_reject", ["drop", "project"])
def test_g0_that_is_not_kept_gives_the_same_verdicts(
    num_decayed: int, on_reject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * BLOCK + 333
    generator = torch.Generator().manual_seed(1)
    updates = [torch.randn(size, generator=generator) * 1e-3 for _ in range(4)]

    def folded() -> tuple[list[Verdict], Tensor, float]:
        fold = new_fold(size, num_decayed, on_reject=on_reject)
        verdicts = [fold.add(Weights(update, NOTHING), 0.9999) for update in updates]
        # One that goes the server's way, so that somebody counts; and its opposite.
        step = fold.gauge._server - fold.gauge.global_
        verdicts += [fold.add(Weights(sign * step, NOTHING), 0.9999) for sign in (1.0, -1.0)]
        mean = fold.mean()
        assert mean is not None
        return verdicts, mean.params, fold.gauge.reference_norm

    kept = folded()
    monkeypatch.setattr(aggregation, "KEPT_BYTES", 0)
    computed = folded()
    # It lies elsewhere, where products may have other last bits.
    assert [verdict.outcome for verdict in kept[0]] == [verdict.outcome for verdict in computed[0]]
    cosines = [[verdict.values.get("cosine") for verdict in side[0]] for side in (kept, computed)]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    if on_reject == "drop":
        assert torch.equal(kept[1], computed[1])
    else:
        assert torch.allclose(kept[1], computed[1], rtol=1e-5, atol=1e-9)
    assert kept[2] == pytest.approx(computed[2], rel=1e-6)
    assert len({verdict.outcome for verdict in kept[0]}) == 2


def tensors_in(thing: Any) -> list[Tensor]:
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, (list, tuple)):
        return [t for item in thing for t in tensors_in(item)]
    if type(thing).__module__.startswith("fedil_model.") and not isinstance(thing, FedILSettings):
        return [t for value in vars(thing).values() for t in tensors_in(value)]
    return []
