import re
import tracemalloc
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from broker_config.protocol import buffers, wire
from broker_config.protocol.buffers import DIGEST_BYTES, raw_digest
from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask, Update
from broker_config.transports.interface import ModelAddress

TASK = TrainTask("run-1", 3, 7, 2, ModelEntry(ModelAddress("run-1", 3, 40), "0123456789abcdef" * 2), "{}")
TASK_FIELDS = asdict(TASK)
ADDRESS_FIELDS = TASK_FIELDS["model"]["address"]
UPDATE = Update("run-1", 3, 7, 2, 3, 600, 12, {"w": np.ones(3, np.float32)}, {"loss": 0.5})


def encoded(kind: str, fields: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> bytes:
    return b"".join(wire.encode_arrays(kind, fields, arrays or {}))


def reason_of(body: bytes) -> str:
    with pytest.raises(MessageRejected) as rejection:
        wire.decode_message(body)
    return rejection.value.reason


def test_encoded_pieces_are_views_of_the_arrays() -> None:
    weights = np.arange(100, dtype=np.float32)
    pieces = wire.encode_arrays("model", {}, {"w": weights})
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), weights) for piece in pieces)


def test_decoded_arrays_are_views_of_the_body_at_multiples_of_64_bytes() -> None:
    body = encoded("model", {}, {"a": np.ones(3, np.int8), "b": np.ones(5, np.float64)})
    whole = np.frombuffer(body, np.uint8)
    _, arrays = wire.decode_arrays(body, "model")
    for array in arrays.values():
        assert np.shares_memory(array, whole)
        assert (array.ctypes.data - whole.ctypes.data) % 64 == 0


def test_arrays_that_are_not_contiguous_are_encoded() -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T[::-1]
    _, arrays = wire.decode_arrays(encoded("model", {}, {"w": transposed}), "model")
    np.testing.assert_array_equal(arrays["w"], transposed)


@pytest.mark.parametrize("dtype", [np.complex64, object, "U3", "datetime64[s]", np.longdouble])
def test_arrays_of_other_types_are_not_encoded(dtype: Any) -> None:
    with pytest.raises(MessageRejected, match="'strange'"):
        wire.encode_arrays("model", {}, {"strange": np.zeros(2, dtype)})


def test_meta_with_other_than_plain_values_is_not_encoded() -> None:
    with pytest.raises(MessageRejected, match="plain"):
        wire.encode_arrays("model", {"when": object()}, {})


def test_a_header_above_its_limit_is_not_encoded() -> None:
    with pytest.raises(MessageRejected, match="too_large"):
        wire.encode_arrays("model", {"text": "x" * wire.MAX_HEADER_BYTES}, {})


def test_more_arrays_than_the_limit_are_not_encoded() -> None:
    empty = np.zeros(0, np.int8)
    with pytest.raises(MessageRejected, match=str(wire.MAX_ARRAYS)):
        wire.encode_arrays("model", {}, {str(number): empty for number in range(wire.MAX_ARRAYS + 1)})


def test_another_kind_than_expected_is_rejected() -> None:
    with pytest.raises(MessageRejected, match="wrong_kind"):
        wire.decode_arrays(encoded("ledger", {}), "model")
    assert reason_of(encoded("ledger", {})) == "wrong_kind"


def test_the_reason_names_what_is_wrong_with_the_bytes() -> None:
    body = b"".join(wire.encode_message(TASK))
    assert reason_of(b"") == "not_fedil"
    assert reason_of(b"\x80\x04\x95pickled") == "not_fedil"
    assert reason_of(body[:6] + b"\2" + body[7:]) == "unknown_version"
    assert reason_of(body[:-1]) == "truncated"
    assert reason_of(body + b"x") == "trailing_bytes"
    assert reason_of(body.replace(b"run-1", b"run-2")) == "digest"


def test_a_bool_that_is_neither_0_nor_1_is_rejected() -> None:
    body = encoded("model", {}, {"mask": np.array([True, False])})
    payload = body[:-18] + b"\2\0"
    with pytest.raises(MessageRejected, match="bool"):
        wire.decode_arrays(payload + bytes.fromhex(buffers.digest([payload])), "model")


