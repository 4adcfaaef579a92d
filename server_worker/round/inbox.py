"""What arrives for a run's server: opened, checked, and held until a checkpoint holds its effect."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from broker_config.brokers.topology import DEAD_LETTERS, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.protocol.messages import Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message
from broker_config.transports.interface import Delivery
from server_worker.round.context import Surroundings
from server_worker.round.validation import one_line

MISPLACED = "misplaced"
_LEFTOVER_SECONDS = 0.2
"""What a server that has just died held comes back within a moment."""
_LATECOMERS = 1000
_LONGEST_LOOK_SECONDS = 10.0
_LOOKING_SHARE = 0.1
"""Of the time: there may be thousands of letters."""
_LOOK_ANYWAY_SECONDS = 60.0
"""While there are as many letters as before: one may have gone when another came."""
MANY_LETTERS = 1000


@dataclass(frozen=True)
class Arrival:
    """One answer that can be read and comes from its client's owner."""

    answer: Update | Refusal
    delivery: Delivery


class Inbox:
    def __init__(self, run: str, around: Surroundings) -> None:
        self._run, self._around = run, around
        self._held: dict[tuple[int, int], Delivery] = {}
        """By client and activation"""
        self._refused: Counter[str] = Counter()
        self._next_look = self._look_anyway = around.clock()
        self._letters_seen = 0
        self._many_noted = False
        self.is_empty = False
        """The last look into the queue found nothing, not even what nobody may take for an answer."""

    def next(self, timeout_seconds: float) -> Arrival | None:
        """None: nothing came, or nothing that anybody may take for an answer."""
        delivery = self._receive(timeout_seconds)
        self.is_empty = delivery is None
        return None if delivery is None else self._open(delivery)

    def _receive(self, timeout_seconds: float) -> Delivery | None:
        try:
            return self._around.transport.receive(updates_queue(self._run), timeout_seconds)
        except QueueMissing:
            # Somebody has deleted it. Whoever asks clients will notice, make it again and ask them again.
            self._around.stop.wait(timeout_seconds)
            return None

    def leftovers(self) -> Iterator[Arrival]:
        """What lies in the queue already: who has answered need not train again. Who has refused is asked again:
        whatever the reason was, somebody may have put it right before starting this server."""
        queue = updates_queue(self._run)
        most = (self._around.transport.depth(queue) or 0) + _LATECOMERS
        for _ in range(most):  # not for ever: somebody may go on sending
            self._around.check_stop()
            delivery = self._receive(_LEFTOVER_SECONDS)
            if delivery is None:
                return
            arrival = self._open(delivery)
            if arrival is not None and isinstance(arrival.answer, Refusal):
                delivery.acknowledge()
            elif arrival is not None:
                yield arrival

    def _open(self, delivery: Delivery) -> Arrival | None:
        try:
            answer = decode_message(delivery.body)
        except MessageRejected as error:
            self.refuse(delivery, error.reason, error.detail)
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
        self._around.watcher.note(f"message refused ({reason}): {one_line(detail)}")
        self._refused[reason] += 1
        delivery.reject(reason)

    def drop(self, arrival: Arrival, reason: str) -> None:
        """It is good and of no use any more."""
        self._note(arrival, reason)
        arrival.delivery.acknowledge()

    def hold_repeat(self, arrival: Arrival) -> None:
        self._note(arrival, "duplicate")
        self.hold(arrival)

    def hold(self, arrival: Arrival) -> None:
        """It counts: acknowledged only when a checkpoint has it, since it must come back after a crash. Of several
        copies the last one is held: an earlier one may have been lost with its connection."""
        arrival.delivery.release_body()
        key = (arrival.answer.client, arrival.answer.activation)
        earlier = self._held.get(key)
        self._held[key] = arrival.delivery
        if earlier is not None:
            earlier.acknowledge()

    def settle(self) -> None:
        for delivery in self._held.values():
            delivery.acknowledge()
        self._held = {}

    def take_refused(self) -> dict[str, int]:
        """How many messages were turned away since the last call, by reason."""
        refused, self._refused = dict(self._refused), Counter()
        return refused

    def _note(self, arrival: Arrival, reason: str) -> None:
        answer = arrival.answer
        self._around.watcher.note(f"round {answer.round}, client {answer.client}: {reason}")
        self._refused[reason] += 1

    # ---- dead letters ----------------------------------------------------------------------------------------

    def dead_tasks(self, on_task: Callable[[TrainTask, str], None]) -> None:
        """A task that killed whoever took it lies among the dead letters; nobody will answer it. Letters are only
        looked at, and stay for people to see; all of them, since the newest lies behind the others."""
        began = self._around.clock()
        depth = self._around.transport.depth(DEAD_LETTERS)
        if not depth or began < self._next_look:
            return
        if depth == self._letters_seen and began < self._look_anyway:
            return
        count = 0
        with suppress(BrokerUnavailable):  # whoever needs the broker next will notice
            for letter in self._letters(depth):
                task = self._task_in(letter)
                if task is not None:
                    on_task(task, one_line(letter.reason or ""))
                letter.release_body()
                count += 1
        ended = self._around.clock()
        self._next_look = ended + (ended - began) * (1.0 - _LOOKING_SHARE) / _LOOKING_SHARE
        self._letters_seen, self._look_anyway = count, ended + _LOOK_ANYWAY_SECONDS
        if count >= MANY_LETTERS and not self._many_noted:
            self._many_noted = True
            self._around.watcher.note(
                f"{count} dead letters in {DEAD_LETTERS}: see why, then purge that queue"
            )

    def _letters(self, most: int) -> Iterator[Delivery]:
        """All stay unacknowledged until the last was seen; otherwise the first would come again and again. Not more
        than there were, nor for ever: somebody may go on sending."""
        held: list[Delivery] = []
        look = self._around.look
        transport = self._around.transport if look is None else look()
        end = self._around.clock() + _LONGEST_LOOK_SECONDS
        try:
            for _ in range(most):
                if self._around.stop.is_set() or self._around.clock() >= end:
                    return
                letter = transport.receive(DEAD_LETTERS, 0.0)
                if letter is None:
                    return
                if look is None:
                    held.append(letter)
                yield letter
        finally:
            if look is not None:
                transport.close()  # puts all back at once
            else:
                for letter in reversed(held):
                    letter.requeue()

    def _task_in(self, letter: Delivery) -> TrainTask | None:
        """One of this run, put aside by the broker, by us or by the client's owner: nobody else may say that a
        client is not to be waited for. What we found among the updates was never anybody's task."""
        if letter.reason == MISPLACED or not letter.body_is_inline:
            return None  # no task is so large that it would have to be fetched
        try:
            task = decode_message(letter.body)
        except (MessageRejected, BrokerUnavailable):
            return None
        if not isinstance(task, TrainTask) or task.run != self._run:
            return None
        return task if self._around.sites.may_speak(letter.sender, task.client) else None
