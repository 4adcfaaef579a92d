import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.protocol.errors import CheckpointDamaged, FedILError, LedgerMissing
from broker_config.protocol.messages import Refusal, Update
from broker_config.protocol.wire import decode_message, encode_message
from broker_config.transports.interface import Buffers, Delivery, ModelAddress
from broker_config.transports.memory.transport import MemoryTransport
from fedil_model.training.flat_model import Weights
from server_worker.coordinator import Stopped
from server_worker.round.evaluation import Evaluation
from server_worker.run.checkpoint import Checkpoint
from tests.federation import RUN, SITE, Diary, Federation, blobs_recipe, working
from tests.memory_store import new_store
from tests.serving import Clock

QUEUE = updates_queue(RUN, SITE)


def fake_update(**changes: object) -> Update:
    """An honest-looking answer of a client selected in round 1; `changes` make it bad."""
    delta = np.zeros(1, np.float32)
    base = Update(RUN, 1, 0, 1, 1, 10, 2, {"delta.params": delta, "delta.buffers": delta[:0]})
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def publish(federation: Federation, body: Buffers) -> None:
    transport = MemoryTransport(federation.broker)
    transport.declare(QUEUE)
    transport.publish(QUEUE, body)
    transport.close()


def dead_letter_reasons(federation: Federation) -> list[str | None]:
    transport, reasons = MemoryTransport(federation.broker), []
    while (delivery := transport.receive(DEAD_LETTERS, 0.0)) is not None:
        reasons.append(delivery.reason)
        delivery.acknowledge()
    return reasons


def test_a_run_learns_and_explains_every_client(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=4), tmp_path)
    progress = federation.play()
    assert progress is not None
    assert progress.round == 4
    assert [record.round for record in federation.diary.records] == [1, 2, 3, 4]
    for record in federation.diary.records:
        assert len(record.outcomes) == record.selected == 3
        assert record.accepted == sum(outcome.outcome == "accepted" for outcome in record.outcomes)
    assert (federation.diary.records[-1].series["pseudo_labels"] or 0) > 0
    assert progress.activations == tuple(
        sum(outcome.client == client for r in federation.diary.records for outcome in r.outcomes)
        for client in range(6)
    )


def test_the_same_recipe_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    runs = [Federation(blobs_recipe(seed=seed), tmp_path / str(n)) for n, seed in enumerate((0, 0, 1))]
    for run in runs:
        run.play()
    assert runs[0].fingerprint() == runs[1].fingerprint()
    assert runs[0].fingerprint()[0] != runs[2].fingerprint()[0]


