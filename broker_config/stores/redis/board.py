"""The notice board in Redis. A site writes its own notices and the server reads them every second, so the server skips
what is malformed and bounds what it reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.schema import bad_field, check_run
from broker_config.stores.redis.connection import RedisConnection, UnexpectedValue
from broker_config.stores.redis.keys import board_key, notice_key
from broker_config.stores.redis.nodes import Client

MAX_NAME_LENGTH = 200
MAX_FACTS_BYTES = 1 << 16
MAX_NOTICES = 1000
"""Notices of one topic that are read"""
_MAX_TTL_SECONDS = 1e9
_MAX_NAMES_BYTES = 16 << 20
"""Size in Redis of a list of names that is read"""
_MAX_TOPIC_BYTES = 4 << 20
"""All notices of a topic that are read; as Python objects they take many times as much."""


class RedisBoard:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))
        body = _facts_to_json(facts)
        if not 0 < ttl_seconds < _MAX_TTL_SECONDS:
            raise bad_field("ttl_seconds", f"more than 0 and less than {_MAX_TTL_SECONDS:.0f}", ttl_seconds)
        ttl_ms = max(1, round(ttl_seconds * 1000))

        def write(redis: Client) -> None:
            seconds, microseconds = redis.time()  # of Redis: the clocks of sites differ
            now_ms = seconds * 1000 + microseconds // 1000
            with redis.pipeline(transaction=False) as pipeline:
                pipeline.set(notice, body, px=ttl_ms)
                pipeline.zadd(board, {name: now_ms + ttl_ms})
                pipeline.zremrangebyscore(board, "-inf", now_ms)
                pipeline.execute()

        self._connection.call(write, board)

    def withdraw(self, topic: str, name: str) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))

        def remove(redis: Client) -> None:
            with redis.pipeline(transaction=False) as pipeline:
                pipeline.delete(notice)
                pipeline.zrem(board, name)
                pipeline.execute()

        self._connection.call(remove, board)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        board = board_key(check_run("topic", topic))
        try:
            names = self._connection.call(lambda redis: _read_names(redis, board), board)
        except UnexpectedValue:
            return {}
        keys = {name: notice_key(topic, name) for name in names}
        bodies = self._connection.call(lambda redis: _read_bodies(redis, keys), board)
        found = {name: _facts_from_json(body) for name, body in bodies.items()}
        return {name: facts for name, facts in sorted(found.items()) if facts is not None}


def _read_names(redis: Client, board: str) -> list[str]:
    # Estimated from the first names, which are those that would be read.
    num_bytes = redis.memory_usage(board, samples=MAX_NOTICES)
    if num_bytes is None or num_bytes > _MAX_NAMES_BYTES:
        return []
    names = [name.decode(errors="replace") for name in redis.zrange(board, 0, MAX_NOTICES - 1)]
    return [name for name in names if len(name) <= MAX_NAME_LENGTH]


def _read_bodies(redis: Client, keys: Mapping[str, str]) -> dict[str, bytes]:
    """name → body; without those that are too long or exceed the total."""
    with redis.pipeline(transaction=False) as pipeline:
        for key in keys.values():
            pipeline.strlen(key)
        sizes = _replies(pipeline)
    bytes_left, chosen = _MAX_TOPIC_BYTES, list[str]()
    for name, size in zip(keys, sizes, strict=True):
        if size is not None and 0 < size <= min(bytes_left, MAX_FACTS_BYTES):
            bytes_left -= size
            chosen.append(name)
    with redis.pipeline(transaction=False) as pipeline:
        for name in chosen:
            pipeline.getrange(keys[name], 0, MAX_FACTS_BYTES - 1)  # it may have grown since
        bodies = _replies(pipeline)
    return {name: body for name, body in zip(chosen, bodies, strict=True) if body is not None}


def _replies(pipeline: Client) -> Sequence[Any]:
    """None for a key with another type of value."""
    replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise bad_field("name", f"text of 1 to {MAX_NAME_LENGTH} characters", name)
    return name


def _facts_to_json(facts: Mapping[str, object]) -> str:
    try:
        body = json.dumps(dict(facts), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageRejected("schema", f"facts that are not plain values: {error}") from error
    if len(body) > MAX_FACTS_BYTES:
        raise MessageRejected("too_large", f"{len(body)} bytes of facts; at most {MAX_FACTS_BYTES}")
    return body


def _facts_from_json(body: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None
