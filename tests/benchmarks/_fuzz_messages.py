"""Messages of the benchmark `fuzz`, made from real ones by chance. None of them is valid for a client that is asked."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np

from broker_config.protocol.buffers import DIGEST_BYTES, raw_digest
from broker_config.protocol.chunks import MAX_CHUNKS, OVERHEAD_BYTES, split
from broker_config.protocol.messages import ModelEntry, TrainTask, Update
from broker_config.protocol.wire import decode_message, encode_message
from broker_config.transports.interface import ModelAddress

RUN = "fuzzed"
ROUNDS = 60
_PRELUDE = struct.Struct("<6sHQI")
_CHUNK_HEAD = struct.Struct("<6sH16sIIQQ")
NEVER = 10**6
"""An activation that the run does not reach"""

ODD: tuple[Any, ...] = (
    *(-1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.5, 1e308, float("nan"), float("inf")),
    *(None, True, False, "", "x" * 2000, "../../x", "\0", "é\u202e\n\x1b[2J", "fedil.updates.run", "a*b#"),
    *(b"", b"\xff" * 50, [], [[]], {}, {"": {}}, [None] * 500, {"run": "x"}),
)


def nested(depth: int, leaf: Any = None) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def sealed(header: bytes, arrays: bytes = b"", *, magic: bytes = b"FedIL\0", version: int = 1) -> bytes:
    """A message with a right digest, whatever is in it"""
    body = (
        _PRELUDE.pack(magic, version, _PRELUDE.size + len(header) + len(arrays) + DIGEST_BYTES, len(header))
        + header
        + arrays
    )
    return body + raw_digest([body])


def packed(value: Any) -> bytes:
    with suppress(ValueError, OverflowError, TypeError):
        return bytes(msgpack.packb(value))
    return b"\xc1"


# ---- bodies of messages: (chance, a real message, another one) → bytes


def noise(chance: random.Random, _one: bytes, _other: bytes) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 5, 20, 300, 5000)))


def truncated(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    return one[: chance.choice((chance.randrange(40), chance.randrange(len(one))))]


def flipped(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    body = bytearray(one)
    for _ in range(chance.randint(1, 8)):
        # Most of a message are its arrays, and most that can go wrong is in its first bytes.
        at = chance.randrange(chance.choice((min(len(body), 400), len(body))))
        body[at] ^= 1 << chance.randrange(8)
    return bytes(body)


def spliced(chance: random.Random, one: bytes, other: bytes) -> bytes:
    return one[: chance.randrange(len(one))] + other[chance.randrange(len(other)) :]


def extended(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    return one + chance.randbytes(chance.randint(1, 100))


def other_format(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    body = bytearray(one)
    struct.pack_into("<H", body, 6, chance.choice((0, 2, 255, 65535)))
    return resealed(bytes(body))


def resealed(body: bytes) -> bytes:
    """Its digest is right again."""
    return body[:-DIGEST_BYTES] + raw_digest([body[:-DIGEST_BYTES]])


def wrong_header_size(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    body = bytearray(one)
    struct.pack_into("<I", body, 16, chance.choice((0, 1, 2**22, 2**32 - 1, chance.randrange(1000))))
    return resealed(bytes(body))


def scrambled_header(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    """A header that is hardly msgpack any more, in a message that is whole"""
    body = bytearray(one)
    (size,) = struct.unpack_from("<I", body, 16)
    for _ in range(chance.randint(1, 20)):
        body[_PRELUDE.size + chance.randrange(min(size, 60))] = chance.randrange(256)
    # Never a valid answer: the first byte says that it is a map of three.
    body[_PRELUDE.size] = chance.choice((0x80, 0x82, 0x93, 0xC0, 0xC1, 0xDF, 0xFF))
    return resealed(bytes(body))


def any_header(chance: random.Random, _one: bytes, _other: bytes) -> bytes:
    return sealed(
        packed(
            chance.choice(
                (
                    *ODD,
                    nested(chance.choice((15, 17, 100, 400))),
                    {"kind": "Update", "meta": nested(chance.choice((5, 50))), "arrays": []},
                    {"kind": chance.choice(ODD), "meta": {}, "arrays": []},
                    {"kind": "Update", "meta": {}, "arrays": chance.choice(ODD)},
                    {"kind": "Update", "meta": {}, "arrays": [[]] * 100_000},
                    {"kind": "Update", "meta": {"x": [[]] * 100_000}, "arrays": []},
                )
            )
        )
    )


def odd_fields(chance: random.Random, _one: bytes, _other: bytes) -> bytes:
    """A message of a kind that exists, with some values that it may not have, missing or unknown"""
    meta: dict[str, Any] = {
        **{"run": RUN, "round": chance.randint(1, ROUNDS), "client": chance.choice((0, 1, 2, 5, 10, 99))},
        **{"activation": NEVER, "base_version": 1, "num_samples": 10, "num_steps": 1, "metrics": {}},
    }
    for name in chance.sample(sorted(meta), chance.randint(1, 3)):
        meta[name] = chance.choice(ODD)
    if chance.random() < 0.3:
        meta.pop(chance.choice(sorted(meta)))
    if chance.random() < 0.3:
        meta["metrics"] = {str(chance.choice(ODD)): chance.choice(ODD) for _ in range(chance.randint(1, 400))}
    if chance.random() < 0.1:
        meta["extra"] = chance.choice(ODD)
    kind = chance.choice(("Update", "Update", "Refusal", "TrainTask", "model", "ledger"))
    return sealed(packed({"kind": kind, "meta": meta, "arrays": odd_arrays(chance)}))


def odd_arrays(chance: random.Random) -> list[Any]:
    dtypes = ("float32", "float64", "bool", "int8", "object", "complex64", "U3", "", "V1", 3)
    shapes: tuple[Any, ...] = (
        [],
        [0],
        [2**40],
        [-1],
        [2**62, 2**62],
        [1] * 40,
        [0] * 16,
        ["a"],
        [1.5],
        7,
        [True],
    )
    return [
        [chance.choice(("a", "a", "", "x" * 300, 5)), chance.choice(dtypes), chance.choice(shapes)]
        for _ in range(chance.choice((0, 1, 1, 2, 30)))
    ]


def not_asked(chance: random.Random, one: bytes, _other: bytes) -> bytes:
    """A real answer under other names: of another's client, another run or a round and an activation that are not."""
    answer = decode_message(one)
    fields = {name: value for name, value in vars(answer).items() if name != "activation"}
    fields["activation"] = chance.choice((0, NEVER, 2**63 - 1))
    fields["client"] = chance.choice((0, 2, 3, 9, 11, 12, 10**9))
    fields["round"] = chance.choice((0, 1, ROUNDS, 10**9, fields["round"]))
    fields["run"] = chance.choice((RUN, RUN, "another", "x" * 80))
    return b"".join(encode_message(type(answer)(**fields)))


