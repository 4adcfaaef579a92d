"""Bodies in pieces: size, digest, aligned memory, and splitting at other places without a copy."""

from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from broker_config.protocol.errors import MessageRejected
from broker_config.transports.interface import Buffers

DIGEST_BYTES = 16
ALIGNMENT = 64
"""Bytes. Arrays in a body, and bodies in memory, start at multiples of this: elsewhere BLAS rounds differently, and an
array would have to be copied before it is computed with."""


def aligned_buffer(num_bytes: int) -> memoryview:
    """Memory whose pages are not touched yet: a false size in a header costs nothing."""
    block = np.empty(num_bytes + ALIGNMENT - 1, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + num_bytes].data


def size(buffers: Buffers) -> int:
    return sum(memoryview(piece).nbytes for piece in buffers)


def check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise MessageRejected("too_large", f"a body of {num_bytes} bytes; at most {max_bytes}")


def digest(buffers: Iterable[bytes | memoryview]) -> str:
    """xxh3_128 of the whole body as hex, however the body is split."""
    return raw_digest(buffers).hex()


def raw_digest(buffers: Iterable[bytes | memoryview]) -> bytes:
    state = xxhash.xxh3_128()
    for piece in buffers:
        state.update(piece)
    return state.digest()


def resplit(buffers: Buffers, stride: int) -> Iterator[list[memoryview]]:
    """The same body as lists of views, `stride` bytes in each list but the last; an empty body is one empty list."""
    views: list[memoryview] = []
    bytes_left = stride
    for piece in buffers:
        rest = memoryview(piece).cast("B")
        while len(rest) >= bytes_left:
            yield [*views, rest[:bytes_left]]
            views, rest, bytes_left = [], rest[bytes_left:], stride
        if len(rest):
            views.append(rest)
            bytes_left -= len(rest)
    if views or not size(buffers):
        yield views
