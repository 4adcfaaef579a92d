"""A server's metrics: their names, and that they agree with the records of rounds."""

import ast
import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import updates_queue
from broker_config.protocol.messages import ModelEntry, TrainTask
from broker_config.protocol.wire import encode_message
from broker_config.transports.interface import ModelAddress
from broker_config.transports.memory.transport import MemoryTransport
from fedil_model.methods import find_method
from fedil_model.training.convergence import VERDICTS
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter, read_records
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.metrics import DUPLICATE, LATE, OTHER_REASON, PHASES, ServerMetrics
from server_worker.watch.notices import Notice
from server_worker.watch.outcomes import REASONS, all_outcomes
from server_worker.watch.survey import Survey
from server_worker.watch.watching import Watching
from tests.exposition import by_label, promtool_complaints, types, value, values
from tests.federation import RUN, SITE, Diary, Federation, blobs_recipe
from tests.unit.ops.records import make_record, write_history

GAUGE, COUNTER, HISTOGRAM, SUMMARY = "gauge", "counter", "histogram", "summary"
NAMES = {
    "fedil_run_info": GAUGE,
    "fedil_running": GAUGE,
    "fedil_round": GAUGE,
    "fedil_empty_rounds": GAUGE,
    "fedil_rounds_planned": GAUGE,
    "fedil_progress_timestamp_seconds": GAUGE,
    "fedil_round_closed_timestamp_seconds": GAUGE,
    "fedil_delta_theta_norm": GAUGE,
    "fedil_delta_theta_ratio": GAUGE,
    "fedil_delta_theta_moving_average": GAUGE,
    "fedil_delta_theta_relative": GAUGE,
    "fedil_delta_theta_lr_normalized": GAUGE,
    "fedil_reference_norm": GAUGE,
    "fedil_convergence_exponent": GAUGE,
    "fedil_convergence_verdict": GAUGE,
    "fedil_accuracy": GAUGE,
    "fedil_round_duration_seconds": HISTOGRAM,
    "fedil_phase_duration_seconds": SUMMARY,
    "fedil_updates_total": COUNTER,
    "fedil_updates_used_total": COUNTER,
    "fedil_messages_refused_total": COUNTER,
    "fedil_site_messages_refused_total": COUNTER,
    "fedil_update_cosine": HISTOGRAM,
    "fedil_update_excess_loss": HISTOGRAM,
    "fedil_update_movement_cosine": HISTOGRAM,
    "fedil_update_staleness": HISTOGRAM,
    "fedil_pseudo_labels": GAUGE,
    "fedil_credible_samples": GAUGE,
    "fedil_promoted_samples_total": COUNTER,
    "fedil_pseudo_label_purity": GAUGE,
    "fedil_loss": GAUGE,
    "fedil_sure_share": GAUGE,
    "fedil_images_total": COUNTER,
    "fedil_transport_bytes_total": COUNTER,
    "fedil_queue_messages": GAUGE,
    "fedil_workers_alive": GAUGE,
    "fedil_clients_alive": GAUGE,
    "fedil_clients": GAUGE,
    "fedil_over_selected_ratio": GAUGE,
    "fedil_store_memory_bytes": GAUGE,
    "fedil_store_evicted_keys_total": COUNTER,
    "fedil_brokers_reachable": GAUGE,
}
ROOT = Path(__file__).parents[3]
FEDIL = find_method("fedil").display
OUTCOMES = [outcome.name for outcome in all_outcomes(FEDIL)]


