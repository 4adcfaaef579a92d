"""FedIL's settings. Field defaults are the paper's reading; PROFILES["fedil"] lists what our default changes."""

from typing import Any, Literal

from pydantic import Field, model_validator

from fedil_model.settings import MethodSettings


class FedILSettings(MethodSettings):
    """Knobs of the method; the first lines name the paper's symbols."""

    threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """τ: a sample counts as sure from this probability of a class on. Lower it if hardly any sample gets a
    pseudo-label."""
    credibility: int = Field(default=7, ge=1, le=255)
    """T: activations in a row with the same confident, agreed label before a sample is promoted."""
    pseudo_label_set: bool = True
    """Whether samples are promoted to the pseudo-label set; without it ξc has none to train on (the paper's
    ablation)."""
    weight_pseudo: float = Field(default=1.0, ge=0.0)
    """Weight of ξa, cross-entropy of strong views against pseudo-labels."""
    weight_pseudo_weak: float = Field(default=0.0, ge=0.0)
    """Weight of the same pseudo-labels on the weak view too, where they are known beforehand (`pseudo_source` not
    "live"): the credible set, which does this in the paper, needs `credibility` activations to begin."""
    weight_consistency: float = Field(default=1.0, ge=0.0)
    """Weight of ξb, which keeps predictions close to those of θ₀."""
    weight_credible: float = Field(default=1.0, ge=0.0)
    """Weight of ξc, cross-entropy on the pseudo-label set."""
    promote_lag: int = Field(default=1, ge=0, le=1)
    """0: a promoted sample takes part in ξc from the same activation on; 1: from the next (eq. 20)."""
    client_init: Literal["global", "server"] = "global"
    """Where clients start: from θ′ ("global", as in the paper) or from θ₀ ("server")."""
    pseudo_source: Literal["live", "global", "server", "ensemble"] = "live"
    """Where the pseudo-labels of ξa come from: the model being trained ("live"), or once per activation from what was
    received: θ′ ("global"), θ₀ ("server"), or the mean of their predictions ("ensemble")."""
    batches: Literal["mixed", "sure", "auto"] = "mixed"
    """"mixed": a batch holds any samples, and those that are not sure add nothing to ξa (paper). "sure": batches hold
    only sure and credible samples, repeated to the size of the shard, so that batch norm sees full batches. "auto":
    with batch norm "sure" and only ξa on strong views, else "mixed"."""
    prior_temperature: float = Field(default=0.0, ge=0.0)
    """Above 0, a client estimates its class shares from θ₀'s predictions. Where they clearly differ from those of the
    labels, its pseudo-labels take them into account. Logits are divided by this first: a network that has seen few
    labels is too sure of its mistakes."""
    frozen_statistics: bool = False
    """With batch norm such a client normalises with the statistics that it receives, and not with those of its
    batches, which no other client shares."""
    logit_adjustment: float = Field(default=0.0, ge=0.0, le=1.0)
    """Adds this much of log(share of each class among the client's labels) to the logits of ξa and ξc: a client that
    has two classes then does not teach the others away. 0 with labels that are "live"."""
    cosine_filter: bool = True
    """Whether an update counts only if its cosine with what the server learnt is not negative (eq. 24)."""
    cosine_reference: Literal["global", "start"] = "global"
    """Which cosine with θ₀ − θ′ counts: that of θ* − θ′ ("global", as in the paper), or of θ* − where the client
    started ("start")."""
    loss_margin: float = Field(default=0.0, ge=0.0)
    """Reject an update that adds to the loss on the server's labelled samples by more than this above what is usual:
    the median of recent updates, or four times their spread where that is more; 0: no test."""
    movement_filter: bool = False
    """Reject an update that moves from its start against the average movement of earlier rounds, more than is usual.
    The server keeps one more vector of parameters."""
    on_reject: Literal["drop", "project"] = "drop"
    """What happens to an update with a negative cosine: it is left out ("drop", as in the paper), or only its part
    against g₀ ("project")."""
    normalise: Literal["none", "reference"] = "none"
    """"reference" rescales every update to ‖g₀‖ (FLTrust), so that no client counts more by its length."""
    soft_cosine: bool = False
    """Weight by the cosine instead of 1, but never below a thousandth: a sum of zeros would make eq. 25 0/0."""
    server_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Momentum on Δθ: 0.5 adds half of the round before."""
    demote_after: int = Field(default=0, ge=0, le=255)
    """Confident, agreed disagreements in a row after which a credible sample is unlabelled again; 0: never."""
    ema_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of a moving average of θ′ that is evaluated too; 0: there is none."""
    empty_rounds_before_fallback: int = Field(default=0, ge=0)
    """After this many rounds without an accepted update, θ′ takes the server's own step; 0: never."""

    @model_validator(mode="after")
    def _sure_batches_need_labels(self) -> "FedILSettings":
        if self.batches != "mixed" and self.pseudo_source == "live":
            raise ValueError(
                f'batches = "{self.batches}" needs labels before training: '
                'set pseudo_source to "global", "server" or "ensemble"'
            )
        if self.logit_adjustment > 0.0 and self.pseudo_source == "live":
            raise ValueError("logit_adjustment needs labels before training: set pseudo_source, or it to 0")
        if self.frozen_statistics and self.prior_temperature == 0.0:
            raise ValueError(
                "frozen_statistics needs estimated class shares: set prior_temperature, such as to 2"
            )
        return self

    def for_network(self, has_batch_norm: bool) -> "FedILSettings":
        """With `batches` decided"""
        if self.batches != "auto":
            return self
        if not has_batch_norm:
            return self.model_copy(update={"batches": "mixed"})
        update = {"batches": "sure", "weight_pseudo_weak": 0.0, "weight_consistency": 0.0}
        return self.model_copy(update=update)


PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "fedil": {
        "network": {"norm": "auto"},
        "server": {
            "pretrain_epochs": 60,
            "pretrain_schedule": "cosine",
            "pretrain_strong_weight": 1.0,
            "strong_weight": 1.0,
        },
        "method": {
            "client_init": "server",
            "pseudo_source": "ensemble",
            "batches": "auto",
            "weight_pseudo_weak": 1.0,
            "prior_temperature": 2.0,
            "frozen_statistics": True,
            "logit_adjustment": 1.0,
            "loss_margin": 0.5,
            "movement_filter": True,
            "server_momentum": 0.5,
            "empty_rounds_before_fallback": 1,
        },
    },
    "paper": {},
}
