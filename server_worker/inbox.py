"""What arrives for a run's server: opened, checked, and held until a checkpoint holds its effect."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker_config.errors import BrokerUnavailable, MessageRejected
from broker_config.messages import Refusal, TrainTask, Update
from broker_config.topology import DEAD_LETTERS, updates_queue
from broker_config.transports.interface import Delivery
from broker_config.wire import decode_message
from server_worker.surroundings import Surroundings

MISPLACED = "misplaced"
_LEFTOVER_SECONDS = 0.2
_LONGEST_LOOK_SECONDS = 1.0
_LOOKING_SHARE = 0.1
"""Of the time: there may be thousands of letters, and large ones."""


@dataclass(frozen=True)
class Arrival:
    """One answer that can be read and comes from its client's owner."""

    answer: Update | Refusal
    delivery: Delivery


@dataclass(frozen=True)
class _DeadTask:
    task: TrainTask
    reason: str


class Inbox:
    def __init__(self, run: str, around: Surroundings) -> None:
        self._run, self._around = run, around
        self._held: list[Delivery] = []
        self._refused: Counter[str] = Counter()
        self._next_look = around.clock()
        self._dead_before: Counter[_DeadTask] = Counter()

    def next(self, timeout_seconds: float) -> Arrival | None:
        """None: nothing came, or nothing that anybody may take for an answer."""
        delivery = self._around.transport.receive(updates_queue(self._run), timeout_seconds)
        return None if delivery is None else self._open(delivery)

    def leftovers(self) -> Iterator[Arrival]:
        """What lies in the queue already: who has answered need not train again. Who has refused is asked again:
        whatever the reason was, somebody may have put it right before starting this server."""
        queue = updates_queue(self._run)
        while (delivery := self._around.transport.receive(queue, _LEFTOVER_SECONDS)) is not None:
            self._around.check_stop()
            arrival = self._open(delivery)
            if arrival is not None and isinstance(arrival.answer, Refusal):
                delivery.acknowledge()
            elif arrival is not None:
                yield arrival

    def _open(self, delivery: Delivery) -> Arrival | None:
        try:
            answer = decode_message(delivery.body)
        except MessageRejected as error:
            self.refuse(delivery, error.reason, str(error))
            return None
        except BrokerUnavailable:
            return None  # its connection was lost while the body was under way: it comes again
        if isinstance(answer, TrainTask):
            self.refuse(delivery, MISPLACED, "a task on the queue of updates")
            return None
        if not self._around.sites.may_speak(delivery.sender, answer.client):
            detail = f"{delivery.sender or 'nobody in particular'} speaks for client {answer.client}"
            self.refuse(delivery, "not_yours", detail)
            return None
        return Arrival(answer, delivery)

    def refuse(self, delivery: Delivery, reason: str, detail: str) -> None:
        """Dead-letter it: it is bad, and whoever runs this should see it."""
        self._around.watcher.note(f"message refused ({reason}): {detail}")
        self._refused[reason] += 1
        delivery.reject(reason)

    def drop(self, arrival: Arrival, reason: str) -> None:
        """It is good and of no use any more."""
        answer = arrival.answer
        self._around.watcher.note(f"round {answer.round}, client {answer.client}: {reason}")
        self._refused[reason] += 1
        arrival.delivery.acknowledge()

    def hold_repeat(self, arrival: Arrival) -> None:
        """What was counted may have been lost with its connection: this copy stands in for it until the
        checkpoint."""
        answer = arrival.answer
        self._around.watcher.note(f"round {answer.round}, client {answer.client}: duplicate")
        self._refused["duplicate"] += 1
        self.hold(arrival)

    def hold(self, arrival: Arrival) -> None:
        """It counts: acknowledged only when a checkpoint has it, since it must come back after a crash."""
        arrival.delivery.release_body()
        self._held.append(arrival.delivery)

    def settle(self) -> None:
        for delivery in self._held:
            delivery.acknowledge()
        self._held = []

    def take_refused(self) -> dict[str, int]:
        """How many messages were turned away since the last call, by reason."""
        refused, self._refused = dict(self._refused), Counter()
        return refused

    def remember_dead_tasks(self) -> None:
        """Letters that lie there already are of an earlier life: what is asked now may still be answered."""
        self._dead_before = self._count_dead_tasks()

    def dead_tasks(self, on_task: Callable[[TrainTask, str], None]) -> None:
        """A task that killed whoever took it lies among the dead letters; nobody will answer it."""
        if self._around.clock() < self._next_look:
            return
        for dead, count in self._count_dead_tasks().items():
            if count > self._dead_before[dead]:
                on_task(dead.task, dead.reason)

    def _count_dead_tasks(self) -> "Counter[_DeadTask]":
        """Letters are only looked at: they stay for people to see."""
        began = self._around.clock()
        letters: list[Delivery] = []
        found: Counter[_DeadTask] = Counter()
        while self._around.clock() - began < _LONGEST_LOOK_SECONDS and not self._around.stop.is_set():
            letter = self._around.transport.receive(DEAD_LETTERS, 0.0)
            if letter is None:
                break
            letters.append(letter)
            task = self._task_in(letter)
            if task is not None:
                found[_DeadTask(task, letter.reason or "")] += 1
            letter.release_body()
        for letter in letters:
            letter.requeue()
        ended = self._around.clock()
        self._next_look = ended + (ended - began) * (1.0 - _LOOKING_SHARE) / _LOOKING_SHARE
        return found

    def _task_in(self, letter: Delivery) -> TrainTask | None:
        """One of this run, put aside by the broker, by us or by the client's owner: nobody else may say that a
        client is not to be waited for. What we found among the updates was never anybody's task."""
        if letter.reason == MISPLACED:
            return None
        try:
            task = decode_message(letter.body)
        except (MessageRejected, BrokerUnavailable):
            return None
        if not isinstance(task, TrainTask) or task.run != self._run:
            return None
        return task if self._around.sites.may_speak(letter.sender, task.client) else None
