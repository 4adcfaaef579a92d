"""The messages of the benchmark `fuzz`: decoding them ends with a reason, and none of them could be an answer."""

import random
from collections.abc import Mapping

import numpy as np
import pytest

from broker_config.protocol.chunks import assembled
from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message, encode_message
from broker_config.stores.redis.board import _facts_from_json
from broker_config.transports.interface import ModelAddress
from tests.benchmarks._fuzz_messages import (
    MALFORMED,
    MUTATIONS,
    NEVER,
    RUN,
    Mutation,
    invalid_answers,
    odd_frames,
    odd_notice,
)

OWN = range(3)
TENSORS = {"delta.params": np.ones(500, np.float32), "delta.buffers": np.zeros(0, np.float32)}
UPDATE = Update(RUN, 3, 5, 2, 3, 600, 12, TENSORS, {"loss": 0.5})
TASK = TrainTask(RUN, 3, 1, 2, ModelEntry(ModelAddress(RUN, 3, 40), "0" * 32), "{}")
REAL = [b"".join(encode_message(message)) for message in (UPDATE, Refusal(RUN, 3, 4, 2, "tired", ""))]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutated_message_is_rejected_or_answers_nothing_that_was_asked(mutation: Mutation) -> None:
    chance, rejected = random.Random(0), 0
    for _ in range(300):
        body = mutation(chance, chance.choice(REAL), chance.choice(REAL))
        try:
            message = decode_message(body)
        except MessageRejected:
            rejected += 1
            continue
        assert (
            isinstance(message, TrainTask)
            or message.client not in OWN
            or (message.activation == 0 or message.activation >= NEVER)
        )
    if mutation in MALFORMED:
        assert rejected >= 290


def test_answers_that_are_not_valid_can_be_encoded_and_differ_from_the_real_one() -> None:
    for seed in range(30):
        answers = list(invalid_answers(TASK, UPDATE, 600, random.Random(seed)))
        assert len(answers) == 5
        for body in answers:
            answer = decode_message(body)
            assert isinstance(answer, Update)
            assert (answer.client, answer.activation) == (TASK.client, TASK.activation)
            same = exactly(answer.tensors) == exactly(TENSORS)
            assert not same or (answer.num_samples, answer.num_steps) != (600, 1)


def exactly(tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[object, ...]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in tensors.items()}


def test_odd_chunks_are_rejected_or_make_no_more_than_the_body() -> None:
    chance, outcomes = random.Random(0), set[str]()
    for _ in range(500):
        try:
            body = assembled(odd_frames(chance, REAL[0]), max_bytes=1 << 20)
        except MessageRejected as error:
            outcomes.add(error.reason)
        else:
            assert body is None or bytes(body) == REAL[0]
            outcomes.add("missing" if body is None else "whole")
    assert outcomes >= {"missing", "whole", "schema", "digest", "truncated", "contradiction", "too_large"}


def test_an_odd_notice_is_read_as_facts_or_skipped() -> None:
    chance = random.Random(0)
    facts = [_facts_from_json(odd_notice(chance)) for _ in range(500)]
    assert any(found is None for found in facts)
    assert any(found for found in facts)
