"""Decoding returns what was encoded, and raises MessageRejected for any other bytes."""

import math
import string
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from broker_config.protocol import buffers, chunks, wire
from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.messages import Message, ModelEntry, Refusal, TrainTask, Update
from broker_config.transports.interface import ModelAddress

QUICK = settings(max_examples=60, deadline=None)

DTYPES = ["?", "<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", ">f4", ">i8"]
names = st.text(st.characters(codec="utf-8"), max_size=20)
arrays = st.dictionaries(
    names,
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, min_side=0, max_side=5)),
    max_size=8,
)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | names
metas = st.dictionaries(
    names, st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner))
)

counts = st.integers(0, 2**63 - 1)
runs = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", fullmatch=True)
activations = {"run": runs, "round": counts, "client": counts, "activation": counts}
entries = st.builds(
    ModelEntry,
    address=st.builds(ModelAddress, run=runs, version=counts, offset=counts, entry=names),
    digest=st.text(string.digits + "abcdef", min_size=32, max_size=32),
)
tasks = st.builds(
    TrainTask,
    **activations,
    model=entries,
    learning=names,
    extras=st.dictionaries(names, entries, max_size=3),
)
updates = st.builds(
    Update,
    **activations,
    base_version=counts,
    num_samples=counts,
    num_steps=counts,
    tensors=arrays,
    metrics=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
refusals = st.builds(Refusal, **activations, reason=names, detail=names)


def assert_same_arrays(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype.newbyteorder("<")
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.astype(found[name].dtype).tobytes()


def body_with_some_of_everything() -> bytes:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "mask": np.array([True, False])}
    return b"".join(wire.encode_message(Update("run", 1, 2, 3, 4, 5, 6, tensors, {"loss": 0.5})))


@QUICK
@given(names, metas, arrays)
def test_decoding_returns_the_encoded_arrays(
    kind: str, meta: dict[str, Any], given: dict[str, np.ndarray]
) -> None:
    found_meta, found = wire.decode_arrays(b"".join(wire.encode_arrays(kind, meta, given)), kind)
    assert found_meta == meta
    assert_same_arrays(found, given)
    assert not any(array.flags.writeable for array in found.values())


@QUICK
@given(tasks | updates | refusals)
def test_decoding_returns_the_encoded_message(message: Message) -> None:
    found = wire.decode_message(b"".join(wire.encode_message(message)))
    if isinstance(message, Update) and isinstance(found, Update):
        assert_same_arrays(found.tensors, message.tensors)
        found, message = (Update(**{**vars(each), "tensors": {}}) for each in (found, message))
    assert found == message


@QUICK
@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_digest_and_size_do_not_depend_on_the_pieces_of_a_body(body: bytes, cuts: list[int]) -> None:
    pieces = [memoryview(body)[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(body)])]
    assert buffers.digest(pieces) == buffers.digest([body])
    assert buffers.size(pieces) == len(body)


@QUICK
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.integers(65, 150), st.data())
def test_bodies_are_assembled_from_chunks_in_any_order_repeated_and_interleaved(
    bodies: list[bytes], max_bytes: int, data: st.DataObject
) -> None:
    frames: list[bytes] = []
    for number, body in enumerate(bodies):
        frames += chunks.split([body[:7], body[7:]], max_bytes, body_id=number.to_bytes(16, "big"))
    assert all(len(frame) <= max_bytes for frame in frames)
    assembler = chunks.Assembler()
    finished: list[bytes] = []
    seen: set[bytes] = set()
    for frame in data.draw(st.permutations(frames)):
        seen.add(frame)
        if (whole := assembler.add(frame)) is not None:
            finished.append(bytes(whole))
            continue
        # A repeat of a chunk whose body is still incomplete changes nothing.
        assert assembler.add(frame) is None
    assert seen == set(frames)
    assert sorted(finished) == sorted(bodies)


@QUICK
@given(st.binary(max_size=300))
def test_random_bytes_raise_only_message_rejected(garbage: bytes) -> None:
    for prefix in (b"", b"FedIL\0", b"FedIL\0\1\0", b"FedILc", b"FedILc\1\0"):
        with pytest.raises(MessageRejected):
            wire.decode_message(prefix + garbage)
        with pytest.raises(MessageRejected):
            chunks.Assembler().add(prefix + garbage)


@QUICK
@given(st.binary(max_size=200))
def test_random_bytes_with_a_valid_digest_raise_only_message_rejected(header: bytes) -> None:
    """A sender with a correct digest can still send any header."""
    with pytest.raises(MessageRejected):
        wire.decode_message(sealed(header))


header_values = st.recursive(
    scalars | st.sampled_from(["kind", "meta", "arrays", "float32", "bool", 2**40, 2**62]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=5),
    header_values,
    st.lists(st.tuples(names, st.sampled_from(["bool", "int8"]), header_values) | header_values),
)
def test_wrong_values_in_a_well_formed_header_raise_only_message_rejected(
    kind: str, meta: object, specs: list[object]
) -> None:
    header = wire.pack_fields({"kind": kind, "meta": meta, "arrays": specs})
    try:
        wire.decode_arrays(sealed(header), kind)
    except MessageRejected:
        return
    assert isinstance(meta, dict)


@pytest.mark.parametrize(
    "spec",
    [
        ["w", "float64", [0, 2**61, 2**61]],
        ["w", "float64", [2**61]],
        ["w", "float64", [-1]],
        ["w", "float64", [True]],
        ["w", "float64", [0] * 17],
        ["w", "object", [0]],
        ["w" * 300, "int8", [0]],
        ["w", "int8", [1]],
        ["w", "int8"],
    ],
)
def test_an_impossible_array_is_rejected(spec: list[object]) -> None:
    header = wire.pack_fields({"kind": "model", "meta": {}, "arrays": [spec]})
    with pytest.raises(MessageRejected, match="schema"):
        wire.decode_arrays(sealed(header), "model")


def sealed(header: bytes) -> bytes:
    prelude = (
        b"FedIL\0\1\0" + (20 + len(header) + 16).to_bytes(8, "little") + len(header).to_bytes(4, "little")
    )
    return prelude + header + bytes.fromhex(buffers.digest([prelude, header]))


def test_every_damaged_byte_is_detected() -> None:
    body = body_with_some_of_everything()
    for position in range(len(body)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(body)
            damaged[position] ^= flip
            with pytest.raises(MessageRejected):
                wire.decode_message(damaged)


def test_every_truncation_and_extension_is_detected() -> None:
    body = body_with_some_of_everything()
    for length in range(len(body)):
        with pytest.raises(MessageRejected) as rejection:
            wire.decode_message(body[:length])
        assert rejection.value.reason in ("truncated", "not_fedil")
    with pytest.raises(MessageRejected, match="trailing_bytes"):
        wire.decode_message(body + b"\0")


def test_every_damaged_or_missing_byte_of_a_chunk_is_detected() -> None:
    frame = next(chunks.split([b"weights" * 9], 100))
    for position in range(len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 0x10
        for bad in (damaged, frame[:position]):
            with pytest.raises(MessageRejected):
                chunks.Assembler().add(bad)


@QUICK
@given(st.sampled_from([math.nan, math.inf, -math.inf]))
def test_weights_that_are_not_finite_are_transmitted_unchanged(value: float) -> None:
    """The server rejects them, with a reason; the wire format does not."""
    tensors = {"w": np.array([value], np.float32)}
    found = wire.decode_message(b"".join(wire.encode_message(Update("r", 0, 0, 1, 0, 0, 0, tensors))))
    assert isinstance(found, Update)
    assert_same_arrays(found.tensors, tensors)
