"""The model log on a stream: written once, read by any number, without being used up.

A version is a run of chunk messages and a tiny closing message. Every message carries its number and the index: which
versions are kept, and from which number. So whatever is last in the stream tells what can be read, also the chunk after
which a writer died.

Numbers are ours and have no gaps; offsets are the broker's, and every segment takes one for itself. A writer counts
numbers, so it need not look at the stream while it leads; a reader finds the offset of a number by counting back from
the last message, of which it knows both.
"""

import json
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic, BasicProperties

from broker_config.brokers.topology import models_queue
from broker_config.protocol.buffers import size
from broker_config.protocol.chunks import Assembler, split
from broker_config.protocol.errors import BrokerUnavailable, FedILError, ModelMissing, QueueMissing
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.rabbitmq.connection import Line
from broker_config.transports.rabbitmq.publisher import Headers, Outlet

_INDEX, _BODY, _NUMBER, _OFFSET = "fedil-index", "fedil-body", "fedil-number", "x-stream-offset"
_CHUNK_BYTES = 2 << 20
"""Streams give smaller messages faster than larger ones, and take them no slower."""
_WINDOW = 8
"""Chunks under way to a reader: enough to keep the wire busy, few enough for its memory"""
_EMPTY_SECONDS = 5.0
_STALL_SECONDS = 60.0
_SPARE_VERSIONS = 3
"""Room for the one being written and for what dead writers left behind"""
_SMALLEST_SEGMENT, _LARGEST_SEGMENT = 16 << 20, 500_000_000


@dataclass(frozen=True)
class _Kept:
    """A line of the index."""

    version: int
    number: int
    """Of its first chunk"""
    body_id: str
    num_chunks: int
    entry: str = ""


@dataclass(frozen=True)
class _Entry:
    tag: int
    offset: int
    number: int
    body_id: str | None
    index: tuple[_Kept, ...]
    payload: bytes


@dataclass(frozen=True)
class _Written:
    """What is last in a log that only we write to, as long as `lead` lasts."""

    number: int
    index: tuple[_Kept, ...]
    lead: object


