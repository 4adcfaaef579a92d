"""The least that a method can do: one model down, the same plus a constant up, the mean of what came back.

So what is left of a round is the deployment. A method from outside the package: recipes and workers name it as
`module:callable`.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.methods.interface import (
    ACCEPTED,
    INVALID,
    Activation,
    Answer,
    ClientResult,
    Display,
    Fold,
    Folded,
    MethodContext,
    MethodSpec,
    Model,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
    Verdict,
)
from fedil_model.networks import build_network
from fedil_model.settings import MethodSettings
from fedil_model.training.exact_sum import BLOCK, ExactSum
from fedil_model.training.flat_model import FlatModel
from server_worker.run.recipe import Recipe, make_recipe

CONSTANT = 0.25
DATASET, METHOD = f"{__name__}:samples", f"{__name__}:spec"
PLUGINS = ("--plugin", DATASET, "--plugin", METHOD)
_SHAPE = (1, 2, 2)


class EchoSettings(MethodSettings):
    parameters: int = 1
    fold: str = "mean"


def spec() -> MethodSpec:
    return MethodSpec(
        title="Echo",
        reference="",
        settings=EchoSettings,
        make=Echo,
        display=Display(models=(Model("global", "echo", "A network that is never trained."),)),
        profiles={"echo": {}},
    )


def echo_recipe(
    name: str, *, rounds: int, clients: int, parameters: int, fold: str = "mean", wire: str = "fp32"
) -> Recipe:
    """Every client is asked in every round. The network is only there to be evaluated, once, at the end."""
    return make_recipe(
        {
            "name": name,
            "rounds": rounds,
            "evaluate_every": rounds,
            "baseline_epochs": 0,
            "data": {"name": DATASET},
            "split": {"partition": "elsewhere", "clients": clients},
            "network": {"name": "mlp", "width": 1, "norm": "none"},
            "method": {"name": METHOD, "parameters": parameters, "fold": fold},
            "federation": {"clients_per_round": clients, "deadline_seconds": 600.0, "wire": wire},
        }
    )


def samples() -> Dataset:
    def load() -> Samples:
        return Samples(torch.zeros(400, *_SHAPE, dtype=torch.uint8), torch.arange(400) % 2)

    return Dataset(("a", "b"), _SHAPE, _Unchanged(), load, load)


class _Unchanged:
    def plain(self, raw: Tensor) -> Tensor:
        return raw.float()

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self.plain(raw)

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self.plain(raw)


class Echo:
    def __init__(self, context: MethodContext) -> None:
        settings = context.learning.method
        assert isinstance(settings, EchoSettings)
        self.device = context.device
        self.micro_batch: int | None = None
        self.check_stop: Callable[[], None] = lambda: None
        self.on_epoch: Callable[[int, int], None] = lambda done, total: None
        self._num_parameters, self._make_fold = settings.parameters, _FOLDS[settings.fold]
        network = build_network(context.learning.network, context.input_shape, context.num_classes, seed=0)
        self._evaluated = FlatModel(network, context.device).weights()

    def initial_state(self, labelled: Samples) -> State:
        """Random, so that a part which arrives in another's place is noticed."""
        generator = torch.Generator().manual_seed(0)
        return {"params": torch.empty(self._num_parameters).uniform_(generator=generator)}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        return ServerStep(state, {"params": state["params"]})

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:
        return ()

    def extra(self, state: State, name: str) -> Tensors:
        raise KeyError(name)

    def open_fold(
        self,
        state: State,
        bases: Mapping[int, Tensors],
        version: int,
        labelled: Samples,
    ) -> Fold:
        return self._make_fold(state["params"])

    def client_step(self, activation: Activation) -> ClientResult:
        return ClientResult(
            update={"params": activation.broadcast["params"] + CONSTANT},
            state={"round": np.array([activation.round_number])},
            num_steps=1,
            metrics={},
        )

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:
        return RoundEnd(state, {"global": self._evaluated})


class MeanFold:
    """As the product sums: exactly, in any order."""

    def __init__(self, start: Tensor) -> None:
        self._sum = ExactSum(len(start), start.device)
        self._num_added = 0

    def add(self, answer: Answer) -> Verdict:
        params = answer.update["params"]
        self._sum.add(params, float(torch.linalg.vector_norm(params, float("inf"))))
        self._num_added += 1
        return Verdict(ACCEPTED, counts=True)

    def close(self) -> Folded:
        return Folded({"params": self._sum.mean(self._num_added)}, delta_norm=1.0, effort=1.0)


class CheckFold:
    """Compares every number with what it should be, and keeps none: for models that memory holds only a few times."""

    def __init__(self, start: Tensor) -> None:
        self._start = start

    def add(self, answer: Answer) -> Verdict:
        blocks = zip(
            torch.split(self._start, BLOCK), torch.split(answer.update["params"], BLOCK), strict=True
        )
        if all(torch.equal(before + CONSTANT, after) for before, after in blocks):
            return Verdict(ACCEPTED, counts=True)
        return Verdict(INVALID, "not what was sent, plus the constant")

    def close(self) -> Folded:
        return Folded({"params": self._start}, delta_norm=1.0, effort=1.0)


_FOLDS: dict[str, Callable[[Tensor], Fold]] = {"mean": MeanFold, "check": CheckFold}
