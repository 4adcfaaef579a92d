"""A method from outside the package, named in a recipe as `tests.contract.own_method:spec`. No line elsewhere knows it.

It uses everything that the contract offers: server state that is not broadcast, entries that only some clients receive,
a fold that keeps updates and knows their clients, client state of a whole network, features, a model that is evaluated
by a linear probe, and series of every source.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.base import MethodBase
from fedil_model.methods.interface import (
    ACCEPTED,
    Activation,
    Answer,
    Arrays,
    Chart,
    ClientResult,
    ClientValue,
    Display,
    Folded,
    MethodSpec,
    Model,
    Outcome,
    RoundEnd,
    Series,
    ServerStep,
    State,
    StateView,
    Tensors,
    Verdict,
)
from fedil_model.networks.interface import features_of
from fedil_model.settings import MethodSettings
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import FlatSGD
from fedil_model.training.precision import seeded

LEFT_OUT = "left_out"


class OwnSettings(MethodSettings):
    most_kept: int = 2
    """Updates of a round that count: of the clients with the lowest numbers"""


def spec() -> MethodSpec:
    return MethodSpec(
        title="Own",
        reference="",
        settings=OwnSettings,
        make=Own,
        display=Display(
            models=(
                Model("global", "mean", "Mean of the clients' networks."),
                Model("probed", "probe", "The same with a new head.", fit="linear_probe"),
            ),
            charts=(
                Chart(
                    "Everything",
                    "One series of each source.",
                    (
                        Series("loss_server", "server", "Loss on labelled samples."),
                        Series("spread", "spread", "Largest distance from the mean.", unit="norm"),
                        Series("distance", "distance", "Distance of views in features.", "client_mean"),
                        Series("seen", "seen", "Samples seen.", "client_total", unit="samples"),
                        Series("newly_seen", "new", "Samples seen first.", "client_gain", of="seen"),
                        Series("right", "right", "Right guesses.", "label_set", of="guesses", unit="share"),
                    ),
                ),
            ),
            client_values=(
                ClientValue("length", "length", "Norm of the update.", 0.0, 10.0, buckets=(0.1, 1.0, 10.0)),
            ),
            outcomes=(Outcome(LEFT_OUT, "left out", "Enough others had counted."),),
        ),
        profiles={"own": {"network": {"norm": "gn"}, "server": {"pretrain_epochs": 5}}},
        view_state=view_state,
        extras_per_client=1,
        buffered=False,
        keeps_updates=True,
    )


def view_state(arrays: Arrays) -> StateView:
    return StateView({"samples": len(arrays["guesses"])}, label_sets={"guesses": arrays["guesses"]})


class Own(MethodBase):
    """Clients pull the features of two weak views together, from the mean of the global network and their own."""

    def initial_state(self, labelled: Samples) -> State:
        rounds_so_far = torch.zeros((), dtype=torch.int64)
        return self._pretrain(labelled).tensors("global") | {"rounds_so_far": rounds_so_far}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        assert int(state["rounds_so_far"]) == round_number - 1
        self._student.load(Weights.named(state, "global"))
        trained, done = self._train_on_labels(labelled, round_number)
        sent = trained.tensors("sent")
        counted = {**state, "rounds_so_far": state["rounds_so_far"] + 1}
        return ServerStep(counted, sent, {"loss_server": done.loss})

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:
        return ("shift",) if client % 2 else ()

    def extra(self, state: State, name: str) -> Tensors:
        assert name == "shift"
        return {"by": torch.full((1,), 1e-3) * state["rounds_so_far"]}

    def client_step(self, activation: Activation) -> ClientResult:
        sent = Weights.named(activation.broadcast, "sent")
        start = sent.params.clone()
        if activation.state is not None:
            start = (start + torch.from_numpy(activation.state["params"].copy())) / 2
        for extra in activation.extras.values():
            start = start + extra["by"]
        assert set(activation.extras) == ({"shift"} if activation.client % 2 else set())
        self._student.load(Weights(start, sent.buffers))
        seed = self._seed("client", activation.round_number, activation.client)
        generator = torch.Generator().manual_seed(seed)
        embed, _ = features_of(self._student.module)
        optimiser = FlatSGD(self._student, self._learning.client, self._learning.client.lr)
        distances = []
        with seeded(seed, self.device):
            for batch in shuffled_batches(
                len(activation.inputs), self._learning.client.batch_size, generator, self.device
            ):
                raw = activation.inputs[batch]
                views = [embed(self._views.weak(raw, generator)) for _ in range(2)]
                optimiser.zero_grad()
                distance = F.mse_loss(views[0], views[1])
                distance.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                distances.append(float(distance.detach()))
        with torch.no_grad():
            guesses = self._student.module(self._views.plain(activation.inputs)).argmax(1)
        trained = self._student.take_weights()
        return ClientResult(
            {"delta": trained.params - sent.params},
            {"params": trained.params.numpy(), "guesses": guesses.numpy()},
            optimiser.num_steps,
            {"distance": sum(distances) / len(distances), "seen": float(len(activation.inputs))},
        )

    def open_fold(
        self,
        state: State,
        bases: Mapping[int, Tensors],
        version: int,
        labelled: Samples,
    ) -> "KeepingFold":
        settings = self._learning.method
        assert isinstance(settings, OwnSettings)
        return KeepingFold(state, bases[version], settings.most_kept)

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:
        shipped = Weights.named(state, "global")
        return RoundEnd(state, {"global": shipped, "probed": shipped})


class KeepingFold:
    """Keeps the updates until it closes: which of them count depends on all of them."""

    def __init__(self, state: State, base: Tensors, most_kept: int) -> None:
        self._state, self._base, self._most_kept = state, base, most_kept
        self._kept: dict[int, torch.Tensor] = {}

    def add(self, answer: Answer) -> Verdict:
        assert answer.num_samples == answer.metrics["seen"]
        delta = answer.update["delta"].clone()
        self._kept[answer.client] = delta
        length = {"length": float(torch.linalg.vector_norm(delta))}
        return Verdict(ACCEPTED, values=length, counts=True)

    def close(self) -> Folded:
        chosen = [self._kept[client] for client in sorted(self._kept)][: self._most_kept]
        mean = torch.stack(chosen).mean(0)
        spread = max(float(torch.linalg.vector_norm(delta - mean)) for delta in self._kept.values())
        moved = Weights(self._base["sent.params"] + mean, self._base["sent.buffers"])
        norm = float(torch.linalg.vector_norm(mean))
        return Folded({**self._state, **moved.tensors("global")}, norm, 1.0, {"spread": spread})
