"""Somebody deletes what a run needs at its broker: clients are asked again, and the run has the bits that it would
have had. (Over RabbitMQ: tests/integration/test_deleted_queue.py.)"""

from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import models_queue, updates_queue
from broker_config.protocol.messages import Refusal, TrainTask
from client_worker.participant import Participant
from server_worker.round.selection import select_clients
from server_worker.run.checkpoint import CheckpointFolder
from tests.federation import RUN, SITE, Federation, Hands, blobs_recipe, working
from tests.serving import served

BUFFERED = {"mode": "buffered", "in_flight": 3, "buffer_size": 3}
IN_BOTH_MODES = pytest.mark.parametrize("mode", [{}, BUFFERED], ids=["rounds", "buffered"])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("round", "buffered"):
        monkeypatch.setattr(f"server_worker.{mode}.loop.QUIET_SECONDS", 0.1)
        monkeypatch.setattr(f"server_worker.{mode}.loop.POLL_SECONDS", 0.05)


def forgetful(federation: Federation) -> Participant:
    """A worker that looks into the log for every task, as many workers would that have one each."""
    participant = federation.participant()
    trainer, train = participant._trainer, participant._trainer.train

    def forget_and_train(task: TrainTask) -> Any:
        trainer._model = trainer._broadcast = None
        return train(task)

    trainer.train = forget_and_train  # type: ignore[method-assign]
    return participant


def lacks_its_model(hands: Hands, task: TrainTask) -> None:
    hands.send(Refusal(task.run, task.round, task.client, task.activation, "ModelMissing", "it is not there"))
    hands.settle(task)


@IN_BOTH_MODES
def test_a_run_without_updates_queue_and_model_log_makes_both_again(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    federation = Federation(blobs_recipe(federation=mode), tmp_path / "disturbed")
    gone: list[int] = []

    def retire(number: int, answered: int) -> None:
        if (number, answered) == (2, 1) and not gone:
            gone.append(number)
            federation.connect().retire(RUN, [SITE])

    federation.diary.on_update = retire
    transport = federation.connect()
    with working(federation.broker, forgetful(federation)):
        assert federation.coordinator(transport).run().round == 3
    assert gone
    for queue in (updates_queue(RUN, SITE), models_queue(RUN)):
        assert [note for note in federation.diary.notes if f"{queue} was deleted" in note]
    assert {o.outcome for r in federation.diary.records for o in r.outcomes} <= {
        "accepted",
        "rejected_cosine",
    }
    if not mode:  # in buffered mode the order of answers decides
        undisturbed = Federation(federation.recipe, tmp_path / "undisturbed")
        undisturbed.play()
        assert federation.fingerprint() == undisturbed.fingerprint()


@IN_BOTH_MODES
def test_who_does_not_find_its_model_is_asked_again_once(tmp_path: Path, mode: dict[str, Any]) -> None:
    federation = Federation(blobs_recipe(rounds=1, federation=mode), tmp_path)
    with served(federation) as (server, hands):
        first, *others = hands.take(3)
        lacks_its_model(hands, first)
        (again,) = hands.take(1)
        assert (again.client, again.activation) == (first.client, first.activation)
        lacks_its_model(hands, again)
        for task in others:
            hands.answer(task)
        (instead,) = hands.take(1)
        assert instead.client != first.client
        hands.answer(instead)
        assert server.end() is not None
    (record,) = federation.diary.records
    assert [o.outcome for o in record.outcomes if o.client == first.client] == ["refused"]
    assert record.accepted + [o.outcome for o in record.outcomes].count("rejected_cosine") == 3
    assert record.refused == {"model_missing": 1}


def test_a_refusal_in_a_clients_place_that_finds_no_queue_ends_no_run(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(), tmp_path)
    fenced = select_clients(federation.recipe.seed, 2, range(6), 3)[0]

    def delete(round_number: int, name: str) -> None:
        if (round_number, name) == (2, "broadcast"):
            del federation.broker.queues[updates_queue(RUN, SITE)]
            federation.store.open_activation(RUN, fenced, 99)

    federation.diary.phase = delete  # type: ignore[method-assign]
    assert federation.play() is not None
    outcomes = {o.client: o.outcome for o in federation.diary.records[1].outcomes}
    assert outcomes[fenced] == "refused"


@pytest.mark.parametrize("continues", [True, False])
def test_only_what_continues_a_checkpoints_selection_is_believed(tmp_path: Path, continues: bool) -> None:
    """Somebody may have gone back to an older checkpoint, and what was written down then is of another life."""
    recipe = blobs_recipe(rounds=4)
    first = Federation(recipe, tmp_path)
    first.diary.on_update = lambda number, _: first.stop.set() if number == 3 else None
    assert first.play() is None
    folder = CheckpointFolder(tmp_path / "checkpoints")
    saved = folder.latest()
    assert saved is not None
    selected = tuple(saved.meta["selection"])
    others = tuple(client for client in range(6) if client not in selected)
    written = (*selected, others[0]) if continues else others
    folder.save_journal({"version": saved.round + 1, "selection": list(written)})
    second = Federation(recipe, tmp_path, first.broker)
    assert second.play() is not None
    asked = tuple(outcome.client for outcome in second.diary.records[-2].outcomes)
    assert asked == tuple(sorted(written if continues else selected))
