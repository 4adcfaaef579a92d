"""FedMatch (arXiv 2006.12097): the network's weights are σ, which the server trains, + ψ, which clients train."""

from typing import Any

from pydantic import Field

from fedil_model.methods.declared import (
    CONFIDENT_BY_CLIENT,
    SHARED_OPTIMISERS,
    chart,
    client_share,
    confident_chart,
    loss_series,
    losses_chart,
    steps_chart,
)
from fedil_model.methods.interface import Display, Method, MethodContext, MethodSpec, Model, Series
from fedil_model.settings import MethodSettings, merge

MOST_HELPERS = 2


class FedMatchSettings(MethodSettings):
    threshold: float = Field(default=0.85, ge=0.0, le=1.0)
    """τ: a sample is trained on if the model being trained is at least this sure of it. The authors' code has 0.75."""
    weight_server: float = Field(default=10.0, gt=0.0)
    """λs: weight of the cross-entropy on the labelled samples."""
    weight_pseudo: float = Field(default=1e-2, ge=0.0)
    """λa: weight of the cross-entropy of strong views against the label that most of client and helpers vote for."""
    weight_helpers: float = Field(default=1e-2, ge=0.0)
    """λi: weight of the divergence from the helpers' predictions."""
    weight_sparsity: float = Field(default=1e-5, ge=0.0)
    """λ1: weight of ‖ψ‖₁, which keeps few of its values."""
    weight_distance: float = Field(default=10.0, ge=0.0)
    """λ2: weight of ‖σ − ψ‖², which keeps the parts close."""
    helpers: int = Field(default=2, ge=0, le=MOST_HELPERS)
    """H: number of clients whose ψ is nearest, which a client receives."""
    helper_interval: int = Field(default=10, ge=1)
    """Helpers are sent in every such round, to clients that have reported before."""
    pool: int = Field(default=100, ge=1)
    """Clients whose last ψ the server keeps, the latest ones. Each takes as much memory as the network."""
    psi_factor: float = Field(default=0.2, ge=0.0)
    """ψ begins as this multiple of σ."""
    min_change: float = Field(default=1e-5, ge=0.0)
    """Smaller changes of ψ are not sent, and smaller values of ψ count as 0 in the model that ships."""


_PUBLISHED = {
    "epochs": 1,
    "batch_size": 100,
    "lr": 1e-3,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
}
PROFILES: dict[str, dict[str, Any]] = {
    # Published rates and weights move ψ towards σ and hardly anything else; these learn in tens of rounds.
    "fedmatch": merge(
        SHARED_OPTIMISERS,
        {
            "network": {"norm": "gn"},
            "client": {"weight_decay": 0.0},  # it would pull ψ towards −σ
            "method": {"weight_server": 1.0, "weight_distance": 1e-4},
        },
    ),
    "paper": {"network": {"norm": "gn"}, "client": _PUBLISHED, "server": _PUBLISHED},
}

DISPLAY = Display(
    models=(
        Model(
            "global",
            "global model",
            "both parts after the round, without the smallest values of ψ",
            symbol="σ + ψ",
        ),
        Model("server", "server model", "both parts after the server has trained σ, as clients receive them"),
    ),
    charts=(
        steps_chart("How far training moves the model: the server moves σ, clients move ψ."),
        chart(
            "Parts",
            "Size of the server's part σ and of the clients' part ψ.",
            Series("sigma_norm", "‖σ‖", "Norm of σ.", unit="norm"),
            Series("psi_norm", "‖ψ‖", "Norm of ψ.", unit="norm"),
        ),
        losses_chart(
            loss_series("pseudo", "pseudo-labels", "Cross-entropy of strong views against the voted label."),
            loss_series(
                "helpers", "helpers", "KL divergence from the helpers' predictions; 0 without helpers."
            ),
        ),
        confident_chart("sure %"),
        chart(
            "Sparse updates",
            "Share of ψ's entries that changed enough to be sent.",
            client_share("sent_share", "sent", "Share of entries in the clients' updates."),
        ),
    ),
    client_values=(CONFIDENT_BY_CLIENT,),
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="FedMatch",
        reference="https://arxiv.org/abs/2006.12097",
        settings=FedMatchSettings,
        make=_make,
        display=DISPLAY,
        profiles=PROFILES,
        extras_per_client=MOST_HELPERS,
        keeps_updates=True,
    )


def _make(context: MethodContext) -> Method:
    from fedil_model.methods.fedmatch.method import FedMatch  # imports torch

    return FedMatch(context)