def repeated(_chance: random.Random, one: bytes, _other: bytes) -> bytes:
    """Of another site's client: so is its user"""
    return one


def another_kind(chance: random.Random, _one: bytes, _other: bytes) -> bytes:
    model = ModelEntry(ModelAddress(RUN, 1, 0), "0" * 32)
    return b"".join(encode_message(TrainTask(RUN, 1, chance.choice((3, 9, 11)), NEVER, model, "{}")))


Mutation = Callable[[random.Random, bytes, bytes], bytes]
MALFORMED: tuple[Mutation, ...] = (
    *(noise, truncated, flipped, spliced, extended, other_format, wrong_header_size, scrambled_header),
    *(any_header,),
)
MUTATIONS: tuple[Mutation, ...] = (*MALFORMED, odd_fields, not_asked, repeated, another_kind)


# ---- answers for a client that was asked: whole and well-formed, and not valid


def invalid_answers(task: TrainTask, real: Update, samples: int, chance: random.Random) -> Iterator[bytes]:
    """`samples`: how many the client has; the server knows."""
    tensors = {name: np.array(array) for name, array in real.tensors.items()}
    changed: list[dict[str, np.ndarray]] = [
        *(
            {name: np.full_like(array, value) for name, array in tensors.items()}
            for value in (np.nan, np.inf, 3e38)
        ),
        {name: array[:-1] for name, array in tensors.items()},
        {name: array.astype(np.float64) for name, array in tensors.items()},
        {name: array.astype(np.int32) for name, array in tensors.items()},
        {name: array.reshape(1, -1) for name, array in tensors.items()},
        {**tensors, "more": np.zeros(3, np.float32)},
        {f"{name}.": array for name, array in tensors.items()},
        {},
    ]
    for update in chance.sample(changed, 3):
        yield answer(task, update, samples, 1)
    yield answer(task, tensors, chance.choice((0, samples + 1, 10**9, 2**63 - 1)), 1)
    yield answer(task, tensors, samples, chance.choice((0, 10**6, 2**63 - 1)))