class Counted(Diary):
    """A diary that also feeds metrics."""

    def __init__(self, metrics: ServerMetrics, history: Path) -> None:
        super().__init__()
        self.metrics = metrics
        self.writer = HistoryWriter(history, metrics)

    def run_started(self, first_round: int, rounds: int) -> None:
        super().run_started(first_round, rounds)
        self.writer.run_started(first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        self.writer.phase(round_number, name)

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        super().update_arrived(round_number, outcome, answered, selected)
        self.writer.update_arrived(round_number, outcome, answered, selected)

    def round_closed(self, record: RoundRecord) -> None:
        super().round_closed(record)
        self.writer.round_closed(record)


def counted(recipe: Recipe, folder: Path) -> tuple[Federation, ServerMetrics]:
    metrics = ServerMetrics(RUN, recipe)
    return Federation(recipe, folder, diary=Counted(metrics, folder / "history.jsonl")), metrics


def buffered_recipe(**changes: Any) -> Recipe:
    federation = {"mode": "buffered", "in_flight": 4, "buffer_size": 2, "clients_per_round": 5}
    return blobs_recipe(federation=federation, **changes)


def outcome(client: int, **changes: Any) -> ClientOutcome:
    plain = ClientOutcome(
        client, "accepted", "", True, {"cosine": 0.5}, metrics={"loss_pseudo": 0.1}, num_samples=10
    )
    return dataclasses.replace(plain, **changes)


def closed(number: int = 1, *outcomes: ClientOutcome, **changes: Any) -> RoundRecord:
    return make_record(number, outcomes=outcomes, selected=len(outcomes), **changes)


def test_every_metric_is_there_once_and_no_other() -> None:
    shown = types(ServerMetrics("r", buffered_recipe()).render())
    assert {name: kind for name, kind in shown.items() if name.startswith("fedil_")} == NAMES
    in_rounds = types(ServerMetrics("r", blobs_recipe()).render())
    assert shown.keys() - in_rounds.keys() == {"fedil_update_staleness"}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= shown.keys()


def test_every_series_is_labelled_with_its_run_and_with_no_client_or_site(tmp_path: Path) -> None:
    federation, metrics = counted(blobs_recipe(), tmp_path)
    federation.play()
    names = [*NAMES, *(f"{name}_bucket" for name, kind in NAMES.items() if kind == HISTOGRAM)]
    text = metrics.render()
    runs = {dict(labels)["run"] for name in names for labels in values(text, name)}
    assert runs == {RUN}
    forbidden = {"client", "site", "worker"}
    # Only sites that have sent bad messages are in this one, and they are to be named.
    names.remove("fedil_site_messages_refused_total")
    assert not any(forbidden & dict(labels).keys() for name in names for labels in values(text, name))


@pytest.mark.parametrize("played", [False, True])
def test_promtool_finds_no_fault(tmp_path: Path, played: bool) -> None:
    federation, metrics = counted(blobs_recipe(), tmp_path)
    if played:
        federation.play()
        metrics.survey(Survey(1.0, ({},), 6, {"tasks": 1}, {"used_memory_bytes": 5, "evicted_keys": 1}))
        metrics.traffic.source = lambda: ({"model": 5}, {"update": 7})
    assert promtool_complaints(metrics.render()) == ""


def test_unknown_gauges_are_absent_and_counters_begin_at_zero() -> None:
    text = ServerMetrics("r", blobs_recipe()).render()
    for name in ("fedil_accuracy", "fedil_round", "fedil_delta_theta_norm", "fedil_workers_alive"):
        assert values(text, name) == {}
    assert by_label(text, "fedil_updates_total", "outcome") == dict.fromkeys(
        [*OUTCOMES, LATE, DUPLICATE], 0.0
    )
    assert set(by_label(text, "fedil_messages_refused_total", "reason")) == {*REASONS, OTHER_REASON}
    assert value(text, "fedil_running") == 1
    assert value(text, "fedil_clients") == 6
    about = {"recipe": "blobs", "method": "fedil", "mode": "rounds"}
    assert value(text, "fedil_run_info", **about) == 1
    assert b"nan" not in text.lower()


# ---- a played run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe", [blobs_recipe(rounds=4), buffered_recipe(rounds=5)], ids=["rounds", "buffered"]
)
def test_after_a_run_metrics_agree_with_its_records(tmp_path: Path, recipe: Recipe) -> None:
    federation, metrics = counted(recipe, tmp_path)
    misplaced = TrainTask(RUN, 1, 0, 1, ModelEntry(ModelAddress(RUN, 1, 0), "0" * 32), "{}")
    transport = MemoryTransport(federation.broker)
    transport.declare(updates_queue(RUN, SITE))
    for body in ([b"nonsense"], [b""], encode_message(misplaced)):
        transport.publish(updates_queue(RUN, SITE), body)
    transport.close()
    federation.play()
    text, records = metrics.render(), federation.diary.records
    assert len(records) == recipe.rounds
    assert_counters(text, records, recipe)
    assert_gauges(text, records[-1])
    assert sum(by_label(text, "fedil_messages_refused_total", "reason").values()) >= 3


