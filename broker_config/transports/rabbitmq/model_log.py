"""The model log of a run, on a RabbitMQ stream: written once, read by any number of workers.

An entry is a series of chunk messages and an empty closing message. Every message has its number and the index: which
entries are kept, and the number of their first chunk. So the last message in the stream tells what can be read, even if
its writer died after a chunk.

Numbers are ours and have no gaps. Offsets are the broker's, and every segment takes one for itself. The leader counts
numbers, and need not read the stream before it writes. A reader computes the offset of a number backwards from the last
message, of which it knows both. One that reads version after version also computes it forwards from the chunk that it
read last: then the chunks are on their way while it looks at the last message.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

from pika.exceptions import ChannelClosedByBroker

from broker_config.brokers.topology import models_queue
from broker_config.protocol.buffers import size
from broker_config.protocol.chunks import Assembler, split
from broker_config.protocol.errors import BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.rabbitmq.connection import is_usable
from broker_config.transports.rabbitmq.pika_errors import channel_error
from broker_config.transports.rabbitmq.publisher import Headers
from broker_config.transports.rabbitmq.session import RabbitSession
from broker_config.transports.rabbitmq.stream_reader import StreamMessage, StreamReader

_INDEX, _BODY, _NUMBER = "fedil-index", "fedil-body", "fedil-number"
_CHUNK_BYTES = 2 << 20
"""Streams deliver smaller messages faster than larger ones, and accept them no more slowly."""
_PREFETCH = 16
"""Chunks: enough to keep the connection busy, few enough for the reader's memory"""
_EMPTY_SECONDS = 5.0
_STALL_SECONDS = 60.0
_BEHIND_SECONDS, _POLL_SECONDS = 10.0, 0.1
_SPARE_BODIES = 3
"""Space for the body that is being written and for those of dead writers"""
_NEAR_BODIES = 3
"""Further away the computed offset may be many messages too early, one for each segment."""
_MIN_SEGMENT, _MAX_SEGMENT = 16 << 20, 500_000_000


@dataclass(frozen=True)
class _IndexEntry:
    version: int
    number: int
    """Of its first chunk"""
    body_id: str
    num_chunks: int
    entry: str = ""


_Index = tuple[_IndexEntry, ...]


@dataclass(frozen=True)
class _End:
    """Number and index of the last message. Valid as long as we are the only writer: during our term as leader."""

    number: int
    index: _Index
    term: object


@dataclass(frozen=True)
class _Place:
    """Of the chunk that was read last"""

    run: str
    number: int
    offset: int
    num_chunks: int