def answer(task: TrainTask, tensors: dict[str, np.ndarray], samples: int, steps: int) -> bytes:
    update = Update(
        run=task.run,
        round=task.round,
        client=task.client,
        activation=task.activation,
        base_version=task.model.address.version,
        num_samples=samples,
        num_steps=steps,
        tensors=tensors,
        metrics={"seconds_train": 1e308, "x" * 100: -1e308},
    )
    return b"".join(encode_message(update))


# ---- headers, notices, chunks


def deep_table(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"x": table}
    return table


def odd_notice(chance: random.Random) -> bytes:
    """What a worker says of itself, and might say"""
    names: tuple[str, ...] = (
        "state",
        "since",
        "run",
        "round",
        "client",
        "tasks_done",
        "images_per_second",
        "host",
        "pid",
    )
    names += ("device", "version", "metrics", "name", "site", "x" * 300)
    values: tuple[Any, ...] = (
        None,
        -1,
        1e308,
        10**400,
        True,
        "",
        "x" * 5000,
        "\u202e\x1b[2J<script>",
        "\ud800",
        [],
        {},
        [[]] * 1000,
    )
    places = ("169.254.169.254:80", "[::1]:1", "localhost:99999", "a:b", "http://x/", "127.0.0.1:1")
    facts = {name: chance.choice(values) for name in chance.sample(names, chance.randint(1, 8))}
    if chance.random() < 0.3:
        facts["metrics"] = chance.choice(places)
    body = json.dumps(facts).encode()
    deep = b"[" * 100_000
    odd = (
        b"",
        b"null",
        b"[]",
        b"1e999",
        b"NaN",
        b'{"a": NaN}',
        b"\xff\xfe",
        deep,
        b'{"a":' * 50_000,
        body[:-2],
    )
    return chance.choice((*[body] * 12, *odd))


def odd_frames(chance: random.Random, body: bytes) -> list[bytes]:
    """Chunks of a body, not as they should be"""
    stride = chance.choice((1, 7, 100, 9000))
    stride = max(stride, -(-len(body) // 30))
    body_id = chance.randbytes(16)
    frames = list(split([body], OVERHEAD_BYTES + stride, body_id))
    at = chance.randrange(len(frames))
    whole = frames[at]
    _, version, _, index, count, _, total = _CHUNK_HEAD.unpack_from(whole)
    payload = whole[_CHUNK_HEAD.size : -DIGEST_BYTES]

    def other(**fields: int) -> bytes:
        known = {
            "version": version,
            "index": index,
            "count": count,
            "stride": stride,
            "total": total,
            **fields,
        }
        place = (known[name] for name in ("index", "count", "stride", "total"))
        head = _CHUNK_HEAD.pack(b"FedILc", known["version"], body_id, *place)
        return head + payload + raw_digest([head, payload])

    most = {
        "index": 0,
        "count": MAX_CHUNKS,
        "stride": max(1, len(payload)),
        "total": MAX_CHUNKS * len(payload),
    }
    odd = (
        *(other(count=count + 1), other(count=0), other(count=2**32 - 1), other(index=index + 1)),
        *(other(index=2**32 - 1), other(stride=0), other(stride=stride + 1), other(stride=2**63)),
        *(other(total=total + 1), other(total=0), other(total=2**63), other(total=8 << 30), other(version=2)),
        *(other(**most),) * 3,
        *(whole[:20], whole[:-1], whole + b"x", noise(chance, whole, whole), flipped(chance, whole, whole)),
    )
    changed = [*frames[:at], chance.choice(odd), *frames[at + 1 :]]
    return chance.choice(
        (
            *(changed, changed, changed, frames[:at] + frames[at + 1 :], frames[::-1], [*frames, *frames]),
            *([*frames, whole, whole, whole], [whole] * 5, [*frames[:at], *frames], [], frames),
        )
    )