@pytest.mark.parametrize("field", TASK_FIELDS)
def test_a_missing_field_is_named(field: str) -> None:
    fields = {name: value for name, value in TASK_FIELDS.items() if name != field}
    with pytest.raises(MessageRejected, match=f"schema: field '{field}' is missing"):
        wire.decode_message(encoded("TrainTask", fields))


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(MessageRejected, match="schema: field 'colour' is unknown"):
        wire.decode_message(encoded("TrainTask", {**TASK_FIELDS, "colour": "red"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "../etc"),
        ("run", "run-1\n"),
        ("run", ""),
        ("run", "x" * 81),
        ("run", 7),
        ("round", -1),
        ("round", 2**63),
        ("client", 1.0),
        ("client", True),
        ("activation", None),
        ("model", []),
        ("extras", {str(number): TASK_FIELDS["model"] for number in range(65)}),
        ("learning", b"{}"),
        ("learning", "x" * 70_000),
    ],
)
def test_a_field_out_of_bounds_is_named(field: str, value: object) -> None:
    with pytest.raises(MessageRejected, match=f"schema: field '{field}' must be"):
        wire.decode_message(encoded("TrainTask", {**TASK_FIELDS, field: value}))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model": {**TASK_FIELDS["model"], "digest": "0" * 31}}, "model.digest"),
        ({"model": {**TASK_FIELDS["model"], "digest": "G" * 32}}, "model.digest"),
        (
            {"model": {"address": {**ADDRESS_FIELDS, "version": -1}, "digest": "0" * 32}},
            "model.address.version",
        ),
        ({"extras": {"helper": {"address": ADDRESS_FIELDS, "digest": 7}}}, "extras.helper.digest"),
    ],
)
def test_a_field_inside_a_field_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(MessageRejected, match=f"'{re.escape(name)}'"):
        wire.decode_message(encoded("TrainTask", TASK_FIELDS | fields))


@pytest.mark.parametrize(
    "metrics",
    [{"loss": float("nan")}, {"loss": float("inf")}, {"loss": "0.5"}, {str(n): 0.0 for n in range(257)}, []],
    ids=["nan", "inf", "text", "too many", "list"],
)
def test_metrics_out_of_bounds_are_named(metrics: object) -> None:
    fields = {name: value for name, value in vars(UPDATE).items() if name != "tensors"}
    with pytest.raises(MessageRejected, match="'metrics"):
        wire.decode_message(encoded("Update", {**fields, "metrics": metrics}))


def test_tensors_in_a_message_without_tensors_are_rejected() -> None:
    assert reason_of(encoded("TrainTask", TASK_FIELDS, {"w": np.zeros(1)})) == "schema"


def test_a_repeated_field_is_rejected() -> None:
    twice = b"\x82\xa1a\x01\xa1a\x02"
    with pytest.raises(MessageRejected, match="repeated"):
        wire.unpack_fields(twice)


def test_an_invalid_message_is_not_encoded() -> None:
    with pytest.raises(MessageRejected, match="'run'"):
        wire.encode_message(Refusal("no such/run", 1, 2, 3, "no_data", "the shard is empty"))


def header_of(packed: bytes) -> bytes:
    """A body without arrays, whose header are these bytes."""
    total = wire._PRELUDE.size + len(packed) + DIGEST_BYTES
    pieces = [wire._PRELUDE.pack(wire._MAGIC, wire._VERSION, total, len(packed)), packed]
    return b"".join([*pieces, raw_digest(pieces)])


EMPTY_LISTS = b"\x81\xa4meta\xdd" + (4_000_000).to_bytes(4, "big") + b"\x90" * 4_000_000
MANY_LISTS = b"\xdd" + (1000).to_bytes(4, "big") + (b"\xdc\x03\xe8" + b"\x90" * 1000) * 1000


@pytest.mark.parametrize(
    "packed",
    [EMPTY_LISTS, MANY_LISTS, b"\x91" * 1000 + b"\x90", b"\x81\xa1a" * 1000 + b"\x80"],
    ids=["empty lists", "lists of lists", "depth of lists", "depth of maps"],
)
def test_a_header_of_many_values_is_refused_before_it_takes_memory(packed: bytes) -> None:
    body = header_of(packed)
    tracemalloc.start()
    try:
        assert reason_of(body) == "too_large"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_a_header_within_all_bounds_is_decoded() -> None:
    meta = {"numbers": list(range(300_000)), "deep": [[[[[[[[[["here"]]]]]]]]]]}
    assert wire.decode_arrays(encoded("model", meta), "model")[0] == meta


@pytest.mark.parametrize(
    "packed", [b"", b"\x92\x01", b"\xdd\x00", b"\xc1", b"\xd4\x01a", b"\xdd\0\0\xff\xff" * 10]
)
def test_fields_that_end_early_or_are_not_msgpack_are_refused(packed: bytes) -> None:
    with pytest.raises(MessageRejected, match="schema"):
        wire.unpack_fields(packed)
