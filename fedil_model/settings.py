"""Everything that a task's result depends on, besides the data: validated, frozen, free of torch.

The [method] table is validated by the class that the method brings (see fedil_model/methods/__init__.py), and the
method's profile fills in what a recipe leaves out.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails

Codec = Literal["fp32", "fp16", "int8"]


class Settings(BaseModel):
    # Strict: `true` is not the number 1, and "1" is none. A whole number still is a float.
    # The text under a field is its description: `fedil recipes explain` and the reference page show it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, strict=True, use_attribute_docstrings=True
    )


class DataSettings(Settings):
    name: str = "digits"
    """A registered dataset, or `module:callable` of your own."""
    root: Path | None = Field(default=None, strict=False)
    """Folder of the dataset's files; the command line uses FEDIL_DATA when this is not set, or not there."""
    download: bool = False
    """Whether files that are missing may be fetched from where the dataset is published."""
    options: dict[str, Any] = {}
    """Keyword arguments of the dataset's own, as `options = { size = 16 }` for pictures in folders."""


class SplitSettings(Settings):
    labelled: PositiveInt | None = None
    """Number of labelled samples at the server; or give `labelled_fraction`."""
    labelled_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Share of the samples that are labelled, at the server (the paper's γ); or give `labelled`."""
    label_split: Literal["stratified", "random"] = "stratified"
    """How labelled samples are drawn: "stratified" has each class as often as among all samples, "random" leaves that
    to chance."""
    clients: PositiveInt = 100
    """Number of clients that the unlabelled samples are dealt out to."""
    partition: Literal["iid", "classes", "dirichlet", "batch_iid", "batch_noniid", "natural", "elsewhere"] = (
        "iid"
    )
    """How samples are dealt out: "iid" evenly, "classes" some classes to each client, "dirichlet" uneven shares of each
    class, "batch_iid" and "batch_noniid" as FedMatch's tasks, "natural" as the data say, such as by the column
    data.options.site of a table. With "elsewhere" nothing is dealt out: all samples here are labelled, the clients'
    data lie at their sites."""
    classes_share: float = Field(default=0.2, gt=0.0, le=1.0)
    """With `partition = "classes"`: the share of all classes that each client holds, exactly."""
    alpha: PositiveFloat = 0.5
    """With `partition = "dirichlet"`: how even the clients' shares of a class are; 0.1 is very skewed, 100 nearly
    even."""
    min_samples: PositiveInt = 10
    """With `partition = "dirichlet"`: no client gets fewer samples than this."""

    @model_validator(mode="after")
    def _one_way_to_say_how_many_labels(self) -> "SplitSettings":
        given = (self.labelled is not None) + (self.labelled_fraction is not None)
        if self.partition == "elsewhere":
            if given:
                raise ValueError(
                    'with partition = "elsewhere" all samples here are labelled: do not say how many'
                )
        elif given != 1:
            raise ValueError("give exactly one of `labelled` and `labelled_fraction`")
        return self


class NetworkSettings(Settings):
    name: str = "resnet9"
    """A registered network, or `module:callable` of your own."""
    width: PositiveInt = 64
    """Channels of the first layer, from which the others follow: twice the width has about four times the parameters
    and the computing time."""
    norm: Literal["none", "bn", "sbn", "gn", "auto"] = "bn"
    """Normalisation: batch norm ("bn"), batch norm with the statistics of the server's samples ("sbn"), group norm
    ("gn") or "none". "auto" takes batch norm for images of 16 pixels a side or more, group norm for the rest. Where
    clients hold few classes, take "sbn"."""
    options: dict[str, Any] = {}
    """Keyword arguments of the network's own."""


class OptimiserSettings(Settings):
    epochs: PositiveInt = 5
    """Passes over the samples in a round. More of them cost time, and move clients further from each other."""
    batch_size: PositiveInt = 50
    """Samples in a step of SGD."""
    lr: PositiveFloat = 0.03
    """Learning rate of SGD. Lower it if training diverges."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """"cosine" decays the learning rate over the run's rounds, not inside one task; a run with it cannot be given more
    rounds later."""
    lr_floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of `lr` at which the cosine ends."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Momentum of SGD, which begins anew with each task."""
    nesterov: bool = True
    """Whether the momentum is Nesterov's."""
    weight_decay: float = Field(default=5e-4, ge=0.0)
    """Pulls weights towards 0 in each step, by this times the learning rate."""
    clip_norm: float = Field(default=5.0, ge=0.0)
    """A gradient of a larger norm is scaled down to this; 0 switches it off."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "OptimiserSettings":
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs momentum > 0")
        return self


def _class_weights(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        raise ValueError('is "balanced", or a list of numbers above 0, one for each class') from None


class ServerSettings(OptimiserSettings):
    epochs: PositiveInt = 10
    """Passes over the labelled samples in a round."""
    pretrain_epochs: int = Field(default=0, ge=0)
    """Epochs on the labelled samples before round 1. Good pseudo-labels from the first round on need some."""
    pretrain_lr: PositiveFloat | None = None
    """Learning rate before round 1, where it should not be `lr`."""
    pretrain_schedule: Literal["constant", "cosine"] = "constant"
    """"cosine" decays the learning rate to 0 over the epochs before round 1."""
    pretrain_strong_weight: float = Field(default=0.0, ge=0.0)
    """Weight of an additional cross-entropy on the strong view of labelled samples, before round 1."""
    strong_weight: float = Field(default=0.0, ge=0.0)
    """Weight of an additional cross-entropy on the strong view of labelled samples, in the rounds."""
    class_weights: Annotated[
        Literal["balanced"] | list[PositiveFloat] | None, WrapValidator(_class_weights)
    ] = None
    """What a labelled sample of each class counts in the loss, in the order of the classes; "balanced": the rarer its
    class among the labels, the more. For classes that are rare, and must not be missed."""


class MethodSettings(Settings):
    """Base of the settings that a method brings."""

    name: str = "fedil"
    """A registered method, or `module:callable` of your own."""


class HostileSettings(Settings):
    """Clients that send wrong updates on purpose, to find out what a method does about them. For experiments."""

    share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the clients that send wrong updates on purpose, for experiments."""
    kind: Literal["flipped", "noise", "stale", "permuted"] = "flipped"
    """What they send: the update with the opposite sign ("flipped"), noise of its length ("noise"), their first update
    again and again ("stale"), or the trained model with its classes numbered one further ("permuted")."""


class Learning(Settings):
    """The part of a recipe that travels with every task. Made by fedil_model.methods.make_learning."""

    profile: str = ""
    """Which of the method's profiles fills in what the recipe leaves out; "paper" is the published algorithm."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """All that is random derives from it: labelled samples, partition, initial weights, selection, views."""
    rounds: PositiveInt = 30
    """Number of rounds, or of aggregations in buffered mode. More may be asked for later, unless a schedule counts
    them."""
    autocast: Literal["off", "bf16", "auto"] = "off"
    """"bf16" computes in half precision; "auto" where the processor computes it. Devices that do and devices that do
    not give other bits."""
    data: DataSettings = DataSettings()
    split: SplitSettings = SplitSettings(labelled_fraction=0.01)
    network: NetworkSettings = NetworkSettings()
    client: OptimiserSettings = OptimiserSettings()
    server: ServerSettings = ServerSettings()
    hostile: HostileSettings = HostileSettings()
    method: SerializeAsAny[MethodSettings] = MethodSettings()


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def explain(error: ValidationError, blamed: Callable[[list[str]], str], model: type[BaseModel]) -> str:
    """One line per mistake, naming the key, and the nearest known key for one that does not exist. `blamed` gives the
    file or option that a key comes from."""
    return "\n".join(
        f"{blamed(list(map(str, detail['loc'])))}: {_explain_one(detail, model)}" for detail in error.errors()
    )


def _explain_one(detail: ErrorDetails, model: type[BaseModel]) -> str:
    path = list(map(str, detail["loc"]))
    where = ".".join(path)
    if detail["type"] != "extra_forbidden":
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] in ("model_type", "model_attributes_type"):
            message = f"is a table of settings: {', '.join(sorted(_keys_at(path, model)))}"
        return f"{where}: {message}" if where else message
    known = _keys_at(path[:-1], model)
    near = difflib.get_close_matches(path[-1], known, n=1)
    hint = (
        f"did you mean {'.'.join([*path[:-1], near[0]])}?"
        if near
        else f"known keys: {', '.join(sorted(known))}"
    )
    return f"unknown setting {where}; {hint}"


def _keys_at(path: list[str], model: Any) -> list[str]:
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