def assert_counters(text: bytes, records: list[RoundRecord], recipe: Recipe) -> None:
    outcomes = [outcome for record in records for outcome in record.outcomes]
    updates = by_label(text, "fedil_updates_total", "outcome")
    assert {name: count for name, count in updates.items() if count} == Counter(o.outcome for o in outcomes)
    assert value(text, "fedil_updates_used_total") == sum(outcome.counts for outcome in outcomes)
    refused: Counter[str] = Counter()
    for record in records:
        refused.update(record.refused)
    shown = by_label(text, "fedil_messages_refused_total", "reason")
    assert {reason: count for reason, count in shown.items() if count} == refused
    assert value(text, "fedil_images_total") == recipe.client.epochs * sum(o.num_samples for o in outcomes)
    promoted = [record.series["promoted"] or 0 for record in records]
    assert value(text, "fedil_promoted_samples_total") == sum(promoted)
    cosines = [o.values["cosine"] for o in outcomes if "cosine" in o.values]
    assert value(text, "fedil_update_cosine_count") == len(cosines)
    assert value(text, "fedil_update_cosine_bucket", le="0.5") == sum(cosine <= 0.5 for cosine in cosines)
    ages = [o.staleness for o in outcomes if o.staleness is not None]
    assert value(text, "fedil_update_staleness_sum") == (sum(ages) if ages else None)
    assert value(text, "fedil_round_duration_seconds_count") == len(records)
    assert value(text, "fedil_round_duration_seconds_sum") == pytest.approx(
        sum(record.seconds["total"] for record in records)
    )
    for phase in PHASES:
        assert value(text, "fedil_phase_duration_seconds_sum", phase=phase) == pytest.approx(
            sum(record.seconds[phase] for record in records)
        )


def assert_gauges(text: bytes, record: RoundRecord) -> None:
    same = {
        "fedil_round": record.round,
        "fedil_rounds_planned": record.rounds,
        "fedil_round_closed_timestamp_seconds": record.finished_at,
        "fedil_delta_theta_norm": record.delta_norm,
        "fedil_reference_norm": record.series["reference_norm"],
        "fedil_delta_theta_ratio": record.convergence["ratio"],
        "fedil_delta_theta_moving_average": record.convergence["moving_average"],
        "fedil_delta_theta_relative": record.convergence["relative"],
        "fedil_delta_theta_lr_normalized": record.convergence["lr_normalised"],
        "fedil_convergence_exponent": record.convergence["exponent"],
        "fedil_pseudo_labels": record.series["pseudo_labels"],
        "fedil_credible_samples": record.series["credible"],
        "fedil_sure_share": record.series["sure_share"],
    }
    assert {name: value(text, name) for name in same} == same
    assert by_label(text, "fedil_accuracy", "model") == record.accuracy
    losses = {name[5:]: loss for name, loss in record.series.items() if name.startswith("loss_")}
    known = {term: loss for term, loss in losses.items() if loss is not None}
    assert by_label(text, "fedil_loss", "term") == known != {}
    verdicts = by_label(text, "fedil_convergence_verdict", "verdict")
    assert verdicts == {verdict: float(verdict == record.verdict) for verdict in VERDICTS}


