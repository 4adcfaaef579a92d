"""Splits a body that exceeds the broker's message size into chunk frames, and puts it together again.

A frame carries the id of its body, its position, the size of the whole body and its own digest:

    head (magic, version, body id, index, count, stride, total)   payload   xxh3_128 of all before

Every chunk but the last is `stride` bytes long, so a frame's position in the body follows from its own header.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broker_config.protocol.buffers import DIGEST_BYTES, aligned_buffer, check_size, raw_digest, resplit, size
from broker_config.protocol.errors import MessageRejected
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers

_MAGIC = b"FedILc"
_VERSION = 1
_HEAD = struct.Struct("<6sH16sIIQQ")
OVERHEAD_BYTES = _HEAD.size + DIGEST_BYTES
MAX_CHUNKS = 1 << 16
_BODY_BOOKKEEPING_BYTES, _CHUNK_BOOKKEEPING_BYTES = 2048, 256
"""Approximate memory of an incomplete body and of each of its chunks, besides the content"""
_MAX_REPEATS = 2
"""How often a chunk may arrive: again after a lost confirm, but not forever"""
_MIN_STRIDE = 8 << 10
"""A large body in smaller chunks is an attack: it would keep its reader busy for minutes."""


def split(buffers: Buffers, max_bytes: int, body_id: bytes | None = None) -> Iterator[bytes]:
    """Frames of at most `max_bytes` each. Bodies that may reach one assembler at the same time need different ids;
    the default is the digest, which equal bodies share."""
    stride = max_bytes - OVERHEAD_BYTES
    if stride < 1:
        raise ValueError(f"max_bytes must exceed the {OVERHEAD_BYTES} bytes that a frame needs for itself")
    total = size(buffers)
    count = _count(total, stride)
    if count > MAX_CHUNKS:
        raise MessageRejected("too_large", f"{total} bytes need {count} chunks, more than {MAX_CHUNKS}")
    body_id = body_id or raw_digest(buffers)
    for index, payload in enumerate(resplit(buffers, stride)):
        head = _HEAD.pack(_MAGIC, _VERSION, body_id, index, count, stride, total)
        yield b"".join([head, *payload, raw_digest([head, *payload])])


def _count(total: int, stride: int) -> int:
    return max(1, -(-total // stride))


@dataclass(frozen=True)
class _Outline:
    """The header fields that all frames of a body share."""

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

    Incomplete bodies take at most `max_bytes` in total, or there is only one. The oldest is dropped for a new one,
    because its sender may be dead. A complete body is forgotten, so a redelivery of its frames completes it again.
    """

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partials: dict[bytes, _Partial] = {}
        self._reserved_bytes = 0

    def add(self, frame: bytes | bytearray | memoryview) -> memoryview | None:
        """The whole body if this frame completes it. Raises MessageRejected for a malformed frame."""
        body_id, index, outline, payload, frame_digest = _parse(memoryview(frame).cast("B"))
        partial = self._partials.get(body_id) or self._begin(body_id, outline)
        if partial.outline != outline:
            raise MessageRejected("contradiction", f"chunk {index} has the id of a body with another size")
        if partial.digests.setdefault(index, frame_digest) != frame_digest:
            raise MessageRejected("contradiction", f"chunk {index} arrived twice with different content")
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
        partial = _Partial(outline, aligned_buffer(outline.total))
        self._partials[body_id] = partial
        self._reserved_bytes += outline.reserved_bytes
        return partial

    def _forget(self, body_id: bytes) -> None:
        self._reserved_bytes -= self._partials.pop(body_id).outline.reserved_bytes


def assembled(frames: Iterable[bytes], max_bytes: int = MAX_BODY_BYTES) -> memoryview | None:
    """Puts one body together from its frames, in any order. None if frames are missing. Reads at most twice as many
    frames as the body has chunks, and refuses a body with far more chunks than `max_bytes` needs."""
    assembler, first_id = Assembler(max_bytes), None
    for number, frame in enumerate(frames, 1):
        body = assembler.add(frame)
        _, _, body_id, index, count, _, _ = _HEAD.unpack_from(frame)
        first_id = first_id or body_id
        if body_id != first_id:
            raise MessageRejected(
                "contradiction", f"chunk {index} belongs to another body than the chunks before"
            )
        if count > 1 + max_bytes // _MIN_STRIDE:
            raise MessageRejected("schema", f"a body in {count} chunks; the limit is {max_bytes} bytes")
        if body is not None or number >= _MAX_REPEATS * count:
            return body
    return None


def _parse(frame: memoryview) -> tuple[bytes, int, _Outline, memoryview, bytes]:
    if bytes(frame[: len(_MAGIC)]) != _MAGIC:
        raise MessageRejected("not_fedil", "not a chunk frame")
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
        raise MessageRejected(
            "schema", f"chunk {index} of {count} by {stride} of {total} bytes is impossible"
        )
    if len(payload) != min(stride, total - index * stride):
        raise MessageRejected("schema", f"chunk {index} has {len(payload)} bytes, unlike its header says")
    return body_id, index, _Outline(count, stride, total), payload, frame_digest
