"""Building blocks that methods share: the network, seeds, training at the server and at a client, static batch norm."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import NumericError, StateError
from fedil_model.methods.averaging import AveragingFold, norm_of
from fedil_model.methods.interface import Activation, Bases, MethodContext, State, Tensors
from fedil_model.networks import build_network
from fedil_model.networks.heads import WithHeads
from fedil_model.networks.normalisation import refresh_statistics
from fedil_model.seeding import derive_seed
from fedil_model.settings import Learning, MethodSettings
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.flat_model import FlatModel, Weights, all_finite
from fedil_model.training.optimiser import FlatSGD, learning_rate
from fedil_model.training.precision import autocast, seeded
from fedil_model.training.supervised import Supervised, train_supervised

_F = TypeVar("_F", bound=AveragingFold)


class MethodBase:
    """A method with one kind of network, which starts released: it holds no weights until some are loaded."""

    def __init__(self, context: MethodContext) -> None:
        self.device = context.device
        self.micro_batch: int | None = None
        self.check_stop: Callable[[], None] = lambda: None
        self.on_epoch: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005
        self._context, self._learning, self._views = context, context.learning, context.views
        self._student = self._network()
        self._student.release()

    def _network(self) -> FlatModel:
        """With the weights that a run begins with."""
        return FlatModel(self._module(), self.device)

    def _begin_with(self) -> Weights:
        """As built, or as given to the run. Heads, which never ship, are as built."""
        module = self._module()
        if self._context.initial is not None:
            network = module.network if isinstance(module, WithHeads) else module
            network.load_state_dict(dict(self._context.initial))
        return FlatModel(module, self.device).take_weights()

    def _module(self) -> nn.Module:
        context, seed = self._context, self._seed("network")
        return build_network(context.learning.network, context.input_shape, context.num_classes, seed)

    def _seed(self, *names: int | str) -> int:
        return derive_seed(self._learning.seed, *names)

    def _pretrain(self, labelled: Samples) -> Weights:
        """The initial weights after server.pretrain_epochs on the labelled samples."""
        server = self._learning.server
        self._student.load(self._begin_with())
        if server.pretrain_epochs:
            train_supervised(
                self._student,
                labelled,
                self._views,
                self._learning,
                seed=self._seed("pretrain"),
                epochs=server.pretrain_epochs,
                lr=server.pretrain_lr or server.lr,
                strong_weight=server.pretrain_strong_weight,
                decay=server.pretrain_schedule == "cosine",
                check_stop=self.check_stop,
                on_epoch=self.on_epoch,
            )
        self._refresh(labelled)
        return self._student.take_weights()

    def _train_on_labels(
        self,
        labelled: Samples,
        round_number: int,
        learning: Learning | None = None,
        *,
        ceiling: float = 1.0,
    ) -> tuple[Weights, Supervised]:
        """Trains what the student holds on the labelled samples, as a round does, and takes it. `ceiling` as in
        train_supervised"""
        learning = learning or self._learning
        done = train_supervised(
            self._student,
            labelled,
            self._views,
            learning,
            seed=self._seed("server", round_number),
            epochs=learning.server.epochs,
            lr=learning_rate(learning.server, round_number, learning.rounds),
            strong_weight=learning.server.strong_weight,
            ceiling=ceiling,
            check_stop=self.check_stop,
        )
        self._refresh(labelled)
        return self._student.take_weights(), done

    def _refresh(self, labelled: Samples) -> None:
        """Static batch norm: statistics of the student's own weights on the labelled samples."""
        if self._learning.network.norm == "sbn":
            refresh_statistics(self._student.module, labelled.inputs, self._views.plain)

    def _refreshed(self, weights: Weights, labelled: Samples) -> Weights:
        """With static batch norm, an average of weights needs statistics of its own."""
        if self._learning.network.norm != "sbn":
            return weights
        self._student.load_view(weights.to(self.device))
        self._refresh(labelled)
        return Weights(weights.params, self._student.take_weights().buffers)

    @contextmanager
    def _client_training(
        self, activation: Activation, start: Weights
    ) -> Iterator[tuple[FlatSGD, torch.Generator]]:
        """The student with `start`, in training mode; an optimiser at the round's rate, and the task's random draws."""
        client, round_number = activation.client, activation.round_number
        if len(activation.inputs) == 0:
            raise StateError(f"client {client} has no samples")
        self._student.load(start)
        self._student.module.train()
        seed = self._seed("client", round_number, client)
        lr = learning_rate(self._learning.client, round_number, self._learning.rounds)
        with seeded(seed, self.device):
            optimiser = FlatSGD(self._student, self._learning.client, lr)
            yield optimiser, torch.Generator().manual_seed(seed)

    def _client_batches(self, num_samples: int, generator: torch.Generator) -> Iterator[Tensor]:
        settings = self._learning.client
        for _ in range(settings.epochs):
            yield from shuffled_batches(num_samples, settings.batch_size, generator, self.device)

    @cached_property
    def _teacher(self) -> FlatModel:
        """A second network, as released as the first: no gradient goes through it."""
        teacher = self._network()
        teacher.release()
        return teacher

    def _logits(self, inputs: Tensor, model: FlatModel | None = None) -> Tensor:
        """Of the student or another model, in the mode that it is in."""
        with autocast(self.device, self._learning.autocast):
            logits_BC: Tensor = (model or self._student).module(inputs).float()
        return logits_BC

    def _logits_of_any(self, inputs: Tensor) -> Tensor:
        """The same also for a single sample, which counts twice: batch norm trains on two at least."""
        if len(inputs) > 1:
            return self._logits(inputs)
        return self._logits(torch.cat([inputs, inputs]))[:1]

    def _take_delta(
        self, activation: Activation, received: Weights, losses: Sequence[float], *others: Weights
    ) -> Weights:
        """How the trained weights differ from `received`. Raises NumericError if training diverged. `others`: more
        models that the client was sent"""
        trained = self._student.take_weights()
        buffers = [weights.buffers for weights in (received, *others)]
        check_finite(activation.client, trained.params, losses, buffers, self._variances())
        return Weights(trained.params.sub_(received.params), trained.buffers.sub_(received.buffers))

    def _variances(self) -> Tensor:
        """Marks the buffer values that are running variances."""
        buffers = [(n, b) for n, b in self._student.module.named_buffers() if b.is_floating_point()]
        marks = [torch.full((buffer.numel(),), name.endswith("running_var")) for name, buffer in buffers]
        return torch.cat([torch.zeros(0, dtype=torch.bool), *marks])

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:  # noqa: ARG002
        return ()

    def extra(self, state: State, name: str) -> Tensors:  # noqa: ARG002
        raise KeyError(name)


