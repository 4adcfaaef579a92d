"""Bodies in pieces: their size, their digest, and cutting them anew without joining them."""

from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from broker_config.protocol.errors import MessageRejected
from broker_config.transports.interface import Buffers

DIGEST_BYTES = 16
ALIGNMENT = 64
"""Bytes: where arrays may lie in a body, and a body in memory. Elsewhere BLAS would have other last bits, so that
whoever computes with an array would have to copy it."""


def room_for(num_bytes: int) -> memoryview:
    """Reserved without touching the pages: a size that is a lie costs nothing yet."""
    block = np.empty(num_bytes + ALIGNMENT - 1, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + num_bytes].data


def size(buffers: Buffers) -> int:
    return sum(memoryview(piece).nbytes for piece in buffers)


def check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise MessageRejected("too_large", f"a body of {num_bytes} bytes; at most {max_bytes}")


def digest(buffers: Iterable[bytes | memoryview]) -> str:
    """Hex of xxh3_128 over the whole body; how the body is cut makes no difference."""
    return raw_digest(buffers).hex()


def raw_digest(buffers: Iterable[bytes | memoryview]) -> bytes:
    state = xxhash.xxh3_128()
    for piece in buffers:
        state.update(piece)
    return state.digest()


def recut(buffers: Buffers, stride: int) -> Iterator[list[memoryview]]:
    """The same body as runs of views, each run `stride` bytes long but the last; an empty body is one run."""
    run: list[memoryview] = []
    room = stride
    for piece in buffers:
        rest = memoryview(piece).cast("B")
        while len(rest) >= room:
            yield [*run, rest[:room]]
            run, rest, room = [], rest[room:], stride
        if len(rest):
            run.append(rest)
            room -= len(rest)
    if run or not size(buffers):
        yield run
