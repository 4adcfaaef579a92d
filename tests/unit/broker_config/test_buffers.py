import socket
from typing import Any

import numpy as np
import pytest

from broker_config.embedded.frames import receive_frame, send_frame
from broker_config.protocol.buffers import ALIGNMENT, aligned_buffer
from broker_config.protocol.chunks import assembled, split


def address(body: memoryview) -> int:
    return int(np.frombuffer(body, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 100_000, 1 << 20])
def test_an_aligned_buffer_has_the_requested_size_and_alignment(size: int) -> None:
    buffers = [aligned_buffer(size) for _ in range(5)]
    assert [len(buffer) for buffer in buffers] == [size] * 5
    assert [address(buffer) % ALIGNMENT for buffer in buffers] == [0] * 5
    buffers[0][:] = bytes(range(256)) * (size // 256) + bytes(size % 256)


def test_an_aligned_buffer_of_size_0_is_empty() -> None:
    assert len(aligned_buffer(0)) == 0


def test_a_body_assembled_from_chunks_is_aligned() -> None:
    content = np.random.default_rng(0).bytes(100_001)
    for limit in (1000, 4096, 200_000):
        body = assembled(split([content], limit))
        assert body is not None
        assert bytes(body) == content
        assert address(body) % ALIGNMENT == 0


def test_a_body_received_from_a_socket_is_aligned() -> None:
    here, there = socket.socketpair()
    fields: dict[str, Any] = {"a": 1}
    with here, there:
        for size in (1, 777, 50_000):
            send_frame(here, fields, [bytes(size)])
            found, body = receive_frame(there)
            assert found == fields
            assert len(body) == size
            assert address(body) % ALIGNMENT == 0
