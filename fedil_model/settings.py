"""Everything that a task's result depends on, besides the data: validated, frozen, free of torch.

Field defaults are the paper's reading (profile "paper"); PROFILES["fedil"] lists, key by key,
what our better default changes. A key written in a recipe wins over both.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator


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
    partition: Literal["iid", "classes", "dirichlet", "batch_iid", "batch_noniid", "elsewhere"] = "iid"
    """"elsewhere": nothing is dealt out. All samples here are labelled, the clients' data lie at their sites."""
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
    norm: Literal["none", "bn", "sbn", "gn"] = "bn"
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


class ServerSettings(OptimiserSettings):
    epochs: PositiveInt = 10
    pretrain_epochs: int = Field(default=0, ge=0)
    """Epochs on the labelled data before round 1."""
    pretrain_lr: PositiveFloat | None = None
    """Learning rate for them, where it should not be `lr`."""
    pretrain_strong_weight: float = Field(default=0.0, ge=0.0)
    """Weight of an additional cross-entropy on the strong view of labelled samples, before round 1 …"""
    strong_weight: float = Field(default=0.0, ge=0.0)
    """… and in the rounds."""


class ClientSettings(OptimiserSettings):
    pass


class FedILSettings(Settings):
    """Knobs of the method; the first lines name the paper's symbols."""

    name: Literal["fedil"] = "fedil"
    threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """τ"""
    credibility: int = Field(default=7, ge=1, le=255)
    """T: activations in a row with the same confident, agreed label before a sample is promoted."""
    weight_pseudo: float = Field(default=1.0, ge=0.0)
    """ξa"""
    weight_pseudo_weak: float = Field(default=0.0, ge=0.0)
    """The same labels on the weak view too, where they are known beforehand (`pseudo_source` not "live"): the
    credible set, which does this in the paper, needs `credibility` activations to begin."""
    weight_consistency: float = Field(default=1.0, ge=0.0)
    """ξb"""
    weight_credible: float = Field(default=1.0, ge=0.0)
    """ξc"""
    promote_lag: int = Field(default=1, ge=0, le=1)
    """0: a promoted sample takes part in ξc from the same activation on; 1: from the next (eq. 20)."""
    client_init: Literal["global", "server"] = "global"
    """Clients start from θ′ (paper) or from θ₀."""
    pseudo_source: Literal["live", "global", "server", "ensemble"] = "live"
    """Pseudo-labels of ξa from the model being trained, or once per activation from what was received:
    θ′, θ₀, or the mean of their predictions."""
    cosine_filter: bool = True
    cosine_reference: Literal["global", "start"] = "global"
    """Cosine of θ* − θ′ (paper), or of θ* − (where the client started), against θ₀ − θ′."""
    on_reject: Literal["drop", "project"] = "drop"
    """Drop an update with a negative cosine (paper), or remove only its part against g₀."""
    normalise: Literal["none", "reference"] = "none"
    """"reference" rescales every update to ‖g₀‖ (FLTrust)."""
    soft_cosine: bool = False
    """Weight by the cosine instead of 1, but never below a thousandth: a sum of zeros would make eq. 25 0/0."""
    server_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Momentum on Δθ."""
    demote_after: int = Field(default=0, ge=0, le=255)
    """Confident, agreed disagreements in a row after which a credible sample is unlabelled again; 0 = never."""
    ema_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Also evaluate a moving average of θ′; 0 = no."""
    empty_rounds_before_fallback: int = Field(default=0, ge=0)
    """After so many rounds in which nobody was accepted, θ′ takes the server's own step; 0 = never."""


class Learning(Settings):
    """The part of a recipe that travels with every task."""

    profile: Literal["paper", "fedil"] = "fedil"
    seed: int = Field(default=0, ge=0, lt=2**63)
    rounds: PositiveInt = 30
    autocast: Literal["off", "bf16"] = "off"
    data: DataSettings = DataSettings()
    split: SplitSettings = SplitSettings(labelled_fraction=0.01)
    network: NetworkSettings = NetworkSettings()
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    method: FedILSettings = FedILSettings()

    @model_validator(mode="before")
    @classmethod
    def _profile_fills_what_the_recipe_leaves_out(cls, values: Any) -> Any:
        profile = values.get("profile", "fedil") if isinstance(values, dict) else None
        return merge(PROFILES.get(profile, {}), values) if isinstance(profile, str) else values


PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "fedil": {
        "network": {"norm": "gn"},
        "server": {"pretrain_epochs": 30, "pretrain_strong_weight": 1.0, "strong_weight": 1.0},
        "method": {"client_init": "server", "pseudo_source": "ensemble", "weight_pseudo_weak": 1.0},
    },
}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
