"""FedEMA (arXiv 2204.04385): BYOL at the clients; a client begins with a blend of its own networks and the average.

f and h ← μ·own + (1 − μ)·average, with μ = min(1, λ·d): d is the divergence of the client's last training, and λ is
τ/d of its first one, which it keeps. As in the authors' code for clients that are drawn at random, a client blends only
if it trained in the round before (`max_age` = 1); else f, h and f_t are the average. With 5 of 100 clients that leaves
one activation in twenty: FedEMA then is nearly federated BYOL without a blend.
Adapted: the server's labels come in only to evaluate. Clients count the same: the number of samples is a client's own
word.

A client keeps f, h and f_t: 4 bytes for each parameter and buffer value, in two generations. With ResNet9 of width 64
that is 54 MB a generation, and with the heads of the profile "paper" 204 MB, more than the Redis store takes of one
client (64 MiB).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from fedil_model.methods.byol import (
    DEFAULT_PROFILE,
    PUBLISHED_PROFILE,
    Byol,
    ByolSettings,
    Start,
    byol_display,
)
from fedil_model.methods.interface import MethodSpec, Tensors
from fedil_model.training.flat_model import Weights


class FedEMASettings(ByolSettings):
    max_age: int | None = Field(default=1, ge=1)
    """A client that last trained more than this many rounds ago begins as if it had never trained. Not set: it always
    blends with what it kept."""
    first_share: float = Field(default=0.7, ge=0.0, le=1.0)
    """τ: share of its own weights with which a client begins its second training."""


PROFILES: dict[str, dict[str, Any]] = {"fedema": DEFAULT_PROFILE, "paper": PUBLISHED_PROFILE}


def spec() -> MethodSpec:
    return MethodSpec(
        title="FedEMA",
        reference="https://arxiv.org/abs/2204.04385",
        settings=FedEMASettings,
        make=FedEMA,
        display=byol_display("Mean share μ of their own weights with which clients begin."),
        profiles=PROFILES,
    )


class FedEMA(Byol):
    _settings: FedEMASettings

    def _begin(self, received: Weights, kept: Tensors) -> Start:
        own_share = min(1.0, float(kept["scale"] * kept["divergence"]))
        blended_P = received.params.lerp(kept["online"], own_share)
        return Start(Weights(blended_P, received.buffers), self._kept_target(received, kept), own_share)

    def _keep(self, kept: Tensors | None, trained: Weights, divergence: Tensor) -> Tensors:
        first = self._settings.first_share / divergence.clamp(min=1e-12)
        return {"online": trained.params, "scale": first[None] if kept is None else kept["scale"]}

    def _sizes(self) -> Mapping[str, int]:
        return {"online": self._student.num_params, "scale": 1}
