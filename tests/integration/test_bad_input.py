"""Bad input over real RabbitMQ and Redis: it is named, counted and put aside, and the run ends as a clean one does."""

import dataclasses
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from broker_config.protocol.messages import Message, ModelEntry, Refusal, TrainTask, Update
from broker_config.protocol.wire import encode_arrays, encode_message
from broker_config.transports.interface import ModelAddress
from fedil_model.methods import find_method
from server_worker.round.validation import ENGINE_METRICS
from server_worker.watch.events import ClientOutcome, RoundRecord
from tests.federation import SOON, Federation, Hands, Over, OverBrokers, apart, blobs_recipe
from tests.services import Service


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """θ′ and ledgers of an undisturbed run."""
    federation = Federation(blobs_recipe(), tmp_path_factory.mktemp("clean"))
    federation.play()
    return federation.digests()


# What is put aside at once


def body_of(message: Message) -> bytes:
    return b"".join(encode_message(message))


def raw(kind: str, fields: Mapping[str, object]) -> bytes:
    """Whole and with the right digest, whatever the fields are."""
    return b"".join(encode_arrays(kind, fields, {}))


def changed(body: bytes, at: int, to: bytes) -> bytes:
    return body[:at] + to + body[at + len(to) :]


def task_like(update: Update) -> TrainTask:
    """As if the client's own task had strayed."""
    address = ModelAddress(update.run, update.round, 0)
    return TrainTask(
        update.run, update.round, update.client, update.activation, ModelEntry(address, "0" * 32), "{}"
    )


def fields_of(update: Update, **changes: object) -> dict[str, object]:
    fields = {name: value for name, value in vars(update).items() if name != "tensors"}
    return fields | {"metrics": dict(update.metrics)} | changes


