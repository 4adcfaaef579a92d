"""The least that a method can do: one model down, the same plus a constant up, the mean of what came back.

So what is left of a round is the deployment. `data.options` say how large the model is, and what becomes of updates.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Dataset, Samples, Views
from fedil_model.methods import METHODS
from fedil_model.methods.fedil.aggregation import Verdict
from fedil_model.methods.interface import ClientResult, Fold, Folded, ServerStep, State
from fedil_model.networks import build_network
from fedil_model.settings import Learning
from fedil_model.training.exact_sum import BLOCK, ExactSum
from fedil_model.training.flat_model import FlatModel, Weights
from server_worker.run.recipe import Recipe, make_recipe

CONSTANT = 0.25
DATASET = f"{__name__}:samples"
_NAME = "global.params"
_SHAPE = (1, 2, 2)


def echo_recipe(name: str, *, rounds: int, clients: int, parameters: int, fold: str = "mean") -> Recipe:
    """Every client is asked in every round. The network is only there to be evaluated, once, at the end."""
    return make_recipe(
        {
            "name": name,
            "rounds": rounds,
            "evaluate_every": rounds,
            "baseline_epochs": 0,
            "data": {"name": DATASET, "options": {"parameters": parameters, "fold": fold}},
            "split": {"partition": "elsewhere", "clients": clients},
            "network": {"name": "mlp", "width": 1},
            "server": {"pretrain_epochs": 0},
            "federation": {"clients_per_round": clients, "deadline_seconds": 600.0},
        }
    )


def install() -> None:
    """From here on this process's recipes name the echo when they name their method."""
    METHODS["fedil"] = Echo


def samples(parameters: int, fold: str) -> Dataset:
    def load() -> Samples:
        return Samples(torch.zeros(400, *_SHAPE, dtype=torch.uint8), torch.arange(400) % 2)

    return Dataset(("a", "b"), _SHAPE, _AsTheyAre(), load, load)


class _AsTheyAre:
    def plain(self, raw: Tensor) -> Tensor:
        return raw.float()

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self.plain(raw)

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self.plain(raw)


class Echo:
    def __init__(
        self,
        learning: Learning,
        input_shape: tuple[int, ...],
        num_classes: int,
        views: Views,
        device: torch.device,
    ) -> None:
        self.device = device
        self.micro_batch: int | None = None
        self.check_stop: Callable[[], None] = lambda: None
        self._num_parameters: int = learning.data.options["parameters"]
        self._make_fold = _FOLDS[learning.data.options["fold"]]
        network = build_network(learning.network, input_shape, num_classes, seed=0)
        self._evaluated = FlatModel(network, device).weights()

    def initial_state(self, labelled: Samples) -> State:
        """Random, so that a part which arrives in another's place is noticed."""
        generator = torch.Generator().manual_seed(0)
        return _state(torch.empty(self._num_parameters).uniform_(generator=generator))

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        return ServerStep({"params": state[_NAME]}, {})

    def open_fold(self, state: State, bases: Mapping[int, Mapping[str, Tensor]], version: int) -> Fold:
        return self._make_fold(state[_NAME])

    def client_step(
        self,
        broadcast: Mapping[str, Tensor],
        inputs: Tensor,
        ledger: Mapping[str, np.ndarray] | None,
        round_number: int,
        client: int,
    ) -> ClientResult:
        return ClientResult(
            update={"params": broadcast["params"] + CONSTANT},
            ledger={"round": np.array([round_number])},
            num_steps=1,
            metrics={"pseudo_labels": 0.0, "credible": 0.0},
        )

    def models(self, state: State, broadcast: Mapping[str, Tensor], labelled: Samples) -> dict[str, Weights]:
        return {"global": self._evaluated}


class MeanFold:
    """As the product sums: exactly, whatever the order."""

    def __init__(self, start: Tensor) -> None:
        self._sum = ExactSum(len(start), start.device)
        self._num_added = 0

    def add(
        self, update: Mapping[str, Tensor], num_steps: int, base_version: int, weight: float = 1.0
    ) -> Verdict:
        self._sum.add(update["params"], float(torch.linalg.vector_norm(update["params"], float("inf"))))
        self._num_added += 1
        return Verdict("accepted")

    def close(self) -> Folded:
        return _folded(self._sum.mean(self._num_added))


class CheckFold:
    """Compares every number with what it should be, and keeps none: for models that must not be held often."""

    def __init__(self, start: Tensor) -> None:
        self._start = start

    def add(
        self, update: Mapping[str, Tensor], num_steps: int, base_version: int, weight: float = 1.0
    ) -> Verdict:
        blocks = zip(torch.split(self._start, BLOCK), torch.split(update["params"], BLOCK), strict=True)
        if all(torch.equal(before + CONSTANT, after) for before, after in blocks):
            return Verdict("accepted")
        return Verdict("invalid", detail="not what was sent, plus the constant")

    def close(self) -> Folded:
        return _folded(self._start)


_FOLDS: dict[str, Callable[[Tensor], Fold]] = {"mean": MeanFold, "check": CheckFold}


def _folded(params: Tensor) -> Folded:
    return Folded(_state(params), delta_norm=1.0, reference_norm=1.0, effort=1.0)


def _state(params: Tensor) -> State:
    return {_NAME: params, "global.buffers": params.new_zeros(0)}