def test_answers_count_as_they_arrive_and_missing_ones_when_the_round_closes() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    arrived = [outcome(0), outcome(1, outcome="rejected_cosine", values={"cosine": -0.4})]
    for number, one in enumerate(arrived, start=1):
        metrics.update_arrived(1, one, number, 3)
    assert value(metrics.render(), "fedil_updates_total", outcome="rejected_cosine") == 1
    # The record comes when it is evaluated, and the next round has begun by then.
    metrics.update_arrived(2, outcome(0), 1, 3)
    metrics.round_closed(closed(1, *arrived, ClientOutcome(2, "missing")))
    text = metrics.render()
    shown = by_label(text, "fedil_updates_total", "outcome")
    assert {name: count for name, count in shown.items() if count} == {
        "accepted": 2,
        "rejected_cosine": 1,
        "missing": 1,
    }
    assert value(text, "fedil_update_cosine_count") == 3
    metrics.round_closed(closed(2, outcome(0)))
    assert value(metrics.render(), "fedil_updates_total", outcome="accepted") == 2
    assert metrics._answers._counted == {}, "nothing is kept of closed rounds"


@pytest.mark.parametrize(("recipe", "stale"), [(blobs_recipe(), 5), (buffered_recipe(), 1)])
def test_late_and_duplicate_answers_count_besides_the_outcomes_of_clients(recipe: Recipe, stale: int) -> None:
    """In buffered mode a slow client is stale before its answer comes; both are one."""
    metrics = ServerMetrics("r", recipe)
    buffered = recipe.federation.mode == "buffered"
    gone = (ClientOutcome(1, "stale", staleness=5),) if buffered else ()
    refused = {"late": 2, "duplicate": 3, "stale": 5, "digest": 7, "what is this": 1, "and this": 1}
    metrics.round_closed(closed(1, outcome(0), *gone, refused=refused))
    text = metrics.render()
    updates = by_label(text, "fedil_updates_total", "outcome")
    assert (updates["late"], updates["duplicate"], updates["stale"]) == (2, 3, stale)
    shown = by_label(text, "fedil_messages_refused_total", "reason")
    expected = {"late": 2, "duplicate": 3, "stale": 5, "digest": 7, OTHER_REASON: 2}
    assert {reason: count for reason, count in shown.items() if count} == expected


