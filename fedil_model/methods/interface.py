"""The contract between a federated method and the engine that deploys it.

The engine knows tensors, clients, versions and bytes. It knows no loss, no label and no cosine. A method brings a
`MethodSpec`: its settings and profiles, what it shows (`Display`), and a function that makes a `Method`, whose steps
are pure: state in, state out. Everything that is sent or kept is a mapping of named tensors.

Adding a method: one module that returns a `MethodSpec`, and one line in `METHODS`; or no line at all, when a recipe
names it as `module:callable`. The contract suite is tests/contract/test_method_contract.py.

This module imports neither torch nor numpy, so that a recipe is validated before they are loaded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedil_model.settings import Learning, MethodSettings

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from fedil_model.data.datasets.interface import Samples, Views
    from fedil_model.training.flat_model import Weights

Tensors = Mapping[str, "Tensor"]
State = Tensors
"""What the server keeps between rounds. A checkpoint holds all of it; clients receive only what is broadcast."""
Bases = Mapping[int, Tensors]
"""The broadcasts that updates may have started from, by version"""
Arrays = Mapping[str, "np.ndarray"]
"""What a client keeps between its activations. The store holds it, with the promises of a ledger: one generation per
activation, the last two kept, committed before the update is sent."""

# ---- what the server does -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerStep:
    state: State
    broadcast: Tensors
    """What every client of the round receives; written to the model log once."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the round, by the name of a declared series"""


@dataclass(frozen=True)
class Answer:
    """One client's update, as the fold receives it."""

    client: int
    update: Tensors
    """Read-only, and valid during `Fold.add`: a fold that keeps an update copies it."""
    base_version: int
    """The version that the client started from"""
    num_samples: int
    num_steps: int
    metrics: Mapping[str, float]
    """What the client reported. It may be wrong or hostile: check it before arithmetic depends on it."""
    weight: float = 1.0
    """0 < weight ≤ 1: the share that staleness leaves of it; 1 in a synchronous round"""


@dataclass(frozen=True)
class Verdict:
    """What the fold decided about one update."""

    outcome: str
    """ACCEPTED, INVALID or an outcome that the method declares"""
    detail: str = ""
    """Why, in words for people; empty when it needs no explanation"""
    values: Mapping[str, float] = field(default_factory=dict)
    """By the name of a declared `ClientValue`"""
    counts: bool = False
    """The update is part of the new model."""


@dataclass(frozen=True)
class Folded:
    state: State
    delta_norm: float
    """‖Δθ‖ of the model that ships"""
    effort: float = 0.0
    """Learning rate × steps behind the increment, for the convergence monitor"""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Lines for people, such as "no update was accepted" """


class Fold(Protocol):
    """Makes the next version from updates. They come in any order."""

    def add(self, answer: Answer) -> Verdict: ...

    def close(self) -> Folded: ...


@dataclass(frozen=True)
class RoundEnd:
    state: State
    models: "Mapping[str, Weights]"
    """Models to evaluate and export, by the name of a declared `Model`; "global" is the one that ships."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """More numbers of the round, by the name of a declared series"""
    delta_norm: float | None = None
    """‖Δθ‖ where this step moved the model that ships; None: the fold's"""


# ---- what a client does ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """One time that a client trains: what it received, its data, and what it has kept."""

    client: int
    round_number: int
    broadcast: Tensors
    inputs: "Tensor"
    """Its unlabelled samples as stored; `Views` turn them into what the network takes."""
    state: Arrays | None
    """What its last activation returned; None the first time"""
    extras: Mapping[str, Tensors] = field(default_factory=dict)
    """Entries that only some clients receive, by the names that `Method.extras_for` gave"""


@dataclass(frozen=True)
class ClientResult:
    update: Tensors
    state: Arrays
    num_steps: int
    metrics: Mapping[str, float]
    """By the name of a declared series. Others are dropped at the server."""


class Method(Protocol):
    device: "torch.device"
    micro_batch: int | None
    """A client trains at most this many samples at a time; None: the whole batch. For a device with too little memory:
    gradients add up to the batch's, the last bits differ, and with batch norm the statistics do."""
    check_stop: Callable[[], None]
    """The server's steps call it now and then; it raises when they are to stop. Nothing of that step is kept."""
    on_epoch: Callable[[int, int], None]
    """`initial_state` may call it after each epoch, with how many are done and how many there are."""

    def initial_state(self, labelled: "Samples") -> State: ...

    def server_step(self, state: State, labelled: "Samples", round_number: int) -> ServerStep: ...

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:
        """Names of entries that this client receives besides the broadcast. At most `MethodSpec.extras_per_client`."""

    def extra(self, state: State, name: str) -> Tensors:
        """The entry of that name. It is written to the model log once, however many clients receive it."""

    def client_step(self, activation: Activation) -> ClientResult: ...

    def open_fold(self, state: State, bases: Bases, version: int, labelled: "Samples") -> Fold:
        """`version` is the one of `bases` that moves; in a synchronous round it is the only one. `labelled`: for a fold
        that tries updates on labels."""

    def end_round(self, state: State, broadcast: Tensors, labelled: "Samples", round_number: int) -> RoundEnd:
        """After the fold: a last step of the server, if the method has one, and the models to evaluate."""


# ---- what a method shows --------------------------------------------------------------------------------------------

ACCEPTED, INVALID = "accepted", "invalid"


