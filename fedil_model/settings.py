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
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class DataSettings(Settings):
    name: str = "digits"
    """A registered dataset, or `module:callable` of your own."""
    root: Path | None = Field(default=None, strict=False)
    """Where the files are; the command line uses FEDIL_DATA when this is not set, or not there."""
    download: bool = False
    options: dict[str, Any] = {}
    """Keyword arguments of the dataset's own."""


class SplitSettings(Settings):
    labelled: PositiveInt | None = None
    """Number of labelled samples at the server; or give `labelled_fraction` (the paper's γ)."""
    labelled_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    label_split: Literal["stratified", "random"] = "stratified"
    clients: PositiveInt = 100
    partition: Literal["iid", "classes", "dirichlet", "batch_iid", "batch_noniid", "natural", "elsewhere"] = (
        "iid"
    )
    """"natural": each client holds what the data says is its own, such as the column data.options.site of a table.
    "elsewhere": nothing is dealt out. All samples here are labelled, the clients' data lie at their sites."""
    classes_share: float = Field(default=0.2, gt=0.0, le=1.0)
    """partition = "classes": the share of all classes that each client holds, exactly."""
    alpha: PositiveFloat = 0.5
    """partition = "dirichlet": small is skewed, large is even."""
    min_samples: PositiveInt = 10
    """partition = "dirichlet": no client gets fewer."""

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
    norm: Literal["none", "bn", "sbn", "gn", "auto"] = "bn"
    """"auto": batch norm for images of 16 pixels a side or more, group norm for the rest."""
    options: dict[str, Any] = {}


class OptimiserSettings(Settings):
    epochs: PositiveInt = 5
    batch_size: PositiveInt = 50
    lr: PositiveFloat = 0.03
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """"cosine" decays over the run's rounds, not inside one task."""
    lr_floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of `lr` at which the cosine ends."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    nesterov: bool = True
    weight_decay: float = Field(default=5e-4, ge=0.0)
    clip_norm: float = Field(default=5.0, ge=0.0)
    """Gradient norm is clipped to this; 0 switches it off."""

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
    pretrain_epochs: int = Field(default=0, ge=0)
    """Epochs on the labelled data before round 1."""
    pretrain_lr: PositiveFloat | None = None
    """Learning rate for them, where it should not be `lr`."""
    pretrain_schedule: Literal["constant", "cosine"] = "constant"
    """"cosine" decays to 0 over the epochs before round 1."""
    pretrain_strong_weight: float = Field(default=0.0, ge=0.0)
    """Weight of an additional cross-entropy on the strong view of labelled samples, before round 1 …"""
    strong_weight: float = Field(default=0.0, ge=0.0)
    """… and in the rounds."""
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
    """Of the clients"""
    kind: Literal["flipped", "noise", "stale", "permuted"] = "flipped"
    """The update with the opposite sign; noise of its length; the first update again and again; the trained model with
    its classes numbered one further."""


class Learning(Settings):
    """The part of a recipe that travels with every task. Made by fedil_model.methods.make_learning."""

    profile: str = ""
    """Which of the method's profiles fills in what the recipe leaves out; "paper" is the published algorithm."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    rounds: PositiveInt = 30
    autocast: Literal["off", "bf16", "auto"] = "off"
    """"auto": bf16 where the processor computes it. Devices that do and devices that do not give other bits."""
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
