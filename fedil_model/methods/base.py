"""Building blocks that methods share: the network, seeds, training on labelled samples, static batch norm."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import NumericError
from fedil_model.methods.interface import MethodContext, State, Tensors
from fedil_model.networks import build_network
from fedil_model.networks.normalisation import refresh_statistics
from fedil_model.seeding import derive_seed
from fedil_model.training.flat_model import FlatModel, Weights, all_finite
from fedil_model.training.precision import seeded
from fedil_model.training.supervised import Supervised, train_supervised


class MethodBase:
    """A method with one kind of network, which starts released: it holds no weights until some are loaded."""

    def __init__(self, context: MethodContext) -> None:
        self.device = context.device
        self.micro_batch: int | None = None
        self.check_stop: Callable[[], None] = lambda: None
        self._context, self._learning, self._views = context, context.learning, context.views
        self._student = self._network()
        self._student.release()

    def _network(self) -> FlatModel:
        """With the weights that a run begins with."""
        context, seed = self._context, self._seed("network")
        module = build_network(context.learning.network, context.input_shape, context.num_classes, seed)
        return FlatModel(module, self.device)

    def _seed(self, *names: int | str) -> int:
        return derive_seed(self._learning.seed, *names)

    def _pretrain(self, labelled: Samples) -> Weights:
        """The initial weights after server.pretrain_epochs on the labelled samples."""
        settings = self._learning.server
        self._student.load(self._network().take_weights())
        if settings.pretrain_epochs:
            lr, strong_weight = settings.pretrain_lr or settings.lr, settings.pretrain_strong_weight
            self._train_supervised(
                labelled, settings.pretrain_epochs, lr, strong_weight, self._seed("pretrain")
            )
        self._refresh(labelled)
        return self._student.take_weights()

    def _train_supervised(
        self, labelled: Samples, epochs: int, lr: float, strong_weight: float, seed: int
    ) -> Supervised:
        with seeded(seed, self.device):
            return train_supervised(
                self._student,
                labelled,
                self._views,
                self._learning.server,
                epochs=epochs,
                lr=lr,
                strong_weight=strong_weight,
                generator=torch.Generator().manual_seed(seed),
                precision=self._learning.autocast,
                check_stop=self.check_stop,
            )

    def _refresh(self, labelled: Samples) -> None:
        """Static batch norm: statistics of the student's own weights on the labelled samples."""
        if self._learning.network.norm == "sbn":
            refresh_statistics(
                self._student.module, (self._views.plain(part) for part in torch.split(labelled.inputs, 500))
            )

    def _refreshed(self, weights: Weights, labelled: Samples) -> Weights:
        """With static batch norm, an average of weights needs statistics of its own."""
        if self._learning.network.norm != "sbn":
            return weights
        self._student.load_view(weights.to(self.device))
        self._refresh(labelled)
        return Weights(weights.params, self._student.take_weights().buffers)

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:  # noqa: ARG002
        return ()

    def extra(self, state: State, name: str) -> Tensors:  # noqa: ARG002
        raise KeyError(name)


def make_view(
    view: Callable[[Tensor, torch.Generator], Tensor], raw: Tensor, generator: torch.Generator
) -> Tensor:
    """A user's views need not accept empty batches."""
    return view(raw, generator) if len(raw) else raw


def check_finite(client: int, params: Tensor, losses: Sequence[float]) -> None:
    if not all_finite(params) or not all(map(_is_finite, losses)):
        raise NumericError(
            f"training of client {client} diverged: begin anew with a lower client.lr or client.clip_norm"
        )


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")