class ModelLog:
    def __init__(self, session: RabbitSession, term_of: Callable[[str], object | None]) -> None:
        """`term_of` returns an object for our term as leader of a run, None if we do not lead."""
        self._session, self._term_of = session, term_of
        self.bytes_received: Counter[str] = Counter()
        self._opened: set[str] = set()
        self._ends: dict[str, _End] = {}
        self._readers: dict[tuple[bool, int], StreamReader] = {}
        """By whether they look at the last message, and by prefetch"""
        self._last_read: _Place | None = None

    def append(
        self, run: str, version: int, body: Buffers, kept: int, entry: str, entries: int
    ) -> ModelAddress:
        self._open(run, size(body), kept * entries)
        wanted = ModelAddress(run, version, 0, entry)
        try:
            return self._session.publisher.with_chunk_size(
                lambda chunk_bytes: self._append(wanted, body, kept, chunk_bytes)
            )
        except QueueMissing as error:
            # It is declared: a broker that has just started can read a stream before it can write to it.
            self._opened.discard(run)
            raise BrokerUnavailable(f"RabbitMQ does not take models of run {run} yet: try again") from error

    def read(self, address: ModelAddress) -> memoryview:
        try:
            body = self._read_next(address)
            if body is not None:
                return body
            last, entry = self._find(address)
            assembler, prefetch = Assembler(), min(_PREFETCH, entry.num_chunks)
            # The computed offset is wrong if two servers wrote at a time, or an operator declared the stream.
            for offset in (_offset_of(entry, last), "first"):
                with self._reading(address.run, offset, prefetch) as reader:
                    body = self._assemble(address.run, entry, reader, assembler, last.offset)
                if body is not None:
                    return body
            raise address.missing()  # the stream has dropped its first chunks
        except QueueMissing:
            raise address.missing() from None

    def _read_next(self, address: ModelAddress) -> memoryview | None:
        """The body, if it comes soon after the one that was read last; None if something else is there."""
        before = self._last_read
        if before is None or before.run != address.run:
            return None
        ahead = address.offset - before.number
        if not 0 < ahead <= _NEAR_BODIES * (before.num_chunks + 1):
            return None
        start = before.offset + ahead
        with self._reading(address.run, start, min(_PREFETCH, before.num_chunks)) as reader:
            last, entry = self._find(address)
            if entry.number != address.offset or start > last.offset:
                return None  # the version or the whole log was written anew
            return self._assemble(address.run, entry, reader, Assembler(), last.offset)

    def _find(self, address: ModelAddress) -> tuple[StreamMessage, _IndexEntry]:
        """The last message and the index entry, once the replica of this node of a cluster has them."""
        deadline = time.monotonic() + _BEHIND_SECONDS
        while True:
            last = self._last(address.run)
            index = _index_of(last) if last else ()
            for line in index:
                if last and (line.version, line.entry) == (address.version, address.entry):
                    return last, line
            is_behind = max((line.number for line in index), default=0) < address.offset
            if not is_behind or time.monotonic() >= deadline:
                raise address.missing()
            time.sleep(_POLL_SECONDS)

    def forget(self, run: str) -> None:
        self._opened.discard(run)
        self._ends.pop(run, None)

    def _append(self, wanted: ModelAddress, body: Buffers, kept: int, chunk_bytes: int) -> ModelAddress:
        run, version, entry = wanted.run, wanted.version, wanted.entry
        queue, term, publish = models_queue(run), self._term_of(run), self._session.publisher.publish
        # Forgotten until all is confirmed: after an error the last message is unknown.
        end = self._ends.pop(run, None)
        if end is None or end.term is not term:
            end = self._read_end(run, term)
        body_id, first = uuid.uuid4(), end.number + 1
        frames = split(body, min(chunk_bytes, _CHUNK_BYTES), body_id.bytes)
        headers = {_BODY: body_id.hex, **_index_header(end.index)}
        number = end.number
        # Each is confirmed before the next: a stream stores messages that arrive together as one unit, and delivers
        # all of it regardless of prefetch.
        for number, frame in enumerate(frames, first):
            publish(queue, frame, {**headers, _NUMBER: number})
        # A main entry replaces all entries of its version.
        others = [k for k in end.index if k.version != version or (entry and k.entry != entry)]
        added = _IndexEntry(version, first, body_id.hex, number + 1 - first, entry)
        index = _newest((*others, added), kept)
        publish(queue, b"", {_NUMBER: number + 1, **_index_header(index)})
        if term is not None:
            self._ends[run] = _End(number + 1, index, term)
        return ModelAddress(run, version, first, entry)

    def _open(self, run: str, num_bytes: int, num_bodies: int) -> None:
        queue, queues = models_queue(run), self._session.queues
        if run in self._opened:
            return
        if queues.exists(queue):
            # A broker that was killed may restore a stream without its binding.
            queues.bind(queue)
        else:
            stored = num_bytes + num_bytes // 64 + (1 << 16)
            segment = min(max(stored, _MIN_SEGMENT), _MAX_SEGMENT)
            # RabbitMQ drops whole segments, as soon as the others exceed the length.
            length = (num_bodies + _SPARE_BODIES) * stored + 2 * segment
            queues.declare_exchanges()
            queues.prepare_streams()
            limits = {"x-max-length-bytes": length, "x-stream-max-segment-size-bytes": segment}
            queues.declare(queue, arguments=limits)
            self._begin(run)
        self._opened.add(run)

    def _begin(self, run: str) -> StreamMessage:
        self._session.publisher.publish(models_queue(run), b"", _index_header(()))
        last = self._last(run)
        if last is None:
            raise BrokerUnavailable(f"RabbitMQ does not deliver from {models_queue(run)}: try again later")
        return last

    def _read_end(self, run: str, term: object | None) -> _End:
        # On a cluster this node's replica may be restarting: then an empty index would lose what the log has.
        last = self._last(run, _STALL_SECONDS if self._session.queues.replicated else _EMPTY_SECONDS)
        if last is None:  # its creator died before the first message
            last = self._begin(run)
        return _End(_number_of(last), _index_of(last), term)

    def _last(self, run: str, seconds: float = _EMPTY_SECONDS) -> StreamMessage | None:
        with self._reading(run, "last", 1) as reader:
            return reader.next(seconds)

    def _assemble(
        self, run: str, wanted: _IndexEntry, reader: StreamReader, assembler: Assembler, end: int
    ) -> memoryview | None:
        """None if the message at offset `end` came before the last chunk"""
        num_left = wanted.num_chunks
        while True:
            message = reader.next(_STALL_SECONDS)
            if message is None:
                raise BrokerUnavailable(f"RabbitMQ sent nothing of {models_queue(run)} for a minute")
            body = None
            if message.headers.get(_BODY) == wanted.body_id:
                self.bytes_received["model"] += len(message.body)
                body = assembler.add(message.body)
                num_left -= 1
            elif message.offset >= end:
                return None
            reader.request(num_left)
            if body is not None:
                self._last_read = _Place(run, _number_of(message), message.offset, wanted.num_chunks)
                return body

    @contextmanager
    def _reading(self, run: str, offset: int | str, prefetch: int) -> Iterator[StreamReader]:
        queue, receiving = models_queue(run), self._session.receiving
        with receiving.exclusive() as connection:
            # Taken out while it is in use: pending messages must not reach the next reader.
            kind = (offset == "last", prefetch)
            reader = self._readers.pop(kind, None)
            if reader is None or not is_usable(reader.channel, connection):
                reader = StreamReader(receiving, connection.channel(), prefetch)
            try:
                reader.subscribe(queue, offset)
                yield reader
                if reader.unsubscribe():
                    self._readers[kind] = reader
            except ChannelClosedByBroker as error:
                raise channel_error(receiving.address, error, queue) from error
            except FedILError:
                reader.close()
                raise


