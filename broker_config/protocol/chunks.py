"""Bodies that outgrow a broker's message limit travel as chunk frames.

A frame says which body it belongs to, where in it, how big the whole is, and carries its own digest:

    head (magic, version, body id, index, count, stride, total)   payload   xxh3_128 of all before

Every chunk but the last is `stride` bytes long, so a frame's place in the body needs no other frame.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broker_config.protocol.buffers import DIGEST_BYTES, check_size, digest, raw_digest, recut, room_for, size
from broker_config.protocol.errors import MessageRejected
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers

_MAGIC = b"FedILc"
_VERSION = 1
_HEAD = struct.Struct("<6sH16sIIQQ")
OVERHEAD_BYTES = _HEAD.size + DIGEST_BYTES
MAX_CHUNKS = 1 << 16
MAX_BYTES = MAX_BODY_BYTES
_BODY_BOOKKEEPING_BYTES, _CHUNK_BOOKKEEPING_BYTES = 2048, 256
"""Roughly what a body under way and each of its chunks take besides the content"""
_MOST_TIMES = 2
"""A chunk may come: again after a lost confirm, but not for ever"""
_LEAST_STRIDE = 8 << 10
"""Nobody cuts a large body smaller: its reader would be busy for minutes with next to nothing"""


def split(buffers: Buffers, max_bytes: int, body_id: bytes | None = None) -> Iterator[bytes]:
    """Frames of at most `max_bytes` each. Bodies that may be under way at the same time to one assembler need
    different ids; without one, the digest of the body serves, which equal bodies share."""
    stride = max_bytes - OVERHEAD_BYTES
    if stride < 1:
        raise ValueError(f"max_bytes must exceed the {OVERHEAD_BYTES} bytes that a frame needs for itself")
    total = size(buffers)
    count = _count(total, stride)
    if count > MAX_CHUNKS:
        raise MessageRejected("too_large", f"{total} bytes need {count} chunks, more than {MAX_CHUNKS}")
    body_id = body_id or bytes.fromhex(digest(buffers))
    for index, payload in enumerate(recut(buffers, stride)):
        head = _HEAD.pack(_MAGIC, _VERSION, body_id, index, count, stride, total)
        yield b"".join([head, *payload, raw_digest([head, *payload])])


def _count(total: int, stride: int) -> int:
    return max(1, -(-total // stride))


@dataclass(frozen=True)
class _Outline:
    """What all the frames of one body must agree on."""

    count: int
    stride: int
    total: int

    @property
    def reserved_bytes(self) -> int:
        return self.total + _BODY_BOOKKEEPING_BYTES + self.count * _CHUNK_BOOKKEEPING_BYTES


@dataclass
class _Partial:
    outline: _Outline
    buffer: memoryview
    digests: dict[int, bytes] = field(default_factory=dict)


class Assembler:
    """Puts bodies together from frames in any order, repeated and interleaved.

    Bodies under way reserve at most `max_bytes` in all, or there is only one: the one that has waited longest is given
    up for a new one, since its sender may be dead. A finished body is forgotten, so the same frames sent again (a
    redelivery) make it again.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partials: dict[bytes, _Partial] = {}
        self._reserved_bytes = 0

    def add(self, frame: bytes | bytearray | memoryview) -> memoryview | None:
        """The whole body if this frame completes it. Raises MessageRejected for a frame that is no good."""
        body_id, index, outline, payload, frame_digest = _parse(memoryview(frame).cast("B"))
        partial = self._partials.get(body_id) or self._begin(body_id, outline)
        if partial.outline != outline:
            raise MessageRejected("contradiction", f"chunk {index} tells of another body under the same id")
        if partial.digests.setdefault(index, frame_digest) != frame_digest:
            raise MessageRejected("contradiction", f"chunk {index} came twice with different content")
        start = index * outline.stride
        partial.buffer[start : start + len(payload)] = payload
        if len(partial.digests) < outline.count:
            return None
        self._forget(body_id)
        return partial.buffer.toreadonly()

    def _begin(self, body_id: bytes, outline: _Outline) -> _Partial:
        check_size(outline.total, self._max_bytes)
        while self._partials and self._reserved_bytes + outline.reserved_bytes > self._max_bytes:
            self._forget(next(iter(self._partials)))
        partial = _Partial(outline, room_for(outline.total))
        self._partials[body_id] = partial
        self._reserved_bytes += outline.reserved_bytes
        return partial

    def _forget(self, body_id: bytes) -> None:
        self._reserved_bytes -= self._partials.pop(body_id).outline.reserved_bytes


def assembled(frames: Iterable[bytes], max_bytes: int = MAX_BYTES) -> memoryview | None:
    """The one body that these are the frames of, in any order, and as a rule each once or twice: more than twice as
    many as it has chunks are not looked at, and far more chunks than `max_bytes` need are refused. None if some are
    missing."""
    assembler, first_id = Assembler(max_bytes), None
    for number, frame in enumerate(frames, 1):
        body = assembler.add(frame)
        _, _, body_id, index, count, _, _ = _HEAD.unpack_from(frame)
        first_id = first_id or body_id
        if body_id != first_id:
            raise MessageRejected("contradiction", f"chunk {index} is of another body than those before")
        if count > 1 + max_bytes // _LEAST_STRIDE:
            raise MessageRejected("schema", f"a body in {count} chunks, where {max_bytes} bytes are the most")
        if body is not None or number >= _MOST_TIMES * count:
            return body
    return None


def _parse(frame: memoryview) -> tuple[bytes, int, _Outline, memoryview, bytes]:
    if bytes(frame[: len(_MAGIC)]) != _MAGIC:
        raise MessageRejected("not_fedil", "this is no chunk frame")
    if len(frame) < OVERHEAD_BYTES:
        raise MessageRejected("truncated", f"a chunk frame of {len(frame)} bytes")
    _, version, body_id, index, count, stride, total = _HEAD.unpack_from(frame)
    if version != _VERSION:
        raise MessageRejected("unknown_version", f"chunk format {version}; this side reads {_VERSION}")
    frame_digest = bytes(frame[-DIGEST_BYTES:])
    if raw_digest([frame[:-DIGEST_BYTES]]) != frame_digest:
        raise MessageRejected("digest", "a chunk is cut short or damaged")
    payload = frame[_HEAD.size : -DIGEST_BYTES]
    if stride < 1 or count > MAX_CHUNKS or count != _count(total, stride) or index >= count:
        raise MessageRejected("schema", f"chunk {index} of {count} by {stride} of {total} bytes cannot be")
    if len(payload) != min(stride, total - index * stride):
        raise MessageRejected("schema", f"chunk {index} has {len(payload)} bytes, which its head denies")
    return body_id, index, _Outline(count, stride, total), payload, frame_digest
