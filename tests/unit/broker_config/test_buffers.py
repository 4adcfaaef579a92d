import socket
from typing import Any

import numpy as np
import pytest

from broker_config.embedded.frames import receive_frame, send_frame
from broker_config.protocol.buffers import ALIGNMENT, room_for
from broker_config.protocol.chunks import assembled, split


def address(body: memoryview) -> int:
    return int(np.frombuffer(body, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 100_000, 1 << 20])
def test_room_is_as_large_as_asked_and_lies_where_arithmetic_wants_it(size: int) -> None:
    rooms = [room_for(size) for _ in range(5)]
    assert [len(room) for room in rooms] == [size] * 5
    assert [address(room) % ALIGNMENT for room in rooms] == [0] * 5
    rooms[0][:] = bytes(range(256)) * (size // 256) + bytes(size % 256)


def test_room_for_nothing_is_empty() -> None:
    assert len(room_for(0)) == 0


def test_a_body_put_together_from_chunks_lies_there() -> None:
    content = np.random.default_rng(0).bytes(100_001)
    for limit in (1000, 4096, 200_000):
        body = assembled(split([content], limit))
        assert body is not None
        assert bytes(body) == content
        assert address(body) % ALIGNMENT == 0


def test_a_body_from_a_socket_lies_there() -> None:
    here, there = socket.socketpair()
    fields: dict[str, Any] = {"a": 1}
    with here, there:
        for size in (1, 777, 50_000):
            send_frame(here, fields, [bytes(size)])
            found, body = receive_frame(there)
            assert found == fields
            assert len(body) == size
            assert address(body) % ALIGNMENT == 0