REFUSED: dict[str, tuple[str, Callable[[Update], bytes]]] = {
    "garbage": ("not_fedil", lambda _: b"hello"),
    "nothing": ("not_fedil", lambda _: b""),
    "a pickle": ("not_fedil", lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "a format of the future": ("unknown_version", lambda u: changed(body_of(u), 6, struct.pack("<H", 9))),
    "cut short": ("truncated", lambda u: body_of(u)[:-3]),
    "too long": ("trailing_bytes", lambda u: body_of(u) + b"more"),
    "a flipped bit": ("digest", lambda u: changed(body_of(u), 200, bytes([body_of(u)[200] ^ 1]))),
    "a field that nobody knows": ("schema", lambda u: raw("Update", fields_of(u, admin=True))),
    "a field that is missing": ("schema", lambda u: raw("Update", {"run": u.run})),
    "a metric that is no number": ("schema", lambda u: raw("Update", fields_of(u, metrics={"x": np.nan}))),
    "a refusal of a megabyte": (
        "schema",
        lambda u: raw("Refusal", {**vars(refusal_of(u)), "detail": "x" * 2**20}),
    ),
    "a model": ("wrong_kind", lambda _: raw("model", {})),
    "a task": ("misplaced", lambda u: body_of(task_like(u))),
    "another run's": ("other_run", lambda u: body_of(dataclasses.replace(u, run="another"))),
    "of a client that does not exist": ("not_asked", lambda u: body_of(dataclasses.replace(u, client=99))),
    "of a client that was not asked": (
        "not_asked",
        lambda u: body_of(dataclasses.replace(u, client=unasked())),
    ),
    "of a round to come": ("not_asked", lambda u: body_of(dataclasses.replace(u, round=7))),
    "of another activation": ("not_asked", lambda u: body_of(dataclasses.replace(u, activation=2))),
    "from a model that nobody sent": ("not_asked", lambda u: body_of(dataclasses.replace(u, base_version=7))),
}


def refusal_of(update: Update, detail: str = "no") -> Refusal:
    return Refusal(update.run, update.round, update.client, update.activation, "reason", detail)


def unasked() -> int:
    """Of six clients, one that round 1 leaves out."""
    from server_worker.round.selection import select_clients

    return next(c for c in range(6) if c not in select_clients(blobs_recipe().seed, 1, range(6), 3))


@dataclass(frozen=True)
class Seen:
    """What a run made of all of REFUSED, a repeat and a replay."""

    bodies: Mapping[str, bytes]
    digests: tuple[str, str]
    notes: list[str]
    records: list[RoundRecord]
    dead: Mapping[bytes, str | None]
    repeated: Update


@pytest.fixture(scope="module")
def seen(rabbitmq: Service, redis: Service, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    place, recipe = tmp_path_factory.mktemp("dirty"), apart(blobs_recipe())
    with OverBrokers(recipe, place, broker_url=rabbitmq.url, store_url=redis.url) as federation:
        hands = Hands(federation)
        hands.dead_letters()  # others may have left some
        server = federation.serve()
        first, *others = hands.take(3)
        update = hands.train(first)
        bodies = {name: make(update) for name, (_, make) in REFUSED.items()}
        for body in bodies.values():
            hands.post([body])
        hands.answer(first)
        hands.send(update)
        for task in others:
            hands.answer(task)
        tasks = hands.take(3)
        hands.send(update)
        for task in tasks:
            hands.answer(task)
        for task in hands.take(3):
            hands.answer(task)
        outcome = server.result(SOON)
        return Seen(
            bodies=bodies,
            digests=(outcome.model_digest, outcome.ledger_digest),
            notes=federation.diary.notes,
            records=federation.diary.records,
            dead=hands.dead_letters(),
            repeated=update,
        )


def test_bad_messages_change_no_bit(seen: Seen, clean: tuple[str, str]) -> None:
    assert seen.digests == clean


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_message_is_dead_lettered_and_noted_by_its_reason(seen: Seen, name: str) -> None:
    reason, body = REFUSED[name][0], seen.bodies[name]
    assert seen.dead[body] == reason
    assert any(note.startswith(f"message refused ({reason}): ") for note in seen.notes)


def test_every_message_that_did_not_count_is_counted_in_its_round(seen: Seen) -> None:
    reasons = Counter(reason for reason, _ in REFUSED.values())
    assert seen.records[0].refused == {**reasons, "duplicate": 1}
    assert seen.records[1].refused == {"late": 1}
    assert seen.records[2].refused == {}


def test_a_repeat_and_a_replay_are_noted_and_not_kept(seen: Seen) -> None:
    client = seen.repeated.client
    assert f"round 1, client {client}: duplicate" in seen.notes
    assert f"round 1, client {client}: late" in seen.notes
    assert body_of(seen.repeated) not in seen.dead


# What can be read and must not reach θ′


def with_delta(update: Update, delta: np.ndarray, **more: np.ndarray) -> Update:
    tensors = {"delta.params": delta, "delta.buffers": update.tensors["delta.buffers"]} | more
    return dataclasses.replace(update, tensors=tensors)


def with_one(update: Update, value: float) -> Update:
    delta = update.tensors["delta.params"].copy()
    delta[len(delta) // 2] = value
    return with_delta(update, delta)


INVALID: dict[str, tuple[str, Callable[[Update], Update]]] = {
    "NaN": ("not finite", lambda u: with_one(u, np.nan)),
    "infinity": ("not finite", lambda u: with_one(u, np.inf)),
    "a millionfold norm": ("exceeds", lambda u: with_delta(u, u.tensors["delta.params"] * np.float32(1e6))),
    "too short": ("parameters", lambda u: with_delta(u, u.tensors["delta.params"][:-1])),
    "another type": ("float32", lambda u: with_delta(u, u.tensors["delta.params"].astype(np.float64))),
    "another shape": ("float32", lambda u: with_delta(u, u.tensors["delta.params"][None])),
    "another tensor": ("instead of", lambda u: with_delta(u, u.tensors["delta.params"], more=np.ones(3))),
    "no step": ("num_steps is 0", lambda u: dataclasses.replace(u, num_steps=0)),
    "more steps than its samples make": (
        "num_steps is",
        lambda u: dataclasses.replace(u, num_steps=u.num_steps + 1),
    ),
    "a million million million steps": ("num_steps is", lambda u: dataclasses.replace(u, num_steps=10**18)),
    "no samples": ("num_samples is 0", lambda u: dataclasses.replace(u, num_samples=0)),
    "all the samples in the world": (
        "num_samples is",
        lambda u: dataclasses.replace(u, num_samples=2**63 - 1, num_steps=2**62),
    ),
}


def play_with(
    federation: OverBrokers, change: Callable[[int, Update], Message]
) -> tuple[str, dict[int, ClientOutcome]]:
    """One round of which the n-th answer is changed: θ′ and what became of the clients, by n."""
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(federation.recipe.federation.clients_per_round)
    for number, task in enumerate(tasks):
        hands.send(change(number, hands.train(task)))
        hands.settle(task)
    digest = server.result(SOON).model_digest
    found = {outcome.client: outcome for outcome in federation.diary.records[0].outcomes}
    return digest, {number: found[task.client] for number, task in enumerate(tasks)}


def test_updates_that_are_none_are_invalid_and_the_model_is_as_if_they_had_refused(over: Over) -> None:
    cases = list(INVALID.values())
    many = len(cases) + 3
    everybody = {"split": {"labelled": 20, "clients": many}, "federation": {"clients_per_round": many}}
    recipe = blobs_recipe(rounds=1, **everybody)

    def poison(number: int, update: Update) -> Message:
        return cases[number][1](update) if number < len(cases) else update

    def refuse(number: int, update: Update) -> Message:
        return refusal_of(update) if number < len(cases) else update

    digest, outcomes = play_with(over(recipe), poison)
    assert digest == play_with(over(recipe), refuse)[0]
    for number, (detail, _) in enumerate(cases):
        assert outcomes[number].outcome == "invalid"
        assert detail in outcomes[number].detail
    assert {outcomes[n].outcome for n in range(len(cases), many)} <= {"accepted", "rejected_cosine"}


def test_absurd_numbers_beside_a_good_update_stop_nobody(over: Over) -> None:
    recipe = blobs_recipe(rounds=1)
    absurd: list[dict[str, Any]] = [
        {"metrics": {"pseudo_labels": 1e300, "credible": -1e300, "loss_total": 1e308}},
        {"metrics": {"pseudo_labels": 1e19, "credible": 1e19, "loss_total": 1e308}},
        {"metrics": {}},
    ]
    federation = over(recipe)
    digest, _ = play_with(federation, lambda n, update: dataclasses.replace(update, **absurd[n]))
    assert digest == play_with(over(recipe), lambda _, update: update)[0]
    record = federation.diary.records[0]
    samples = [outcome.num_samples for outcome in record.outcomes]
    for name in ("credible", "pseudo_labels"):
        assert 0 <= (record.series[name] or 0) <= sum(samples)
    assert "loss_total" not in record.series
    assert all(np.isfinite(value) for value in record.series.values() if value is not None)


def test_a_long_refusal_is_one_line_of_bounded_length(over: Over) -> None:
    def refuse(number: int, update: Update) -> Message:
        return refusal_of(update, "no\n" * 20_000) if number == 0 else update

    _, outcomes = play_with(over(blobs_recipe(rounds=1, split={"clients": 3})), refuse)
    assert outcomes[0].outcome == "refused"
    assert outcomes[0].detail.startswith("reason: no no no")
    assert len(outcomes[0].detail) <= 1100


def test_many_clients_that_say_as_much_as_they_may_fit_into_a_checkpoint(over: Over) -> None:
    many = 160
    recipe = blobs_recipe(
        rounds=1, split={"labelled": 20, "clients": many}, federation={"clients_per_round": many}
    )
    federation = over(recipe)
    hands, server = Hands(federation), federation.serve()
    metrics = {f"loss_{number:03}" + "x" * 92: 1.0 for number in range(128)}
    metrics |= {f"loss_{number}": 1.0 for number in range(128)}
    tensors = {f"{number}" + "x" * 200: np.zeros(0, np.float32) for number in range(200)}
    for number, task in enumerate(hands.take(many)):
        held = federation.split.held[task.client]
        update = Update(task.run, 1, task.client, 1, 1, held, 1, tensors, metrics)
        hands.send(hands.train(task) if number == 0 else update)
        hands.settle(task)
    assert server.result(SOON).rounds_done == 1
    record = federation.diary.records[0]
    assert len(record.outcomes) == many
    declared = {series.name for series in find_method("fedil").display.series()} | set(ENGINE_METRICS)
    assert all(outcome.metrics.keys() <= declared for outcome in record.outcomes)
    assert max(len(outcome.detail) for outcome in record.outcomes) <= 1000
    kept = (federation.directory / "history.jsonl").stat().st_size
    assert kept < many * (len(declared) * 50 + 2000)
