"""The board of notices in Redis. A site writes its own and the server reads it every second: what is too much, or no
notice, is passed over."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.schema import bad_field, check_run
from broker_config.stores.redis.connection import Client, NotOurs, RedisLink
from broker_config.stores.redis.keys import board_key, notice_key

MAX_NAME_LENGTH = 200
MAX_FACTS_BYTES = 1 << 16
_LONGEST_NOTICE_SECONDS = 1e9
MOST_NOTICES = 1000
"""Of one topic that are looked at"""
_MOST_NAMES_BYTES = 16 << 20
"""That a list of names may take in Redis"""
_MOST_BOARD_BYTES = 4 << 20
"""Of all notices of a topic: as Python's values they take many times as much."""


class RedisBoard:
    def __init__(self, link: RedisLink) -> None:
        self._link = link

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))
        body = _facts_to_json(facts)
        if not 0 < seconds < _LONGEST_NOTICE_SECONDS:
            raise bad_field("seconds", f"more than 0 and less than {_LONGEST_NOTICE_SECONDS:.0f}", seconds)
        milliseconds = max(1, round(seconds * 1000))

        def write(redis: Client) -> None:
            seconds, microseconds = redis.time()  # of Redis: the clocks of sites differ
            now = seconds * 1000 + microseconds // 1000
            with redis.pipeline(transaction=False) as pipeline:
                pipeline.set(notice, body, px=milliseconds)
                pipeline.zadd(board, {name: now + milliseconds})
                pipeline.zremrangebyscore(board, "-inf", now)
                pipeline.execute()

        self._link.ask(write)

    def withdraw(self, topic: str, name: str) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))

        def remove(redis: Client) -> None:
            with redis.pipeline(transaction=False) as pipeline:
                pipeline.delete(notice)
                pipeline.zrem(board, name)
                pipeline.execute()

        self._link.ask(remove)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        board = board_key(check_run("topic", topic))
        try:
            names = self._link.ask(lambda redis: _names(redis, board))
        except NotOurs:
            return {}
        bodies = self._link.ask(
            lambda redis: _bodies(redis, {name: notice_key(topic, name) for name in names})
        )
        found = {name: _facts_from_json(body) for name, body in bodies.items()}
        return {name: facts for name, facts in sorted(found.items()) if facts is not None}


def _names(redis: Client, board: str) -> list[str]:
    # Measured by the first ones, which are those that would be read.
    num_bytes = redis.memory_usage(board, samples=MOST_NOTICES)
    if num_bytes is None or num_bytes > _MOST_NAMES_BYTES:
        return []
    names = [name.decode(errors="replace") for name in redis.zrange(board, 0, MOST_NOTICES - 1)]
    return [name for name in names if len(name) <= MAX_NAME_LENGTH]


def _bodies(redis: Client, keys: Mapping[str, str]) -> dict[str, bytes]:
    """By name, as in `keys`; without those that are too long, and with no more than fit in all"""
    with redis.pipeline(transaction=False) as pipeline:
        for key in keys.values():
            pipeline.strlen(key)
        sizes = _answers(pipeline)
    room, chosen = _MOST_BOARD_BYTES, list[str]()
    for name, size in zip(keys, sizes, strict=True):
        if size is not None and 0 < size <= min(room, MAX_FACTS_BYTES):
            room -= size
            chosen.append(name)
    with redis.pipeline(transaction=False) as pipeline:
        for name in chosen:
            pipeline.getrange(keys[name], 0, MAX_FACTS_BYTES - 1)  # it may have grown meanwhile
        bodies = _answers(pipeline)
    return {name: body for name, body in zip(chosen, bodies, strict=True) if body is not None}


def _answers(pipeline: Client) -> Sequence[Any]:
    """None where a key holds another kind of value"""
    answers = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "WRONGTYPE" not in str(answer):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


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
