"""What FedIL shows of a round and of a client's answer."""

from fedil_model.methods.declared import chart, confident_chart, loss_series, losses_chart
from fedil_model.methods.interface import ClientValue, Display, Model, Outcome, Series

PROJECTED, REJECTED = "projected", "rejected_cosine"
REJECTED_LOSS, REJECTED_MOVEMENT = "rejected_loss", "rejected_movement"


def _purity(label_set: str, title: str, help: str, column: str = "") -> Series:
    return Series(
        f"purity_{label_set}",
        title,
        help,
        source="label_set",
        of=label_set,
        unit="share",
        column=column,
        metric="fedil_pseudo_label_purity",
        metric_label=("set", label_set),
    )


DISPLAY = Display(
    models=(
        Model("global", "global model", "the model after the round, which ships", symbol="θ′"),
        Model(
            "server",
            "server model",
            "the global model trained on the labelled samples at the start of the round",
            symbol="θ₀",
        ),
        Model("ema", "averaged model", "moving average of θ′ over rounds", optional=True, symbol="EMA"),
    ),
    charts=(
        chart(
            "Server step",
            "How far training on the labelled samples moves θ′. The cosine filter compares updates with this step.",
            Series("reference_norm", "‖θ₀ − θ′‖", "Norm of the server's own step, θ₀ − θ′.", unit="norm"),
            log=True,
        ),
        chart(
            "Pseudo-labels",
            "Samples that carry a label at their clients. Credible ones have had the same confident label for T "
            "activations in a row and train as labelled samples.",
            Series(
                "pseudo_labels",
                "with a pseudo-label",
                "Samples with a pseudo-label at their clients.",
                source="client_total",
                unit="samples",
                column="pseudo",
            ),
            Series(
                "credible",
                "credible",
                "Samples in the clients' credible sets.",
                source="client_total",
                unit="samples",
                column="credible",
                metric="fedil_credible_samples",
            ),
            Series(
                "promoted",
                "promoted in the round",
                "Samples that became credible.",
                source="client_gain",
                of="credible",
                unit="samples",
                metric="fedil_promoted_samples_total",
            ),
        ),
        chart(
            "Purity of pseudo-labels",
            "Share of right labels, where the truth is known offline. Below the model's own accuracy, wrong labels "
            "are being taught.",
            _purity(
                "pseudo_labels", "pseudo-labels", "Share of right ones among all pseudo-labels.", "pure %"
            ),
            _purity(
                "taught",
                "taught by ξa",
                "Share of right ones among the labels that ξa trained on, of each client's last activation.",
                "taught %",
            ),
            _purity("credible", "credible", "Share of right ones among credible labels."),
        ),
        losses_chart(
            loss_series("pseudo", "ξa pseudo-labels", "Cross-entropy of strong views against pseudo-labels."),
            loss_series(
                "pseudo_weak", "ξa on weak views", "Cross-entropy of weak views against pseudo-labels."
            ),
            loss_series("consistency", "ξb consistency", "KL divergence from θ₀'s predictions."),
            loss_series("credible", "ξc credible set", "Cross-entropy on the credible set."),
        ),
        confident_chart(),
    ),
    client_values=(
        ClientValue(
            "cosine",
            "cosine",
            "Cosine of the update with the server's own step. Below 0 it is rejected (or projected).",
            low=-1.0,
            high=1.0,
            threshold=0.0,
            threshold_if="cosine_filter",
            buckets=tuple(tenth / 10 for tenth in range(-10, 11)),
        ),
        ClientValue(
            "excess_loss",
            "excess loss",
            "Loss of the client's model on the server's labelled samples, less that of where it started.",
            low=-0.5,
            high=2.0,
            buckets=(-0.1, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0),
        ),
        ClientValue(
            "movement_cosine",
            "movement cosine",
            "Cosine of the client's movement with the average movement of earlier rounds. Below 0 it is rejected.",
            low=-0.5,
            high=0.5,
            threshold=0.0,
            threshold_if="movement_filter",
            buckets=(-0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5),
        ),
    ),
    outcomes=(
        Outcome(PROJECTED, "projected", "Accepted without its part against the server's step."),
        Outcome(
            REJECTED, "rejected: cosine", "Its cosine with the server's step is negative, or it did not move."
        ),
        Outcome(
            REJECTED_LOSS,
            "rejected: loss",
            "Its training added more to the loss on the server's labelled samples than that of others.",
        ),
        Outcome(
            REJECTED_MOVEMENT,
            "rejected: movement",
            "It moved against the average movement of earlier rounds.",
        ),
    ),
)
