"""FedU (arXiv 2108.06492): BYOL at the clients, which keep their own predictor where training moves the network far.

The server averages f and h; clients begin with the average f and with their own f_t. The divergence d of a client's
last training decides on h (divergence-aware predictor update): the average if d < μ, else its own.
Adapted: the server's labels come in only to evaluate. Clients count the same: the number of samples is a client's own
word. The published method has all clients in every round; with 5 of 100 a client returns after some 20, and its f_t
would pull the average back. The default profile therefore has FedEMA's rule: what a client kept counts if it trained in
the round before (`max_age` = 1).

A client keeps f_t, and h if it will use it: 4 bytes for each parameter and buffer value, in two generations. With
ResNet9 of width 64 that is 27 MB for f_t and 0.3 MB for h a generation, and with the heads of the profile "paper" 68 MB
and 67 MB, more than the Redis store takes of one client (64 MiB).
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
from fedil_model.settings import merge
from fedil_model.training.flat_model import Weights


class FedUSettings(ByolSettings):
    max_divergence: float = Field(default=0.4, ge=0.0)
    """μ: after training that moved the network less than this, a client takes the average predictor."""


PROFILES: dict[str, dict[str, Any]] = {
    "fedu": merge(DEFAULT_PROFILE, {"method": {"max_age": 1}}),
    "paper": PUBLISHED_PROFILE,
}


def spec() -> MethodSpec:
    return MethodSpec(
        title="FedU",
        reference="https://arxiv.org/abs/2108.06492",
        settings=FedUSettings,
        make=FedU,
        display=byol_display(
            "Share of clients that begin with their own predictor instead of the average.",
            threshold=0.4,
            threshold_if="max_divergence",
        ),
        profiles=PROFILES,
    )


class FedU(Byol):
    _settings: FedUSettings

    def _begin(self, received: Weights, kept: Tensors) -> Start:
        target, own = self._kept_target(received, kept), kept.get("predictor")
        if own is None:
            return Start(received, target, 0.0)
        return Start(Weights(self._with(received.params, h=own), received.buffers), target, 1.0)

    def _keep(self, kept: Tensors | None, trained: Weights, divergence: Tensor) -> Tensors:  # noqa: ARG002
        if float(divergence) < self._settings.max_divergence:
            return {}
        return {"predictor": trained.params[self._predictor_marks]}

    def _sizes(self) -> Mapping[str, int]:
        return {"predictor": self._num_predictor}