class ModelLog:
    def __init__(self, line: Line, outlet: Outlet, lead_of: Callable[[str], object | None]) -> None:
        """`lead_of` gives what stands for our lead of a run, None if it is not ours; a later one is another."""
        self._line, self._outlet, self._lead_of = line, outlet, lead_of
        self.bytes_received: Counter[str] = Counter()
        self._opened: set[str] = set()
        self._written: dict[str, _Written] = {}
        self._taps: dict[int, _Tap] = {}
        """By window"""

    def append(
        self, run: str, version: int, body: Buffers, kept: int, entry: str, entries: int
    ) -> ModelAddress:
        self._open(run, size(body), kept * entries)
        try:
            return self._outlet.fitting(
                lambda chunk_bytes: self._append(
                    ModelAddress(run, version, 0, entry), body, kept, chunk_bytes
                )
            )
        except QueueMissing as error:
            # It was declared: a broker that has just started can read a stream before it can write to it.
            self._opened.discard(run)
            raise BrokerUnavailable(f"RabbitMQ does not take models of run {run} yet: try again") from error

    def _append(self, wanted: ModelAddress, body: Buffers, kept: int, chunk_bytes: int) -> ModelAddress:
        run, version, entry = wanted.run, wanted.version, wanted.entry
        queue, lead = models_queue(run), self._lead_of(run)
        # Forgotten until all is well: after trouble nobody knows what the broker has taken.
        written = self._written.pop(run, None)
        if written is None or written.lead is not lead:
            written = self._look(run, lead)
        body_id, first = uuid.uuid4(), written.number + 1
        frames = split(body, min(chunk_bytes, _CHUNK_BYTES), body_id.bytes)
        about = {_BODY: body_id.hex, **_index_header(written.index)}
        number = written.number
        # Each confirmed before the next: a stream packs together what it gets at a time, and hands out such a pack
        # whole, whatever its reader asked for.
        for number, frame in enumerate(frames, first):
            self._outlet.put(queue, frame, {**about, _NUMBER: number})
        num_chunks = number + 1 - first
        # A main entry replaces the version whole.
        others = [k for k in written.index if k.version != version or (entry and k.entry != entry)]
        index = _newest((*others, _Kept(version, first, body_id.hex, num_chunks, entry)), kept)
        self._outlet.put(queue, b"", {_NUMBER: number + 1, **_index_header(index)})
        if lead is not None:
            self._written[run] = _Written(number + 1, index, lead)
        return ModelAddress(run, version, first, entry)

    def _look(self, run: str, lead: object | None) -> _Written:
        last = self._last(run)
        if last is None:  # its creator died before the first message
            last = self._begin(run)
        return _Written(last.number, last.index, lead)

    def read(self, address: ModelAddress) -> memoryview:
        try:
            last = self._last(address.run)
            wanted = (address.version, address.entry)
            found = [k for k in last.index if (k.version, k.entry) == wanted] if last else []
            if not last or not found:
                raise _missing(address)
            assembler = Assembler()
            # Counting may mislead where two have written at a time, or an operator made the stream otherwise.
            for offset in (_offset_of(found[0], last), "first"):
                body = self._assemble(address.run, found[0], offset, last.offset, assembler)
                if body is not None:
                    return body
            raise _missing(address)  # the stream dropped its beginning
        except QueueMissing:
            raise _missing(address) from None

    def _assemble(
        self, run: str, wanted: _Kept, start: int | str, end: int, assembler: Assembler
    ) -> memoryview | None:
        num_left = wanted.num_chunks
        with self._reading(run, start, min(_WINDOW, num_left)) as tap:
            while True:
                entry = tap.next(_STALL_SECONDS)
                if entry is None:
                    raise BrokerUnavailable(f"RabbitMQ sent nothing of {models_queue(run)} for a minute")
                body = None
                if entry.body_id == wanted.body_id:
                    self.bytes_received["model"] += len(entry.payload)
                    body = assembler.add(entry.payload)
                    num_left -= 1
                elif entry.offset >= end:
                    return None
                tap.ask_for(num_left, entry)
                if body is not None:
                    return body

    def _open(self, run: str, num_bytes: int, bodies: int) -> None:
        queue = models_queue(run)
        if run in self._opened:
            return
        if self._outlet.exists(queue):
            # A broker that was killed may have its stream back, and not the way to it.
            self._outlet.bind(queue)
        else:
            stored = num_bytes + num_bytes // 64 + (1 << 16)
            segment = min(max(stored, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
            # Whole segments are dropped, as soon as the others exceed the length.
            length = (bodies + _SPARE_VERSIONS) * stored + 2 * segment
            self._outlet.declare_exchanges()
            self._outlet.prepare_streams()
            limits = {"x-max-length-bytes": length, "x-stream-max-segment-size-bytes": segment}
            self._outlet.declare(queue, extra=limits)
            self._begin(run)
        self._opened.add(run)

    def forget(self, run: str) -> None:
        self._opened.discard(run)
        self._written.pop(run, None)

    def _begin(self, run: str) -> _Entry:
        self._outlet.put(models_queue(run), b"", _index_header(()))
        last = self._last(run)
        if last is None:
            raise BrokerUnavailable(
                f"RabbitMQ does not give back what {models_queue(run)} holds: try again later"
            )
        return last

    def _last(self, run: str) -> _Entry | None:
        with self._reading(run, "last", 1) as tap:
            return tap.next(_EMPTY_SECONDS)

    @contextmanager
    def _reading(self, run: str, offset: int | str, window: int) -> Iterator["_Tap"]:
        queue = models_queue(run)
        with self._line.talk() as connection:
            # Forgotten while it is in use: what is still under way after trouble must not reach the next reader.
            tap = self._taps.pop(window, None)
            if tap is None or not tap.is_on(connection):
                tap = _Tap(self._line, connection.channel(), window)
            try:
                tap.begin(queue, offset)
                yield tap
                if tap.end():
                    self._taps[window] = tap
            except ChannelClosedByBroker as error:
                raise self._line.translated(error, queue) from error
            except FedILError:
                tap.abandon()
                raise


class _Tap:
    """A reader of a stream that asks for exactly what it will take. For pika would reject what else is under way when
    it ends, and the broker answers that by closing the whole connection."""

    def __init__(self, line: Line, channel: BlockingChannel, window: int) -> None:
        self._line, self._channel, self._window = line, channel, window
        self._queue = self._subscription = ""
        self._arrived: deque[_Entry] = deque()
        self._under_way = 0
        """Asked for and not yet taken"""
        self._last_tag = 0
        self._cancelled = False
        channel.add_on_cancel_callback(self._on_cancel)
        channel.basic_qos(prefetch_count=window)

    def is_on(self, connection: BlockingConnection) -> bool:
        return self._channel.connection is connection and bool(self._channel.is_open)

    def begin(self, queue: str, offset: int | str) -> None:
        self._queue, self._under_way = queue, self._window
        self._subscription = self._channel.basic_consume(queue, self._on_message, arguments={_OFFSET: offset})

    def abandon(self) -> None:
        """Not by pika's blocking channel, which would reject what is under way."""
        channel = getattr(self._channel, "_impl", None)
        if channel is not None and channel.is_open:
            channel.close()

    def end(self) -> bool:
        """Whether it can be used again."""
        if self._under_way:
            self.abandon()
            return False
        self._channel.basic_cancel(self._subscription)
        # Else the broker would miss the acknowledgements after its consumer_timeout, and close the channel.
        self._channel.basic_ack(self._last_tag, multiple=True)
        return True

    def next(self, timeout_seconds: float) -> _Entry | None:
        deadline = time.monotonic() + timeout_seconds
        while not self._arrived:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._channel.connection.process_data_events(left)
            if self._cancelled:
                # It was deleted, or is moving to another node of a cluster: who asks again learns which.
                raise BrokerUnavailable(
                    f"RabbitMQ at {self._line.account.place} gives nothing more of {self._queue!r}: ask again"
                )
            if not self._channel.is_open:
                raise self._line.why_closed(self._channel, self._queue)
        self._under_way -= 1
        entry = self._arrived.popleft()
        self._last_tag = entry.tag
        return entry

    def ask_for(self, num_left: int, taken: _Entry) -> None:
        """Acknowledging gives credit for one more, and does nothing else to a stream."""
        if self._under_way < num_left:
            self._channel.basic_ack(taken.tag)
            self._under_way += 1

    def _on_message(
        self, _channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        headers = properties.headers or {}
        self._arrived.append(
            _Entry(
                method.delivery_tag,
                int(headers[_OFFSET]),
                int(headers.get(_NUMBER, headers[_OFFSET])),
                headers.get(_BODY),
                _index_in(headers.get(_INDEX)),
                body,
            )
        )

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True


def _newest(index: tuple[_Kept, ...], kept: int) -> tuple[_Kept, ...]:
    """Of the `kept` versions whose main entry was written last"""
    versions = list(dict.fromkeys(line.version for line in index))[-kept:]
    return tuple(line for line in index if line.version in versions)


def _index_header(index: tuple[_Kept, ...]) -> Headers:
    return {_INDEX: json.dumps([astuple(line) for line in index])}


def _index_in(header: object) -> tuple[_Kept, ...]:
    """Only the server may write here; what is no index of ours holds nothing."""
    try:
        return tuple(_Kept(*fields) for fields in json.loads(str(header)))
    except (ValueError, TypeError):
        return ()


def _offset_of(wanted: _Kept, last: _Entry) -> int:
    """No later than that of its first chunk, and hardly earlier: there are as many segments between as it takes for
    the versions from this one on, and for what dead writers left."""
    later = [line for line in last.index if line.number >= wanted.number]
    segments = sum(1 + line.num_chunks * _CHUNK_BYTES // _LARGEST_SEGMENT for line in later)
    messages = last.number - wanted.number
    unknown = messages + 1 - sum(line.num_chunks + 1 for line in later)
    if unknown > 0:
        segments += 1 + unknown * _CHUNK_BYTES // _SMALLEST_SEGMENT
    return max(0, last.offset - messages - segments)


def _missing(address: ModelAddress) -> ModelMissing:
    return ModelMissing(
        f"version {address.version} of run {address.run!r} is not in the model log: "
        "drop this task and wait for one with a newer version"
    )