def test_every_reason_for_which_a_message_is_refused_is_known() -> None:
    words = {"ledger_missing", "misplaced", "model_missing", "not_yours"}
    for path in [*(ROOT / "broker_config").rglob("*.py"), *(ROOT / "server_worker").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "MessageRejected":
                # All of `"this" if … else "that"`; a reason in a variable would go unseen.
                said = {p.value for p in ast.walk(node.args[0]) if isinstance(p, ast.Constant)}
                assert said or path.name == "errors.py", f"{path}:{node.lineno} takes its reason from a name"
                words |= {word for word in said if isinstance(word, str)}
            if isinstance(node, ast.FunctionDef) and "objection" in node.name:
                returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
                constants = [part for value in returned if value is not None for part in ast.walk(value)]
                words |= {
                    p.value for p in constants if isinstance(p, ast.Constant) and isinstance(p.value, str)
                }
    # "missing" is a key of a table that is looked up there.
    assert words - {"missing"} == set(REASONS)


# ---- after a restart ------------------------------------------------------------------------------------------


def test_after_a_restart_gauges_show_the_last_round_and_counters_begin_at_zero(tmp_path: Path) -> None:
    recipe = blobs_recipe(rounds=5, evaluate_every=2)
    where = RunDir(tmp_path)
    federation, _ = counted(recipe, tmp_path)
    federation.play()
    records = list(read_records(where.history))
    assert [bool(record.accuracy) for record in records] == [False, True, False, True, True]
    # As if the server had died before the last round was closed, and in the middle of a line.
    lines = where.history.read_text(encoding="utf-8").splitlines()[:3]
    where.history.write_text("\n".join([*lines, '{"round": 4, "rou']), encoding="utf-8")
    watch = Watching(RUN, recipe, where)
    assert values(watch.metrics.render(), "fedil_round") == {}
    watch.leading(("a", "b", "c", "d"), lambda: ({}, {}))
    text = watch.metrics.render()
    assert_gauges(text, dataclasses.replace(records[2], accuracy=records[1].accuracy))
    assert set(by_label(text, "fedil_updates_total", "outcome").values()) == {0}
    assert value(text, "fedil_round_duration_seconds_count") == 0
    watch.watcher.run_started(4, 5)
    assert value(watch.metrics.render(), "fedil_round") == 3
    watch.ended("done")
    assert value(watch.metrics.render(), "fedil_running") == 0


def test_rounds_that_are_repeated_are_not_shown_as_closed() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    metrics.restore(make_record(7))
    metrics.run_started(6, 9)
    text = metrics.render()
    assert (value(text, "fedil_round"), value(text, "fedil_rounds_planned")) == (5, 9)


def test_empty_rounds_in_a_row_are_counted_across_a_restart(tmp_path: Path) -> None:
    def empty(metrics: ServerMetrics) -> float | None:
        return value(metrics.render(), "fedil_empty_rounds")

    records = [
        make_record(number, accepted=accepted) for number, accepted in enumerate((0, 2, 0, 0, 0), start=1)
    ]
    metrics, counted = ServerMetrics("r", blobs_recipe()), []
    for record in records:
        metrics.round_closed(record)
        counted.append(empty(metrics))
    assert counted == [1, 0, 1, 2, 3]
    write_history(tmp_path, records)
    watch = Watching("r", blobs_recipe(evaluate_every=1), RunDir(tmp_path))
    watch.leading(("a", "b"), lambda: ({}, {}))
    assert empty(watch.metrics) == 3


# ---- now ------------------------------------------------------------------------------------------------------


def test_every_event_updates_the_time_of_progress() -> None:
    now = [100.0]
    metrics = ServerMetrics("r", blobs_recipe(), clock=lambda: now[0])

    def at() -> tuple[float | None, float | None]:
        text = metrics.render()
        return value(text, "fedil_progress_timestamp_seconds"), value(text, "fedil_running")

    assert at() == (None, 1)
    events: list[Callable[[], None]] = [
        lambda: metrics.phase(0, "pretrain"),
        lambda: metrics.run_started(1, 3),
        lambda: metrics.update_arrived(1, outcome(0), 1, 3),
        lambda: metrics.round_closed(closed(1, outcome(0))),
    ]
    for event in events:
        now[0] += 1.0
        event()
        assert at() == (now[0], 1)
    now[0] += 1.0
    metrics.note(Notice("nothing new"))
    metrics.last.running = False
    assert at() == (104.0, 0)


def test_a_survey_is_shown_as_far_as_it_is_known() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    health = {"used_memory_bytes": 5e6, "evicted_keys": 3}
    metrics.survey(Survey(1.0, ({}, {}), 4, {"tasks": 2, "dead_letters": 9}, health))
    text = metrics.render()
    assert by_label(text, "fedil_queue_messages", "queue") == {"tasks": 2, "dead_letters": 9}
    assert (value(text, "fedil_workers_alive"), value(text, "fedil_clients_alive")) == (2, 4)
    assert value(text, "fedil_store_memory_bytes") == 5e6
    assert value(text, "fedil_store_evicted_keys_total") == 3
    assert value(text, "fedil_brokers_reachable") == 1
    metrics.survey(Survey(2.0, (), 0, {}, {}, "no broker answers"))
    text = metrics.render()
    assert by_label(text, "fedil_queue_messages", "queue") == {}
    assert values(text, "fedil_store_memory_bytes") == {}
    assert value(text, "fedil_store_evicted_keys_total") == 3
    assert value(text, "fedil_brokers_reachable") == 0


def test_a_series_that_is_not_known_is_absent() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    metrics.round_closed(
        make_record(1, series={"purity_pseudo_labels": 0.9, "purity_credible": None, "credible": math.nan})
    )
    text = metrics.render()
    assert by_label(text, "fedil_pseudo_label_purity", "set") == {"pseudo_labels": 0.9}
    assert values(text, "fedil_credible_samples") == {}
    metrics.round_closed(make_record(2, series={}))
    assert values(metrics.render(), "fedil_pseudo_label_purity") == {}


def test_accuracy_stays_until_it_is_measured_again() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    metrics.round_closed(make_record(1, accuracy={"global": 0.7, "server": 0.6}))
    metrics.round_closed(make_record(2, accuracy={}))
    assert by_label(metrics.render(), "fedil_accuracy", "model") == {"global": 0.7, "server": 0.6}
