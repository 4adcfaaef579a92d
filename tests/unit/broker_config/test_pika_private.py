"""pika still has the private names that pika_private.py uses, and still lacks the public features that replace them."""

import inspect
import re
import struct
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pika
import pika.data
import pika.exceptions
import pika.frame
import pika.spec
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.select_connection import SelectConnection
from pika.adapters.utils import io_services_utils
from pika.channel import Channel
from pika.connection import Connection

from broker_config.transports.rabbitmq import pika_private

UNREADABLE = struct.pack(">I", 13) + b"\x03x-tT" + struct.pack(">Q", 2**63 - 1)
"""A header table with a date out of range"""


def unchanged(module: ModuleType) -> ModuleType:
    """A new copy of a module that pika_private has changed."""
    spec = util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    copy = util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def replaced(function: str, feature: str) -> str:
    return f"pika has {feature} now: use it, and delete {function} from pika_private.py"


def test_read_limits_exist_and_are_small_by_default() -> None:
    limits = vars(unchanged(io_services_utils)._AsyncTransportBase)
    for limit in pika_private.READ_LIMITS:
        assert isinstance(limits[limit], int)
    assert limits["_MAX_RECV_BYTES"] < 64 << 10, replaced("read_large_pieces", "a larger default")
    pika_private.read_large_pieces()
    changed = vars(io_services_utils._AsyncTransportBase)
    assert {changed[limit] for limit in pika_private.READ_LIMITS} == {pika_private.READ_BYTES}


def frames() -> list[bytes]:
    contents = [b"", b"a", b"AMQP", bytes(1000), b"\xce" * 50]
    deliver = pika.spec.Basic.Deliver("tag", 7, False, "exchange", "key")
    marked = pika.BasicProperties(headers={"x": "y"})
    return [
        pika.frame.Heartbeat().marshal(),
        pika.frame.Method(1, deliver).marshal(),
        pika.frame.Header(1, 1051, marked).marshal(),
        *(pika.frame.Body(1, content).marshal() for content in contents),
        pika.frame.Heartbeat().marshal(),
    ]


def decoded(pieces: list[bytes], in_place: bool) -> tuple[list[bytes], int, bytes]:
    """Frames that pika takes from these pieces, the number of bytes in them, and what is left"""
    taken: list[bytes] = []
    inner: Any = SelectConnection.__new__(SelectConnection)
    inner._frame_buffer, inner.bytes_received = b"", 0
    inner._process_frame = lambda each: taken.append(each.marshal())
    if in_place:
        pika_private.decode_in_place(SimpleNamespace(_impl=inner))
        assert "_on_data_available" in vars(inner)
    for piece in pieces:
        inner._on_data_available(piece)
    return taken, inner.bytes_received, bytes(inner._frame_buffer)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 100, 10_000])
def test_frames_are_the_same_when_they_are_decoded_in_place(size: int) -> None:
    sent = b"".join(frames()) + frames()[1][:-3]
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    expected = frames(), len(b"".join(frames())), frames()[1][:-3]
    assert decoded(pieces, in_place=False) == decoded(pieces, in_place=True) == expected


def test_contents_are_not_copied_when_frames_are_decoded_in_place() -> None:
    for in_place, kind in ((False, bytes), (True, memoryview)):
        inner: Any = SelectConnection.__new__(SelectConnection)
        inner._frame_buffer, inner.bytes_received = b"", 0
        taken: list[object] = []
        inner._process_frame = lambda each, taken=taken: taken.append(each.fragment)
        if in_place:
            pika_private.decode_in_place(SimpleNamespace(_impl=inner))
        inner._on_data_available(pika.frame.Body(1, b"content").marshal())
        assert [type(fragment) for fragment in taken] == [kind], replaced("decode_in_place", "no copies")


def test_a_frame_without_its_end_is_an_error_in_place_too() -> None:
    for frame in (frames()[-2], frames()[1]):
        with pytest.raises(pika.exceptions.InvalidFrameError):
            decoded([frame[:-1] + b"\0"], in_place=True)


def test_a_protocol_header_is_decoded_by_pika_itself() -> None:
    header = pika.frame.ProtocolHeader().marshal()
    for pieces in ([header], [header[:5], header[5:]]):
        assert decoded(pieces, in_place=True) == decoded(pieces, in_place=False) == ([header], 8, b"")


def test_without_these_names_pika_decodes_as_it_does() -> None:
    pika_private.decode_in_place(SimpleNamespace())
    pika_private.decode_in_place(SimpleNamespace(_impl=SimpleNamespace(_frame_buffer=b"")))


def test_an_unreadable_header_table_is_an_error_by_default_and_empty_with_us() -> None:
    try:
        unchanged(pika.data).decode_table(UNREADABLE, 0)
    except Exception:
        pika_private.accept_unreadable_headers()
        pika_private.accept_unreadable_headers()  # wraps once
        assert pika.data.decode_table(UNREADABLE, 0) == ({}, len(UNREADABLE))
        assert not hasattr(pika.data.decode_table.__wrapped__, "__wrapped__")
    else:
        pytest.fail(replaced("accept_unreadable_headers", "a tolerant decode_table"))


def test_decoding_properties_calls_the_function_that_we_replace() -> None:
    pika_private.accept_unreadable_headers()
    encoded = struct.pack(">H", pika.BasicProperties.FLAG_HEADERS) + UNREADABLE
    assert pika.BasicProperties().decode(encoded).headers == {}


def test_server_properties_are_private() -> None:
    assert "_impl" in BlockingConnection.__init__.__code__.co_names
    assert "server_properties" in inspect.getsource(Connection)
    assert not hasattr(BlockingConnection, "server_properties"), replaced(
        "server_properties", "BlockingConnection.server_properties"
    )
    assert pika_private.server_properties(SimpleNamespace()) == {}


def test_the_closing_reason_is_private() -> None:
    assert "_closing_reason" in BlockingChannel.__init__.__code__.co_names
    for feature in ("closing_reason", "add_on_close_callback"):
        assert not hasattr(BlockingChannel, feature), replaced("closing_reason", f"BlockingChannel.{feature}")
    assert pika_private.closing_reason(SimpleNamespace()) is None


def test_closing_a_channel_rejects_pending_messages() -> None:
    assert "_impl" in BlockingChannel.__init__.__code__.co_names
    rejects = "_cancel_all_consumers" in BlockingChannel.close.__code__.co_names
    assert rejects, replaced("close_without_reject", "a close() that does not reject")
    assert "basic_reject" in inspect.getsource(BlockingChannel.basic_cancel)
    pika_private.close_without_reject(SimpleNamespace())


def test_confirms_with_callbacks_are_private() -> None:
    assert callable(BlockingChannel._flush_output)
    assert "ack_nack_callback" in inspect.signature(Channel.confirm_delivery).parameters
    parameters = set(inspect.signature(BlockingChannel.confirm_delivery).parameters)
    assert parameters == {"self"}, replaced("start_confirms", "confirm_delivery with parameters")
    for channel in (SimpleNamespace(_impl=object()), SimpleNamespace(_flush_output=object())):
        assert pika_private.start_confirms(channel, lambda *_: None, lambda *_: None) is None


def test_no_other_file_uses_these_names() -> None:
    names = re.compile(
        r"\b(_impl|_flush_output|_closing_reason|_AsyncTransportBase|decode_table|_frame_buffer|_on_data_available)\b"
    )
    here = Path(pika_private.__file__)
    assert [path.name for path in here.parent.glob("*.py") if names.search(path.read_text())] == [here.name]
