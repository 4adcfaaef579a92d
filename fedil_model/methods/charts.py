"""Series and charts that several methods declare. Free of torch."""

from fedil_model.methods.interface import Chart, ClientValue, Series


def loss_series(term: str, title: str, help: str, *, at_server: bool = False) -> Series:
    return Series(
        f"loss_{term}",
        title,
        help,
        source="server" if at_server else "client_mean",
        metric="fedil_loss",
        metric_label=("term", term),
    )


def losses_chart(*clients_terms: Series) -> Chart:
    return Chart(
        "Losses",
        "Mean of each loss term: the server's on labelled samples, the clients' on their own.",
        (
            loss_series("server", "server", "Cross-entropy on the labelled samples.", at_server=True),
            *clients_terms,
        ),
    )


CONFIDENT = Chart(
    "Confident samples",
    "Share of the unlabelled samples whose label is confident enough to train on.",
    (
        Series(
            "sure_share",
            "confident",
            "Share of unlabelled samples that train on a pseudo-label.",
            source="client_mean",
            unit="share",
        ),
    ),
)

CONFIDENT_BY_CLIENT = ClientValue(
    "sure_share",
    "confident share",
    "Share of the client's samples that train on a pseudo-label, as the client reports it.",
    low=0.0,
    high=1.0,
    buckets=tuple(tenth / 10 for tenth in range(11)),
)

CLIENT_NORM = Series(
    "client_norm",
    "clients",
    "Mean norm of the accepted updates, each against the model it received.",
    unit="norm",
)
SERVER_NORM = Series(
    "server_norm", "server", "Norm of the server's own step on the labelled samples.", unit="norm"
)
