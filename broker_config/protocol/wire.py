"""Encodes arrays and messages. No pickle: decoding any bytes returns values within bounds or raises MessageRejected.

    magic  version  total size  header size | header | pad | array | pad | array … | xxh3_128 of all before

The header is msgpack: kind, meta, and name, dtype and shape of each array. Arrays are little-endian, start at multiples
of 64 bytes and are read in place. Models, updates, ledgers and checkpoints use this format.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgpack
import numpy as np

from broker_config.protocol.buffers import ALIGNMENT, DIGEST_BYTES, raw_digest
from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.messages import Message
from broker_config.protocol.schema import from_fields, to_fields

_MAGIC = b"FedIL\0"
_VERSION = 1
_PRELUDE = struct.Struct("<6sHQI")
MAX_HEADER_BYTES = 4 << 20
MAX_ARRAYS = 1 << 16
MAX_ELEMENTS = 8 * MAX_ARRAYS
"""Values in a header, maps and lists included: name, dtype and dimensions of each array"""
MAX_DEPTH = 16
"""Of lists and maps within each other"""
MAX_DIMS = 16
MAX_NAME_LENGTH = 256
_DTYPES = {
    np.dtype(code).name: np.dtype(code)
    for code in ("?", "<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8")
}


class _Slot(NamedTuple):
    """The position of an array in a body."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def encode_arrays(
    kind: str, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> list[bytes | memoryview]:
    """The pieces of one body. They are views of the arrays, which must not change before the pieces are sent."""
    specs = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    header = pack_fields({"kind": kind, "meta": dict(meta), "arrays": specs})
    slots, end = _lay_out(specs, _PRELUDE.size + len(header))
    prelude = _PRELUDE.pack(_MAGIC, _VERSION, end + DIGEST_BYTES, len(header))
    pieces: list[bytes | memoryview] = [prelude + header]
    position = len(prelude) + len(header)
    for slot in slots:
        if slot.stop > slot.start:
            pieces += [bytes(slot.start - position), _bytes_of(arrays[slot.name], slot.dtype)]
            position = slot.stop
    pieces.append(raw_digest(pieces))
    return pieces