class AveragingMethod(MethodBase):
    """A method with one averaged model, which the server may train on its labels. A subclass declares the type of its
    settings, and the name of the averaged weights in the state and in broadcasts."""

    _settings: MethodSettings
    _averaged = "global"

    def __init__(self, context: MethodContext) -> None:
        self._settings = context.learning.method
        super().__init__(context)

    def initial_state(self, labelled: Samples) -> State:
        return self._pretrain(labelled).tensors(self._averaged)

    def _step_on_labels(
        self, state: State, labelled: Samples, round_number: int, *, ceiling: float = 1.0
    ) -> tuple[Weights, Weights, dict[str, float]]:
        """The averaged weights, what a round's training on the labelled samples makes of them, and its metrics"""
        before = Weights.named(state, self._averaged).to(self.device)
        self._student.load(before)
        trained, done = self._train_on_labels(labelled, round_number, ceiling=ceiling)
        metrics = {"loss_server": done.loss, "server_norm": norm_of(trained.params - before.params)}
        return before, trained, metrics

    def _fold(self, kind: type[_F], state: State, bases: Bases, version: int, **options: Any) -> _F:
        """`options` as `kind` takes them"""
        options |= {"variances_Q": self._variances(), "name": self._averaged}
        return kind(self._learning, state, bases, version, **options)


def split_batch(size: int | None, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of at most `size` rows of columns that have the same number of rows; None: the whole."""
    count = 1 if size is None else max(-(-len(columns[0]) // size), 1)
    return zip(*(column.tensor_split(count) for column in columns), strict=True)


def check_finite(
    client: int, params: Tensor, losses: Sequence[float], received: Iterable[Tensor], variances_Q: Tensor
) -> None:
    """Raises NumericError if training diverged. `received`: buffers of the models that the client was sent, in which
    `variances_Q` marks running variances."""
    if all_finite(params) and all(map(math.isfinite, losses)):
        return
    for buffers_Q in (buffers.cpu() for buffers in received):
        if not torch.isfinite(buffers_Q).all() or bool((buffers_Q[variances_Q] < 0).any()):
            raise NumericError(
                f"training of client {client} diverged: a running statistic of the model that it received is a "
                "negative variance or not finite; begin anew with network.norm=gn, which has none"
            )
    raise NumericError(
        f"training of client {client} diverged: begin anew with a lower client.lr or client.clip_norm"
    )