def _newest(index: _Index, kept: int) -> _Index:
    """The entries of the `kept` versions whose main entry was written last"""
    versions = list(dict.fromkeys(line.version for line in index))[-kept:]
    return tuple(line for line in index if line.version in versions)


def _index_header(index: _Index) -> Headers:
    return {_INDEX: json.dumps([astuple(line) for line in index])}


def _index_of(message: StreamMessage) -> _Index:
    """Empty if the header is not an index; only the server may write to the stream."""
    try:
        return tuple(_IndexEntry(*fields) for fields in json.loads(str(message.headers.get(_INDEX))))
    except (ValueError, TypeError):
        return ()


def _number_of(message: StreamMessage) -> int:
    """The first message has none, and its offset."""
    return int(message.headers.get(_NUMBER, message.offset))


def _offset_of(wanted: _IndexEntry, last: StreamMessage) -> int:
    """An offset not after that of the first chunk, and hardly before: between it and the last message there are as many
    segments as the entries from this one on fill, and those of dead writers."""
    later = [line for line in _index_of(last) if line.number >= wanted.number]
    segments = sum(1 + line.num_chunks * _CHUNK_BYTES // _MAX_SEGMENT for line in later)
    messages = _number_of(last) - wanted.number
    unknown = messages + 1 - sum(line.num_chunks + 1 for line in later)
    if unknown > 0:
        segments += 1 + unknown * _CHUNK_BYTES // _MIN_SEGMENT
    return max(0, last.offset - messages - segments)