@pytest.mark.parametrize("moment", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_a_run_stopped_at_any_moment_resumes_to_the_same_bits(
    tmp_path: Path, moment: tuple[int, int]
) -> None:
    undisturbed = Federation(blobs_recipe(), tmp_path / "undisturbed")
    undisturbed.play()

    stopped = Federation(blobs_recipe(), tmp_path / "stopped")
    stopped.diary.on_update = lambda number, answered: (
        stopped.stop.set() if (number, answered) == moment else None
    )
    first = stopped.play()
    # A new broker: everything that was in a queue is gone, as when the machine died.
    resumed = Federation(blobs_recipe(), tmp_path / "stopped")
    resumed.play()
    assert first is None or moment[0] == 3
    assert resumed.fingerprint() == undisturbed.fingerprint()


def test_a_restarted_server_counts_the_updates_that_wait_in_the_queue_once(tmp_path: Path) -> None:
    undisturbed = Federation(blobs_recipe(), tmp_path / "undisturbed")
    undisturbed.play()
    first = Federation(blobs_recipe(), tmp_path / "stopped")
    first.diary.on_update = lambda number, answered: (
        first.stop.set() if (number, answered) == (2, 2) else None
    )
    assert first.play() is None
    # The broker lives on, with the round's unacknowledged updates in it.
    second = Federation(blobs_recipe(), tmp_path / "stopped", broker=first.broker)
    second.play()
    assert second.fingerprint() == undisturbed.fingerprint()
    # Who had answered was not asked again.
    assert not any(note.endswith(("duplicate", "late")) for note in second.diary.notes)


def test_garbage_on_the_update_queue_is_dead_lettered_and_changes_nothing(tmp_path: Path) -> None:
    clean = Federation(blobs_recipe(), tmp_path / "clean")
    clean.play()
    federation = Federation(blobs_recipe(), tmp_path / "dirty")
    whole = b"".join(encode_message(fake_update()))
    publish(federation, [b"hello"])
    publish(federation, [whole[:-3]])
    publish(federation, [whole[:40] + b"\xff" + whole[41:]])
    publish(federation, encode_message(fake_update(run="another")))
    publish(federation, encode_message(fake_update(round=7)))
    publish(federation, encode_message(fake_update(client=99)))
    federation.play()
    assert federation.fingerprint() == clean.fingerprint()
    reasons = dead_letter_reasons(federation)
    assert len(reasons) == 6
    assert {"other_run", "not_asked"} <= set(reasons)
    assert sum("message refused" in note for note in federation.diary.notes) == 6


@pytest.mark.parametrize(
    ("tensors", "detail"),
    [
        ({"delta.params": np.zeros(3, np.float32), "delta.buffers": np.zeros(0, np.float32)}, "parameters"),
        ({"weights": np.zeros(3, np.float32)}, "instead of"),
        ({"delta.params": np.zeros(3, np.float64), "delta.buffers": np.zeros(0, np.float32)}, "float32"),
        (
            {"delta.params": np.zeros(2000, np.int8), "delta.params:scales": np.zeros(1, np.float32)},
            "1 scales",
        ),
        ({"delta.params": np.zeros(1 << 24, np.int8)}, "more than"),
    ],
)
def test_an_update_that_does_not_fit_is_invalid_and_says_why(
    tmp_path: Path, tensors: dict[str, np.ndarray], detail: str
) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    client = federation.coordinator()._dispatcher.select(1)[0]
    bad = fake_update(client=client, num_samples=federation.split.held[client], tensors=tensors)
    publish(federation, encode_message(bad))
    federation.play()
    outcome = next(o for o in federation.diary.records[0].outcomes if o.client == client)
    assert outcome.outcome == "invalid"
    assert detail in outcome.detail


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_poison_never_reaches_the_global_model(tmp_path: Path, poison: float) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    client = federation.coordinator()._dispatcher.select(1)[0]
    coordinator = federation.coordinator()
    size = coordinator._method.initial_state(coordinator._labelled)["global.params"].numel()
    delta = np.full(size, poison, np.float32)
    tensors = {"delta.params": delta, "delta.buffers": np.zeros(0, np.float32)}
    bad = fake_update(client=client, num_samples=federation.split.held[client], tensors=tensors)
    publish(federation, encode_message(bad))
    progress = federation.play()
    assert progress is not None
    assert bool(torch.isfinite(progress.state["global.params"]).all())
    outcome = next(o for o in federation.diary.records[0].outcomes if o.client == client)
    assert outcome.outcome == "invalid"
    assert "num_samples" not in outcome.detail


def answer_by_hand(federation: Federation, answers: Sequence[Update | Refusal]) -> None:
    """No worker: these arrive once the clients were asked."""

    def phase(number: int, name: str) -> None:
        if name == "wait":
            for answer in answers:
                publish(federation, encode_message(answer))

    federation.diary.phase = phase  # type: ignore[method-assign, assignment]


def test_a_refusal_is_recorded_with_its_reason(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=1, split={"clients": 3}), tmp_path)
    first, *others = federation.coordinator()._dispatcher.select(1)
    refusal = Refusal(RUN, 1, first, 1, "NumericError", "it diverged")
    answer_by_hand(federation, [refusal, *(fake_update(client=client) for client in others)])
    federation.coordinator().run()
    outcome = federation.diary.records[0].outcomes[0]
    assert (outcome.client, outcome.outcome) == (first, "refused")
    assert "it diverged" in outcome.detail


def test_who_refused_a_server_that_then_died_is_asked_again(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    client = federation.coordinator()._dispatcher.select(1)[0]
    publish(federation, encode_message(Refusal(RUN, 1, client, 1, "DataError", "no shards")))
    federation.play()
    assert federation.diary.records[0].outcomes[0].outcome == "accepted"


def test_refusals_do_not_fill_a_round_while_others_are_still_at_work(tmp_path: Path) -> None:
    federation = Federation(
        blobs_recipe(rounds=1, split={"clients": 4}, federation={"clients_per_round": 2, "over_select": 2}),
        tmp_path,
    )
    asked = federation.coordinator()._dispatcher.select(1)
    refusals = [Refusal(RUN, 1, client, 1, "DataError", "no shards") for client in asked[:2]]
    answer_by_hand(federation, [*refusals, *(fake_update(client=client) for client in asked[2:])])
    federation.coordinator().run()
    outcomes = [outcome.outcome for outcome in federation.diary.records[0].outcomes]
    assert outcomes == ["refused", "refused", "invalid", "invalid"]


def test_a_run_that_has_begun_elsewhere_is_not_begun_again(tmp_path: Path) -> None:
    first = Federation(blobs_recipe(rounds=1), tmp_path / "first")
    first.play()
    second = Federation(blobs_recipe(rounds=1), tmp_path / "second")
    second.store = first.store
    with pytest.raises(FedILError, match="has begun elsewhere"):
        second.coordinator().run()


def test_a_store_that_loses_everything_in_the_middle_of_a_run_ends_it_by_name(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=4, split={"clients": 3}), tmp_path)
    emptied = new_store()

    def forget(number: int, answered: int) -> None:
        if (number, answered) == (1, 3):
            federation.store.read = emptied.read  # type: ignore[method-assign]

    federation.diary.on_update = forget
    with pytest.raises(LedgerMissing, match="was committed and is gone"):
        federation.play()


