"""What several methods declare alike: settings of their profiles, series and charts. Free of torch."""

from typing import Any

from fedil_model.methods.interface import Chart, ClientValue, Series

_SHARED = {"epochs": 5, "batch_size": 10, "lr_schedule": "cosine", "clip_norm": 1.0}
SHARED_OPTIMISERS: dict[str, Any] = {"client": _SHARED, "server": _SHARED}
"""Of the FixMatch family: SemiFL, (FL)² and the baselines beside them. What is not named here is the same by default.
With more than 1,000 labels they are published with server batches of 250: set server.batch_size then."""


def loss_series(term: str, title: str, help: str, *, at_server: bool = False) -> Series:
    return Series(
        f"loss_{term}",
        title,
        help,
        source="server" if at_server else "client_mean",
        metric="fedil_loss",
        metric_label=("term", term),
    )


def client_share(name: str, title: str, help: str, column: str = "") -> Series:
    return Series(name, title, help, source="client_mean", unit="share", column=column)


def chart(title: str, help: str, *series: Series, log: bool = False) -> Chart:
    return Chart(title, help, series, log)


LOSS_SERVER = loss_series("server", "server", "Cross-entropy on the labelled samples.", at_server=True)


def losses_chart(*clients_terms: Series) -> Chart:
    help = "Mean of each loss term: the server's on labelled samples, the clients' on their own."
    return chart("Losses", help, LOSS_SERVER, *clients_terms)


def confident_chart(column: str = "") -> Chart:
    help = "Share of unlabelled samples that train on a pseudo-label."
    return chart(
        "Confident samples",
        "Share of the unlabelled samples whose label is confident enough to train on.",
        client_share("sure_share", "confident", help, column),
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


def steps_chart(help: str = "How far training moves the model, at the server and at the clients.") -> Chart:
    return chart("Steps", help, SERVER_NORM, CLIENT_NORM, log=True)
