"""Tasks among the dead letters: a task that killed every worker that took it will not be answered."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from broker_config.brokers.topology import DEAD_LETTERS
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected
from broker_config.protocol.messages import TrainTask
from broker_config.protocol.wire import decode_message
from broker_config.transports.interface import Delivery
from server_worker.round.context import ServerContext
from server_worker.round.validation import one_line
from server_worker.watch.notices import Notice

MISPLACED = "misplaced"
"""Reason of a task that was found on the queue of updates"""
_LONGEST_LOOK_SECONDS = 10.0
_LOOKING_SHARE = 0.1
"""Of the time at most: there may be thousands of dead letters."""
_LOOK_ANYWAY_SECONDS = 60.0
"""While their number is unchanged: one may have gone when another came."""
MANY_LETTERS = 1000


class DeadTasks:
    """Dead letters are only looked at, and stay for operators; all of them, since the newest is behind the others."""

    def __init__(self, run: str, context: ServerContext) -> None:
        self._run, self._context = run, context
        self._next_look = self._look_anyway = context.clock()
        self._num_seen = 0
        self._many_noted = False

    def look(self, on_task: Callable[[TrainTask, str], None]) -> None:
        began = self._context.clock()
        depth = self._context.transport.depth(DEAD_LETTERS)
        if not depth or began < self._next_look:
            return
        if depth == self._num_seen and began < self._look_anyway:
            return
        count = 0
        with suppress(BrokerUnavailable):  # the next call to the broker reports it
            for letter in self._letters(depth):
                task = self._task_in(letter)
                if task is not None:
                    on_task(task, one_line(letter.reason or ""))
                letter.release_body()
                count += 1
        ended = self._context.clock()
        self._next_look = ended + (ended - began) * (1.0 - _LOOKING_SHARE) / _LOOKING_SHARE
        self._num_seen, self._look_anyway = count, ended + _LOOK_ANYWAY_SECONDS
        if count >= MANY_LETTERS and not self._many_noted:
            self._many_noted = True
            words = f"{count} dead letters in {DEAD_LETTERS}: see why, then purge that queue"
            self._context.watcher.note(Notice(words))

    def _letters(self, most: int) -> Iterator[Delivery]:
        """Unacknowledged until the last was seen, else the first would come again and again. Bounded in number and
        time: a site may go on sending."""
        end = self._context.clock() + _LONGEST_LOOK_SECONDS
        with closing(self._context.connect_for_inspection()) as transport:
            for _ in range(most):
                if self._context.stop.is_set() or self._context.clock() >= end:
                    return
                letter = transport.receive(DEAD_LETTERS, 0.0)
                if letter is None:
                    return
                yield letter

    def _task_in(self, letter: Delivery) -> TrainTask | None:
        """A task of this run that the broker, this server or the client's site dead-lettered: no other site may say
        that a client is not to be waited for. A task among the updates was never sent to a client."""
        if letter.reason == MISPLACED or not letter.body_is_inline:
            return None  # no task is so large that it would have to be fetched
        try:
            task = decode_message(letter.body)
        except (MessageRejected, BrokerUnavailable):
            return None
        if not isinstance(task, TrainTask) or task.run != self._run:
            return None
        return None if self._context.sites.wrong_sender(letter.sender, task.client) else task
