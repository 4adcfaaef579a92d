"""What a server counts: every metric of it has its name here, and none has a label for a client or a site.

Counters begin at 0 with the process. Gauges show the last round, after a restart too."""

import math
import time
from collections.abc import Callable

from broker_config.process.metrics import Bytes, Metrics, Traffic
from broker_config.process.version import software_version
from fedil_model.training.convergence import VERDICTS
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.survey import Survey

OUTCOMES = (
    "accepted",
    "projected",
    "rejected_cosine",
    "invalid",
    "refused",
    "missing",
    "stale",
    "late",
    "duplicate",
)
REASONS = (
    "body_missing",
    "contradiction",
    "digest",
    "duplicate",
    "late",
    "misplaced",
    "model_missing",
    "not_asked",
    "not_fedil",
    "not_yours",
    "other_run",
    "schema",
    "stale",
    "too_large",
    "trailing_bytes",
    "truncated",
    "unknown_version",
    "wrong_kind",
)
OTHER_REASON = "other"
PHASES = ("server_step", "broadcast", "wait", "fold", "checkpoint", "evaluate")
_ARRIVED = ("accepted", "projected", "rejected_cosine")
"""Outcomes of updates that say how much was trained, and are none that nobody should believe"""
_MOST_SAMPLES = 10**9
"""Of one update. A client may claim any number, and a counter never comes back from an absurd one."""
_LOSS = "loss_"

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
_COSINES = tuple(tenth / 10 for tenth in range(-10, 11))
_VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)