def decode_arrays(
    body: bytes | bytearray | memoryview, kind: str, max_elements: int = MAX_ELEMENTS
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Meta and arrays; the arrays are read-only views into `body`."""
    found, meta, arrays = _decode(body, max_elements)
    if found != kind:
        raise MessageRejected("wrong_kind", f"expected {kind!r}, found {found!r:.80}")
    return meta, arrays


def encode_message(message: Message) -> list[bytes | memoryview]:
    return encode_arrays(*to_fields(message))


def decode_message(body: bytes | bytearray | memoryview) -> Message:
    return from_fields(*_decode(body))


def pack_fields(fields: Mapping[str, object]) -> bytes:
    """Plain values (None, bool, int, float, str, bytes, lists, dicts by str) as bounded msgpack."""
    try:
        packed: bytes = msgpack.packb(fields)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageRejected("schema", f"not plain values: {error}") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise MessageRejected("too_large", f"{len(packed)} bytes of fields; at most {MAX_HEADER_BYTES}")
    return packed


def unpack_fields(packed: bytes | memoryview, max_elements: int = MAX_ELEMENTS) -> dict[str, Any]:
    try:
        _check_elements(packed, max_elements)
        fields = msgpack.unpackb(packed, object_pairs_hook=_unique, ext_hook=_refuse_extension)
    except MessageRejected:
        raise
    except Exception as error:  # msgpack documents no closed set of what bad bytes raise
        raise MessageRejected("schema", f"fields that are not msgpack: {error!r:.200}") from error
    if not isinstance(fields, dict):
        raise MessageRejected("schema", "fields must be a map")
    return fields


def _check_elements(packed: bytes | memoryview, max_elements: int) -> None:
    """Counts the values without creating them: an empty list is one byte here and 64 in memory."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed) or 1)
    unpacker.feed(packed)
    elements = 0
    waiting = [1]  # values not read yet, of each list or map that is open
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            continue
        waiting[-1] -= 1
        elements += 1
        code = packed[unpacker.tell()]
        if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
            waiting.append(unpacker.read_array_header())
        elif 0x80 <= code <= 0x8F or code in (0xDE, 0xDF):
            waiting.append(2 * unpacker.read_map_header())
        else:
            unpacker.skip()
        if elements + waiting[-1] > max_elements or len(waiting) > MAX_DEPTH + 1:
            raise MessageRejected(
                "too_large",
                f"fields of more than {max_elements} values, or more than {MAX_DEPTH} levels deep",
            )


def _unique(pairs: list[tuple[object, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in pairs:
        if not isinstance(name, str) or name in fields:
            raise MessageRejected("schema", f"field {name!r:.80} is repeated or not text")
        fields[name] = value
    return fields


def _refuse_extension(code: int, _: bytes) -> object:
    raise MessageRejected("schema", f"msgpack extension {code}")


def _bytes_of(array: np.ndarray, dtype: np.dtype[Any]) -> memoryview:
    # Copies only what is not already little-endian and contiguous.
    plain = np.asarray(array, dtype=dtype, order="C")
    return plain.reshape(-1).view(np.uint8).data.toreadonly()


def _lay_out(specs: Iterable[object], position: int) -> tuple[list[_Slot], int]:
    """Both sides compute the positions from the list of arrays, so a header cannot contain a wrong offset."""
    slots: list[_Slot] = []
    names: set[str] = set()
    for spec in specs:
        name, dtype, shape = _check_spec(spec)
        if name in names or len(names) == MAX_ARRAYS:
            raise MessageRejected("schema", f"array {name!r} is repeated or one of more than {MAX_ARRAYS}")
        names.add(name)
        num_bytes = dtype.itemsize * math.prod(shape)
        start = -(-position // ALIGNMENT) * ALIGNMENT if num_bytes else position
        position = start + num_bytes
        slots.append(_Slot(name, dtype, shape, start, position))
    return slots, position


def _check_spec(spec: object) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    match spec:
        case [str(name), str(dtype), list(shape)] if len(name) <= MAX_NAME_LENGTH and len(shape) <= MAX_DIMS:
            lengths_fit = all(type(length) is int and 0 <= length < 2**62 for length in shape)
            # Dimensions of 0 count as 1: numpy checks the others for overflow too.
            if dtype in _DTYPES and lengths_fit and math.prod(length or 1 for length in shape) < 2**59:
                return name, _DTYPES[dtype], tuple(shape)
    raise MessageRejected("schema", f"not an array: {spec!r:.200}")


def _decode(
    body: bytes | bytearray | memoryview, max_elements: int = MAX_ELEMENTS
) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    view = memoryview(body).cast("B").toreadonly()
    header_end = _check_envelope(view)
    header = unpack_fields(view[_PRELUDE.size : header_end], max_elements)
    match header:
        case {"kind": str(kind), "meta": dict(meta), "arrays": list(specs)} if len(header) == 3:
            slots, end = _lay_out(specs, header_end)
        case _:
            raise MessageRejected("schema", f"header fields {sorted(header)!r:.200}")
    if end + DIGEST_BYTES != len(view):
        raise MessageRejected("schema", f"arrays end at {end} in a body of {len(view)} bytes")
    return kind, meta, {slot.name: _array_at(view, slot) for slot in slots}


def _check_envelope(view: memoryview) -> int:
    """Checks everything that needs no parsing, and returns the end of the header."""
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise MessageRejected("not_fedil", "the first bytes are not ours")
    if len(view) < _PRELUDE.size + DIGEST_BYTES:
        raise MessageRejected("truncated", f"{len(view)} bytes")
    _, version, total, header_size = _PRELUDE.unpack_from(view)
    if version != _VERSION:
        raise MessageRejected(
            "unknown_version", f"format {version}; this side reads {_VERSION}: use one version of FedIL"
        )
    if len(view) != total:
        raise MessageRejected(
            "truncated" if len(view) < total else "trailing_bytes", f"{len(view)} bytes of {total}"
        )
    if raw_digest([view[:-DIGEST_BYTES]]) != view[-DIGEST_BYTES:]:
        raise MessageRejected("digest", "the bytes changed on the way")
    if header_size > MAX_HEADER_BYTES or _PRELUDE.size + header_size > total - DIGEST_BYTES:
        raise MessageRejected("too_large", f"a header of {header_size} bytes")
    return _PRELUDE.size + int(header_size)


def _array_at(view: memoryview, slot: _Slot) -> np.ndarray:
    array = np.ndarray(slot.shape, slot.dtype, view, slot.start)
    # numpy computes wrong results with a bool that is neither 0 nor 1.
    if slot.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise MessageRejected("schema", f"array {slot.name!r} of bool has values other than 0 and 1")
    return array