@dataclass(frozen=True)
class Series:
    """One number per round."""

    name: str
    """Its key in metrics and in history.jsonl"""
    title: str
    """A few words for legends and tables, such as "ξa pseudo-labels" """
    help: str
    """One sentence: what it is"""
    source: Literal["server", "client_mean", "client_total", "client_gain", "label_set"] = "server"
    """Where the number comes from.
    server: metrics of ServerStep, Folded or RoundEnd
    client_mean: mean of what the round's clients reported, if more than half of them did
    client_total: sum over all clients of the run of what each reported last
    client_gain: by how much `of`, a client_total, grew in this round
    label_set: share of right labels in the label set `of`, where the truth is known offline"""
    of: str = ""
    unit: Literal["", "share", "samples", "norm"] = ""
    column: str = ""
    """Heading of its column in the terminal; empty: no column"""
    metric: str = ""
    """Prometheus name; empty: fedil_<name>, of a client_gain, which is a counter, fedil_<name>_total"""
    metric_label: tuple[str, str] | None = None
    """(label, value), for series that share a Prometheus name"""

    @property
    def metric_name(self) -> str:
        return self.metric or f"fedil_{self.name}{'_total' if self.source == 'client_gain' else ''}"


@dataclass(frozen=True)
class Chart:
    """Series that are drawn together."""

    title: str
    help: str
    """How to read it, in one or two sentences"""
    series: tuple[Series, ...]
    log: bool = False


@dataclass(frozen=True)
class ClientValue:
    """One number per client and round, drawn as dots by round and exported as a histogram."""

    name: str
    title: str
    help: str
    low: float
    high: float
    """The range that is drawn"""
    threshold: float | None = None
    """A line across the drawing, such as the one below which updates are rejected"""
    threshold_if: str = ""
    """The method's setting without which the threshold is not in force, or whose number it is; empty: it always is as
    declared"""
    buckets: tuple[float, ...] = ()
    """Upper bounds of the Prometheus histogram fedil_update_<name>"""

    def threshold_of(self, settings: MethodSettings) -> float | None:
        """None where these settings do not apply it"""
        set_to = getattr(settings, self.threshold_if) if self.threshold_if else True
        if isinstance(set_to, bool):
            return self.threshold if set_to else None
        return float(set_to)


@dataclass(frozen=True)
class Outcome:
    """What may become of an update, besides accepted, invalid, refused, missing and stale, which the engine knows."""

    name: str
    title: str
    help: str


@dataclass(frozen=True)
class Model:
    """A model that is evaluated after a round. "global" comes first: it is the one that ships."""

    name: str
    title: str
    """A plain name, such as "global model" """
    help: str
    fit: Literal["", "linear_probe", "fine_tune"] = ""
    """What is done to it on the labelled samples before its predictions count: nothing, a new linear head on frozen
    features, or training of the whole network"""
    optional: bool = False
    """Only some settings make it"""
    symbol: str = ""
    """Its sign in the paper, such as "θ′", where it has one"""

    @property
    def label(self) -> str:
        """Such as "global model θ′" """
        return f"{self.title} {self.symbol}".strip()

    @property
    def short(self) -> str:
        """Where there is little room"""
        return self.symbol or self.title


@dataclass(frozen=True)
class Display:
    models: tuple[Model, ...]
    charts: tuple[Chart, ...] = ()
    client_values: tuple[ClientValue, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def series(self) -> tuple[Series, ...]:
        return tuple(series for chart in self.charts for series in chart.series)

    def metrics(self) -> Iterator[tuple[Series, str]]:
        """Series with the help text of their Prometheus metric: the chart's, where series share one."""
        for chart in self.charts:
            for series in chart.series:
                yield series, chart.help if series.metric_label else series.help


@dataclass(frozen=True)
class Table:
    """Counts by a key, printed with bars of the first count."""

    name: str
    headings: tuple[str, ...]
    """Of the key and of the counts"""
    rows: Sequence[tuple[int, ...]]
    note: str = ""


@dataclass(frozen=True)
class StateView:
    """What one client keeps, for people."""

    counts: Mapping[str, int]
    """Such as samples, pseudo_labels, credible"""
    tables: Callable[[], Sequence[Table]] = tuple
    """Called only to print them: the server reads counts and label sets in every round."""
    label_sets: "Mapping[str, np.ndarray]" = field(default_factory=dict)
    """Set → the label of each sample, −1 for samples outside the set"""


# ---- a method, described --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodContext:
    """What a method is made for."""

    learning: Learning
    input_shape: tuple[int, ...]
    num_classes: int
    views: "Views"
    device: "torch.device"
    initial: Tensors | None = None
    """At the server of a run that begins with given weights: those of the network, by the names of its state_dict.
    `initial_state` begins with them."""


@dataclass(frozen=True)
class MethodSpec:
    title: str
    """Such as "FedIL" """
    reference: str
    """The paper, as an address"""
    settings: type[MethodSettings]
    """Validates a recipe's [method] table"""
    make: Callable[[MethodContext], Method]
    display: Display
    profiles: Mapping[str, Mapping[str, Any]]
    """Recipe values by profile. A key written in a recipe wins. The first profile is the default."""
    view_state: Callable[[Arrays], StateView] | None = None
    """Reads a client's state for people; None: it keeps none, or none worth showing. Raises StateError."""
    extras_per_client: int = 0
    buffered: bool = True
    """Its fold accepts updates that started from older versions."""
    keeps_updates: bool = False
    """Its fold keeps every update of a round: server memory grows with the clients per round."""
    asks_clients: bool = True
    """False: the server trains alone. Nothing is broadcast, asked or awaited, whatever the recipe's federation says."""
    labels: Literal["split", "all"] = "split"
    """The server's labelled samples: those of the split, or all training samples, for a ceiling."""