class ServerMetrics:
    """A watcher. Whatever it is told, the number of its series has a bound."""

    def __init__(self, run: str, recipe: Recipe, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        metrics = self._metrics = Metrics(run=run)
        about = metrics.gauge("fedil_run_info", "What is run.", "recipe", "method", "mode", "version")
        mode = recipe.federation.mode
        about.set(1, recipe.name, recipe.method.name, mode, software_version())
        self._running = metrics.gauge(
            "fedil_running",
            "1 while this server leads the run or tries to; 0 while another leads it, and once it is over.",
        )
        self._running.set(1)
        self._progress = metrics.gauge(
            "fedil_progress_timestamp_seconds", "When the run last got on: a phase, an answer or a round."
        )
        self._rounds = _Rounds(metrics, recipe.rounds)
        self._convergence = _Convergence(metrics)
        self._learning = _Learning(metrics)
        self._answers = _Answers(metrics, mode == "buffered", recipe.client.epochs)
        self._fleet = _Fleet(metrics, recipe.split.clients)
        metrics.gauge(
            "fedil_over_selected_ratio", "Share of the clients asked that a round need not wait for."
        ).set(_over_selected(recipe))
        self._traffic = Traffic(metrics)

    def render(self) -> bytes:
        return self._metrics.render()

    def watch_traffic(self, traffic: Bytes) -> None:
        self._traffic.watch(traffic)

    def survey(self, survey: Survey) -> None:
        with self._metrics.at_once():
            self._fleet.show(survey)

    def restore(self, record: RoundRecord) -> None:
        """A round that an earlier life of this server closed: shown, and not counted again."""
        with self._metrics.at_once():
            self._show(record)

    def working(self, is_working: bool) -> None:
        """Events say that it is."""
        self._running.set(is_working)

    def reached_brokers(self, are_there: bool | None) -> None:
        """For as long as no survey tells"""
        self._fleet.reached(are_there)

    def run_started(self, first_round: int, rounds: int) -> None:
        with self._metrics.at_once():
            self._rounds.start(first_round, rounds)
            self._got_on()

    def phase(self, _round_number: int, _name: str) -> None:
        self._got_on()

    def update_arrived(
        self, round_number: int, outcome: ClientOutcome, _answered: int, _selected: int
    ) -> None:
        with self._metrics.at_once():
            self._answers.count(round_number, outcome)
            self._got_on()

    def round_closed(self, record: RoundRecord) -> None:
        with self._metrics.at_once():
            self._show(record)
            self._rounds.count(record)
            self._answers.close(record)
            self._learning.count(record)
            self._got_on()

    def note(self, text: str) -> None:
        """Is for people."""

    def _show(self, record: RoundRecord) -> None:
        self._rounds.show(record)
        self._convergence.show(record)
        self._learning.show(record)

    def _got_on(self) -> None:
        self._running.set(1)
        self._progress.set(self._clock())


class _Rounds:
    def __init__(self, metrics: Metrics, planned: int) -> None:
        self._round = metrics.gauge("fedil_round", "The last closed round.")
        self._planned = metrics.gauge("fedil_rounds_planned", "How many rounds the run is to have.")
        self._planned.set(planned)
        self._empty = metrics.gauge(
            "fedil_empty_rounds", "Rounds in a row, up to the last, in which no update was accepted."
        )
        self._empties = 0
        self._closed = metrics.gauge(
            "fedil_round_closed_timestamp_seconds", "When the last closed round was closed."
        )
        self._seconds = metrics.histogram(
            "fedil_round_duration_seconds", "How long rounds take.", bounds=_SECONDS
        )
        self._phases = metrics.histogram(
            "fedil_phase_duration_seconds",
            "How long the phases of rounds take; evaluate goes on beside the next round.",
            "phase",
            bounds=_SECONDS,
        )

    def start(self, first_round: int, rounds: int) -> None:
        self._round.set(first_round - 1)
        self._planned.set(rounds)

    def show(self, record: RoundRecord) -> None:
        self._round.set(record.round)
        self._planned.set(record.rounds)
        self._empties = 0 if record.accepted else self._empties + 1
        self._empty.set(self._empties)
        self._closed.set(record.finished_at or None)

    def count(self, record: RoundRecord) -> None:
        self._seconds.observe(record.seconds.get("total", math.nan))
        for phase in PHASES:
            self._phases.observe(record.seconds.get(phase, math.nan), phase)


class _Convergence:
    def __init__(self, metrics: Metrics) -> None:
        self._norm = metrics.gauge("fedil_delta_theta_norm", "Norm of the round's increment of θ′.")
        self._reference = metrics.gauge("fedil_reference_norm", "Norm of the server's own step, θ₀ − θ′.")
        self._more = {
            "ratio": metrics.gauge("fedil_delta_theta_ratio", "Norm of the increment by the one before."),
            "moving_average": metrics.gauge(
                "fedil_delta_theta_moving_average", "Mean norm of the last increments."
            ),
            "relative": metrics.gauge("fedil_delta_theta_relative", "Norm of the increment by that of θ′."),
            "lr_normalised": metrics.gauge(
                "fedil_delta_theta_lr_normalized", "Norm of the increment by learning rate and steps."
            ),
            "exponent": metrics.gauge(
                "fedil_convergence_exponent", "Power of the round with which the increments shrink."
            ),
        }
        self._verdict = metrics.gauge(
            "fedil_convergence_verdict", "1 for what the increments say of convergence.", "verdict"
        )

    def show(self, record: RoundRecord) -> None:
        self._norm.set(record.delta_norm)
        self._reference.set(record.reference_norm)
        for name, gauge in self._more.items():
            gauge.set(record.convergence.get(name))
        for verdict in VERDICTS:
            self._verdict.set(verdict == record.verdict, verdict)


class _Learning:
    def __init__(self, metrics: Metrics) -> None:
        self._accuracy = metrics.gauge(
            "fedil_accuracy", "Share of right predictions on the test data, as last measured.", "model"
        )
        self._labels = metrics.gauge("fedil_pseudo_labels", "Samples with a pseudo-label at their clients.")
        self._credible = metrics.gauge("fedil_credible_samples", "Samples in the clients' credible sets.")
        self._promoted = metrics.counter("fedil_promoted_samples_total", "Samples that became credible.")
        self._purity = metrics.gauge(
            "fedil_pseudo_label_purity",
            "Share of right ones among pseudo-labels, where truth is known.",
            "set",
        )
        self._loss = metrics.gauge("fedil_loss", "Mean loss of the round, by term.", "term")

    def show(self, record: RoundRecord) -> None:
        for model, accuracy in record.accuracy.items():
            self._accuracy.set(accuracy, model)
        self._labels.set(record.pseudo_labels)
        self._credible.set(record.credible)
        for which in ("pseudo_labels", "credible"):
            self._purity.set(record.purity.get(which), which)
        self._loss.show({name.removeprefix(_LOSS): loss for name, loss in record.losses.items()})

    def count(self, record: RoundRecord) -> None:
        self._promoted.add(record.promoted)


class _Answers:
    """Of clients, counted as they arrive. Who did not answer is known when the round closes; its record may come
    while answers of the next round do."""

    def __init__(self, metrics: Metrics, buffered: bool, epochs: int) -> None:
        self._buffered, self._epochs = buffered, epochs
        self._counted: dict[int, set[int]] = {}
        self._updates = metrics.counter(
            "fedil_updates_total",
            "What became of those who were asked, and of what came late or twice.",
            "outcome",
        )
        self._refused = metrics.counter(
            "fedil_messages_refused_total", "Messages that arrived and did not count, by reason.", "reason"
        )
        self._cosine = metrics.histogram(
            "fedil_update_cosine", "Cosine of updates with the server's own step.", bounds=_COSINES
        )
        self._staleness = metrics.histogram(
            "fedil_update_staleness",
            "How many versions old the model was that an update started from.",
            bounds=_VERSIONS,
        )
        self._images = metrics.counter("fedil_images_total", "Images that clients trained on, times epochs.")
        for outcome in OUTCOMES:
            self._updates.add(0, outcome)
        for reason in (*REASONS, OTHER_REASON):
            self._refused.add(0, reason)

    def count(self, round_number: int, outcome: ClientOutcome) -> None:
        self._counted.setdefault(round_number, set()).add(outcome.client)
        self._updates.add(1, outcome.outcome)
        if outcome.cosine is not None:
            self._cosine.observe(outcome.cosine)
        if outcome.outcome in _ARRIVED:
            self._images.add(min(outcome.num_samples, _MOST_SAMPLES) * self._epochs)
            if outcome.staleness is not None:
                self._staleness.observe(outcome.staleness)

    def close(self, record: RoundRecord) -> None:
        counted = self._counted.get(record.round, set())
        for outcome in record.outcomes:
            if outcome.client not in counted:
                self.count(record.round, outcome)
        self._counted = {number: who for number, who in self._counted.items() if number > record.round}
        for reason, count in record.refused.items():
            self._refused.add(count, reason if reason in REASONS else OTHER_REASON)
        # In buffered mode a stale client has that as its outcome already, when its answer comes after all.
        for name in ("late", "duplicate") if self._buffered else ("late", "duplicate", "stale"):
            self._updates.add(record.refused.get(name, 0), name)


class _Fleet:
    def __init__(self, metrics: Metrics, clients: int) -> None:
        self._queues = metrics.gauge("fedil_queue_messages", "Messages that wait at the broker.", "queue")
        self._workers = metrics.gauge("fedil_workers_alive", "Workers that are there.")
        self._clients_alive = metrics.gauge("fedil_clients_alive", "Clients whose site has a worker.")
        metrics.gauge("fedil_clients", "Clients of the run.").set(clients)
        self._memory = metrics.gauge("fedil_store_memory_bytes", "Memory that the store uses.")
        self._evicted = metrics.counter(
            "fedil_store_evicted_keys_total",
            "Keys that the store has thrown out.",
            shown=False,  # it goes on from what the store has counted, and a jump there would look like news
        )
        self._reachable = metrics.gauge(
            "fedil_brokers_reachable", "1 if broker and store answered when last asked."
        )

    def reached(self, are_there: bool | None) -> None:
        self._reachable.set(are_there)

    def show(self, survey: Survey) -> None:
        self._reachable.set(not survey.trouble)
        for queue in ("tasks", "updates", "dead_letters"):
            self._queues.set(survey.depths.get(queue), queue)
        known = bool(survey.depths)
        self._workers.set(len(survey.workers) if known else None)
        self._clients_alive.set(survey.clients_alive if known else None)
        self._memory.set(survey.store.get("used_memory_bytes"))
        if "evicted_keys" in survey.store:
            self._evicted.follow(survey.store["evicted_keys"])


def _over_selected(recipe: Recipe) -> float:
    federation = recipe.federation
    if federation.mode == "buffered":
        return 0.0
    return federation.over_select / (federation.clients_per_round + federation.over_select)
