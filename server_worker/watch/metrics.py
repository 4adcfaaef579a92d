"""What a server counts: the engine's metrics have their names here, a method's come from its declaration. None has a
label for a client or a site, so their number has a bound.

Counters begin at 0 with the process. Gauges show the last round, after a restart too."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import Counter, Histogram, Info, Metric, Summary
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from broker_config.process.metrics import SECONDS, Registry, Traffic, gauges, is_known
from broker_config.process.version import software_version
from fedil_model.methods.interface import ACCEPTED, ClientValue, Display
from fedil_model.training.convergence import VERDICTS
from server_worker.run.recipe import Recipe
from server_worker.watch.events import STALE, ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.outcomes import REASONS, all_outcomes
from server_worker.watch.survey import Survey

LATE, DUPLICATE = "late", "duplicate"
OTHER_REASON = "other"
PHASES = ("server_step", "broadcast", "wait", "fold", "checkpoint", "evaluate")
_QUEUES = ("tasks", "updates", "dead_letters")
_VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
_RUNNING = "1 while this server leads the run or tries to; 0 while another leads it, and after the run."
Entry = tuple[str, str, tuple[str, str] | None, float | None]
"""Of a gauge: name, help text, label and its value, number"""
_CONVERGENCE = {
    "ratio": ("fedil_delta_theta_ratio", "Norm of the increment by the one before."),
    "moving_average": ("fedil_delta_theta_moving_average", "Mean norm of the last increments."),
    "relative": ("fedil_delta_theta_relative", "Norm of the increment by that of the model."),
    "lr_normalised": ("fedil_delta_theta_lr_normalized", "Norm of the increment by learning rate and steps."),
    "exponent": ("fedil_convergence_exponent", "Power of the round with which the increments shrink."),
}


class ServerMetrics(Watcher):
    def __init__(self, run: str, recipe: Recipe, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        display, federation = recipe.spec.display, recipe.federation
        registry = self._registry = Registry(run=run)
        Info("fedil_run", "Recipe, method, mode and version of the run.", registry=registry).info(
            {
                "recipe": recipe.name,
                "method": recipe.method.name,
                "mode": federation.mode,
                "version": software_version(),
            }
        )
        self.last = _LastRound(display, recipe.rounds)
        self._rounds = _Rounds(registry, display)
        self._answers = _Answers(registry, display, federation.mode == "buffered", recipe.client.epochs)
        text = "Bad messages by the site that sent them."
        self._refused_by_site = Counter("fedil_site_messages_refused", text, ["site"], registry=registry)
        for site in recipe.sites:
            self._refused_by_site.labels(site)
        self.fleet = _Fleet(recipe.split.clients, _over_selected(recipe))
        self.traffic = Traffic()
        for collector in (self.last, self.fleet, self.traffic):
            registry.register(collector)

    def render(self) -> bytes:
        return self._registry.render()

    def survey(self, survey: Survey) -> None:
        with self._registry.at_once:
            self.fleet.show(survey)

    def restore(self, record: RoundRecord) -> None:
        """A round that was closed before this process started: shown, and not counted again."""
        with self._registry.at_once:
            self.last.show(record)

    def run_started(self, first_round: int, rounds: int) -> None:
        with self._registry.at_once:
            self.last.round, self.last.planned = first_round - 1, rounds
            self._progress()

    def phase(self, _round_number: int, _name: str) -> None:
        self._progress()

    def update_arrived(
        self, round_number: int, outcome: ClientOutcome, _answered: int, _selected: int
    ) -> None:
        with self._registry.at_once:
            self._answers.count(round_number, outcome)
            self._progress()

    def round_closed(self, record: RoundRecord) -> None:
        with self._registry.at_once:
            self.last.show(record)
            self._rounds.count(record)
            self._answers.close(record)
            self._progress()

    def note(self, notice: Notice) -> None:
        if notice.num_refused:
            with self._registry.at_once:
                self._refused_by_site.labels(notice.site).inc(notice.num_refused)

    def _progress(self) -> None:
        self.last.running, self.last.progress = True, self._clock()


class _LastRound(Collector):
    """Gauges of the run and its last closed round."""

    def __init__(self, display: Display, planned: int) -> None:
        self._display = display
        self.running = True
        """Events set it to true as well."""
        self.progress: float | None = None
        self.round: int | None = None
        self.planned = planned
        self._record: RoundRecord | None = None
        self._accuracy: dict[str, float] = {}
        self._empty_rounds: int | None = None

    def show(self, record: RoundRecord) -> None:
        self.round, self.planned, self._record = record.round, record.rounds, record
        self._accuracy.update(record.accuracy)  # stays until it is measured again
        self._empty_rounds = 0 if record.accepted or not record.selected else (self._empty_rounds or 0) + 1

    def collect(self) -> Iterator[Metric]:
        return iter(gauges(self._entries()))

    def _entries(self) -> Iterator[Entry]:
        last, display = self._record, self._display
        yield "fedil_running", _RUNNING, None, self.running
        progress = "Time of the last phase, answer or round."
        yield "fedil_progress_timestamp_seconds", progress, None, self.progress
        yield "fedil_round", "The last closed round.", None, self.round
        yield "fedil_rounds_planned", "Number of rounds of the run.", None, self.planned
        empty = "Rounds in a row, up to the last, in which no update was accepted."
        yield "fedil_empty_rounds", empty, None, self._empty_rounds
        closed, norm = (last.finished_at or None, last.delta_norm) if last else (None, None)
        yield "fedil_round_closed_timestamp_seconds", "Time when the last round closed.", None, closed
        yield "fedil_delta_theta_norm", "Norm of the round's increment of the model.", None, norm
        for key, (name, text) in _CONVERGENCE.items():
            yield name, text, None, last.convergence.get(key) if last else None
        text = "1 for what the increments say of convergence."
        for verdict in VERDICTS:
            reached = verdict == last.verdict if last else None
            yield "fedil_convergence_verdict", text, ("verdict", verdict), reached
        text = "Share of right predictions on the test data, as last measured."
        for model in display.models:
            yield "fedil_accuracy", text, ("model", model.name), self._accuracy.get(model.name)
        for one, text in display.metrics():
            if one.source != "client_gain":
                yield one.metric_name, text, one.metric_label, last.series.get(one.name) if last else None


class _Rounds:
    """Counters of rounds."""

    def __init__(self, registry: Registry, display: Display) -> None:
        self._seconds = Histogram(
            "fedil_round_duration_seconds", "Duration of rounds.", buckets=SECONDS, registry=registry
        )
        text = "Duration of the phases of rounds; evaluate runs beside the next round."
        phases = Summary("fedil_phase_duration_seconds", text, ["phase"], registry=registry)
        self._phases = {phase: phases.labels(phase) for phase in PHASES}
        self._gains = {
            series.name: Counter(series.metric_name, text, registry=registry)
            for series, text in display.metrics()
            if series.source == "client_gain"
        }

    def count(self, record: RoundRecord) -> None:
        if is_known(total := record.seconds.get("total")):
            self._seconds.observe(total)
        for phase, summary in self._phases.items():
            if is_known(seconds := record.seconds.get(phase)):
                summary.observe(seconds)
        for name, counter in self._gains.items():
            if is_known(gain := record.series.get(name)) and gain > 0:
                counter.inc(gain)


class _Answers:
    """Counters of clients' answers, counted as they arrive. Missing ones are known when the round closes; its record
    may come while answers of the next round do."""

    def __init__(self, registry: Registry, display: Display, buffered: bool, epochs: int) -> None:
        self._buffered, self._epochs = buffered, epochs
        self._counted: dict[int, set[int]] = {}
        counter = partial(Counter, registry=registry)
        text = "Outcomes of the clients that were asked, and late and duplicate answers."
        updates = counter("fedil_updates", text, ["outcome"])
        text = "Messages that arrived and did not count, by reason."
        refused = counter("fedil_messages_refused", text, ["reason"])
        self._values = {value.name: _histogram(registry, value) for value in display.client_values}
        self._staleness = Histogram(
            "fedil_update_staleness",
            "By how many versions the model is older that an update started from.",
            buckets=_VERSIONS,
            registry=registry if buffered else None,
        )
        self._images = counter("fedil_images", "Images that clients trained on, times epochs.")
        self._used = counter("fedil_updates_used", "Updates that became part of a new model.")
        self._trained = {ACCEPTED, *(outcome.name for outcome in display.outcomes)}
        outcomes = (*(outcome.name for outcome in all_outcomes(display)), LATE, DUPLICATE)
        self._updates = {outcome: updates.labels(outcome) for outcome in outcomes}
        self._refused = {reason: refused.labels(reason) for reason in (*REASONS, OTHER_REASON)}

    def count(self, round_number: int, outcome: ClientOutcome) -> None:
        self._counted.setdefault(round_number, set()).add(outcome.client)
        if outcome.outcome in self._updates:
            self._updates[outcome.outcome].inc()
        for name, number in outcome.values.items():
            if name in self._values and is_known(number):
                self._values[name].observe(number)
        if outcome.outcome in self._trained:  # what an invalid update says of itself is not believed
            self._images.inc(outcome.num_samples * self._epochs)
            if outcome.staleness is not None:
                self._staleness.observe(outcome.staleness)
        if outcome.counts:
            self._used.inc()

    def close(self, record: RoundRecord) -> None:
        counted = self._counted.get(record.round, set())
        for outcome in record.outcomes:
            if outcome.client not in counted:
                self.count(record.round, outcome)
        self._counted = {number: some for number, some in self._counted.items() if number > record.round}
        for reason, count in record.refused.items():
            self._refused.get(reason, self._refused[OTHER_REASON]).inc(count)
        # In buffered mode stale is the outcome of a client before its late answer comes, and counts once.
        for name in (LATE, DUPLICATE) if self._buffered else (LATE, DUPLICATE, STALE):
            self._updates[name].inc(record.refused.get(name, 0))


class _Fleet(Collector):
    """Gauges of the last survey. What it did not find out is not shown."""

    def __init__(self, clients: int, over_selected: float) -> None:
        self._clients, self._over_selected = clients, over_selected
        self._survey = Survey()
        self._evicted: float | None = None
        self.reachable: bool | None = None
        """Of brokers; set by hand until a survey says it"""

    def show(self, survey: Survey) -> None:
        self._survey, self.reachable = survey, not survey.trouble
        self._evicted = survey.store.get("evicted_keys", self._evicted)

    def collect(self) -> Iterator[Metric]:
        yield from gauges(self._entries())
        yield CounterMetricFamily("fedil_store_evicted_keys", "Keys evicted by the store.", self._evicted)

    def _entries(self) -> Iterator[Entry]:
        survey = self._survey
        for queue in _QUEUES:
            depth = survey.depths.get(queue)
            yield "fedil_queue_messages", "Messages waiting at the broker.", ("queue", queue), depth
        workers, clients = (len(survey.workers), survey.clients_alive) if survey.depths else (None, None)
        yield "fedil_workers_alive", "Workers present.", None, workers
        yield "fedil_clients_alive", "Clients whose site has a worker.", None, clients
        yield "fedil_clients", "Clients of the run.", None, self._clients
        text = "Share of the clients asked that a round does not wait for."
        yield "fedil_over_selected_ratio", text, None, self._over_selected
        text = "1 if broker and store answered the last time."
        yield "fedil_brokers_reachable", text, None, self.reachable
        memory = survey.store.get("used_memory_bytes")
        yield "fedil_store_memory_bytes", "Memory that the store uses.", None, memory


def _histogram(registry: Registry, value: ClientValue) -> Histogram:
    steps = value.buckets or [value.low + (value.high - value.low) * tenth / 10 for tenth in range(11)]
    return Histogram(f"fedil_update_{value.name}", value.help, buckets=steps, registry=registry)


def _over_selected(recipe: Recipe) -> float:
    federation = recipe.federation
    if federation.mode == "buffered" or not federation.asked_per_round:
        return 0.0
    return federation.over_select / federation.asked_per_round