def test_when_every_client_refuses_the_run_ends_with_their_reason(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(client={"lr": 1e30, "clip_norm": 0.0}), tmp_path)
    with pytest.raises(FedILError, match=r"every client refused.*client\.lr"):
        federation.play()


def test_without_a_quorum_at_the_deadline_the_run_ends_and_says_what_to_do(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(federation={"deadline_seconds": 0.3}), tmp_path)
    with pytest.raises(FedILError, match="start more workers"):
        federation.coordinator().run()


def test_a_late_update_is_named_and_not_counted(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(), tmp_path)
    federation.diary.on_update = lambda number, answered: (
        publish(federation, encode_message(fake_update(client=0))) if (number, answered) == (2, 1) else None
    )
    federation.play()
    assert any(note == "round 1, client 0: late" for note in federation.diary.notes)
    assert dead_letter_reasons(federation) == []


def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path: Path) -> None:
    Federation(blobs_recipe(), tmp_path).play()
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    body = bytearray(newest.read_bytes())
    body[len(body) // 2] ^= 1
    newest.write_bytes(body)
    with pytest.raises(CheckpointDamaged, match=rf"{newest.name}.*delete it to continue from round-00000002"):
        Federation(blobs_recipe(), tmp_path).play()


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    Federation(blobs_recipe(rounds=1), tmp_path).play()
    with pytest.raises(CheckpointDamaged, match="another recipe"):
        Federation(blobs_recipe(rounds=1, client={"lr": 0.5}), tmp_path).play()


def test_more_rounds_can_be_added_to_a_finished_run(tmp_path: Path) -> None:
    Federation(blobs_recipe(rounds=2), tmp_path / "a").play()
    longer = Federation(blobs_recipe(rounds=3), tmp_path / "a")
    longer.play()
    straight = Federation(blobs_recipe(rounds=3), tmp_path / "b")
    straight.play()
    assert longer.fingerprint() == straight.fingerprint()


def test_the_model_log_is_written_once_a_round_however_many_clients_there_are(tmp_path: Path) -> None:
    federation, versions = Federation(blobs_recipe(), tmp_path), []
    transport = MemoryTransport(federation.broker)
    append = transport.append_model

    def counted(run: str, version: int, body: Buffers, *more: Any) -> ModelAddress:
        versions.append(version)
        return append(run, version, body, *more)

    transport.append_model = counted  # type: ignore[method-assign, assignment]
    with working(federation.broker, federation.participant()):
        federation.coordinator(transport).run()
    assert versions == [1, 2, 3]


def test_each_selected_client_gets_one_small_task(
    tmp_path: Path,
) -> None:
    federation = Federation(blobs_recipe(federation={"deadline_seconds": 0.2}), tmp_path)
    with pytest.raises(FedILError):
        federation.coordinator().run()
    transport, clients = MemoryTransport(federation.broker), []
    while (delivery := transport.receive(tasks_queue(SITE), 0.0)) is not None:
        task = decode_message(delivery.body)
        assert len(delivery.body) < 4096
        clients.append(task.client)
    assert sorted(clients) == sorted(federation.coordinator()._dispatcher.select(1))


def test_stopped_before_anything_is_worth_keeping_it_leaves_nothing_half_done(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(), tmp_path, diary=Diary())
    federation.stop.set()
    with pytest.raises(Stopped):
        federation.coordinator().run()
    assert not (tmp_path / "checkpoints").exists()


def test_a_task_that_became_a_dead_letter_is_not_waited_for(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    poisoned = federation.coordinator()._dispatcher.select(1)[1]
    participant = federation.participant()
    handle = participant._handle

    def die_of_it(delivery: Delivery) -> None:
        task = decode_message(delivery.body)
        if task.client == poisoned:
            delivery.reject("delivery_limit")
        else:
            handle(delivery)

    participant._handle = die_of_it  # type: ignore[method-assign]
    with working(federation.broker, participant):
        federation.coordinator().run()
    (outcome,) = [o for o in federation.diary.records[0].outcomes if o.client == poisoned]
    assert outcome.outcome == "refused"
    assert "dead letter (delivery_limit)" in outcome.detail
    others = [o.outcome for o in federation.diary.records[0].outcomes if o.client != poisoned]
    assert len(others) == 3  # somebody else was asked as well
    assert set(others) <= {"accepted", "rejected_cosine"}
    assert dead_letter_reasons(federation) == ["delivery_limit"]


def test_an_update_without_the_usual_metrics_or_with_absurd_ones_does_not_stop_the_server(
    tmp_path: Path,
) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    first, second, _ = federation.coordinator()._dispatcher.select(1)
    bad = {"delta.params": np.zeros(3, np.float32), "delta.buffers": np.zeros(0, np.float32)}
    for client, metrics, steps in ((first, {"pseudo_labels": 1.0}, 5), (second, {}, 2**62)):
        update = fake_update(client=client, metrics=metrics, num_steps=steps, tensors=bad)
        publish(federation, encode_message(update))
    assert federation.play() is not None
    found = {o.client: o.outcome for o in federation.diary.records[0].outcomes}
    assert (found[first], found[second]) == ("invalid", "invalid")


def test_a_record_is_out_before_the_next_checkpoint_forgets_it(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(), tmp_path)
    coordinator = federation.coordinator()
    submitted: list[Future[Evaluation]] = []

    class Late(Future[Evaluation]):
        """Never done before somebody waits for it"""

        def result(self, timeout: float | None = None) -> Evaluation:
            return Evaluation()

    def evaluate_late(models: Mapping[str, Weights]) -> "Future[Evaluation]":
        submitted.append(Late())
        return submitted[-1]

    save, seen = coordinator._context.checkpoints.save, []

    def watch(checkpoint: Checkpoint) -> None:
        seen.append((checkpoint.round, [record.round for record in federation.diary.records]))
        save(checkpoint)

    around = dataclasses.replace(coordinator._context, evaluate=evaluate_late)
    around.checkpoints.save = watch  # type: ignore[method-assign]
    coordinator._reporter._context = around  # it is the one that asks the evaluator

    with working(federation.broker, federation.participant()):
        coordinator.run()
    assert len(submitted) == 3
    assert seen == [(0, []), (1, []), (2, [1]), (3, [1, 2])]


def test_a_bug_in_a_users_network_at_the_server_is_one_clear_error(tmp_path: Path) -> None:
    name = "tests.unit.client_worker.test_participant:broken"
    with pytest.raises(FedILError, match="pre-training failed: RuntimeError: a bug in the user's network"):
        Federation(blobs_recipe(network={"name": name}), tmp_path).play()


def test_a_run_can_be_resumed_with_a_longer_deadline_but_not_under_another_name(tmp_path: Path) -> None:
    Federation(blobs_recipe(rounds=1), tmp_path).play()
    longer = blobs_recipe(rounds=2, federation={"deadline_seconds": 77.0, "quorum": 0.5})
    assert Federation(longer, tmp_path).play() is not None
    with pytest.raises(CheckpointDamaged, match="another recipe"):
        Federation(blobs_recipe(rounds=2, name="other"), tmp_path).play()


def test_a_quorum_closes_the_round_at_the_deadline_and_names_who_is_missing(tmp_path: Path) -> None:
    recipe = blobs_recipe(rounds=1, federation={"deadline_seconds": 3.0, "quorum": 0.3})
    clock = Clock()
    federation = Federation(recipe, tmp_path, clock=clock)
    federation.diary.on_update = lambda *_: setattr(clock, "now", 4.0)  # later than the deadline
    alone, *silent = federation.coordinator()._dispatcher.select(1)
    participant = federation.participant()
    handle = participant._handle

    def ignore_others(delivery: Delivery) -> None:
        if decode_message(delivery.body).client == alone:
            handle(delivery)

    participant._handle = ignore_others  # type: ignore[method-assign]
    with working(federation.broker, participant):
        federation.coordinator().run()
    outcomes = {o.client: o.outcome for o in federation.diary.records[0].outcomes}
    assert outcomes.pop(alone) in ("accepted", "rejected_cosine")
    assert outcomes == dict.fromkeys(silent, "missing")


def test_a_client_whose_ledger_its_site_has_spoilt_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=2), tmp_path)
    client = federation.coordinator()._dispatcher.select(1)[0]
    federation.store.open_activation(RUN, client, 10**6)
    assert federation.play() is not None
    outcome = next(o for o in federation.diary.records[0].outcomes if o.client == client)
    assert (outcome.outcome, outcome.detail.partition(":")[0]) == ("refused", "LedgerFenced")
