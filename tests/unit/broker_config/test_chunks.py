import struct
import tracemalloc

import pytest

from broker_config.protocol.buffers import digest
from broker_config.protocol.chunks import MAX_CHUNKS, OVERHEAD_BYTES, Assembler, assembled, split
from broker_config.protocol.errors import MessageRejected

ID = b"i" * 16


def frame(index: int, count: int, stride: int, total: int, payload: bytes) -> bytes:
    head = struct.pack("<6sH16sIIQQ", b"FedILc", 1, ID, index, count, stride, total)
    return head + payload + bytes.fromhex(digest([head, payload]))


def test_the_default_body_id_is_the_digest() -> None:
    assert list(split([b"body"], 100)) == list(split([b"bo", b"dy"], 100))


def test_a_limit_smaller_than_the_frame_overhead_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        next(split([b"body"], OVERHEAD_BYTES))


def test_a_body_that_needs_too_many_chunks_is_not_split() -> None:
    with pytest.raises(MessageRejected, match="too_large"):
        next(split([bytes(MAX_CHUNKS + 1)], OVERHEAD_BYTES + 1))


def test_a_complete_body_can_be_assembled_again() -> None:
    assembler = Assembler()
    for _ in range(2):
        *first, last = [assembler.add(each) for each in split([b"body" * 9], OVERHEAD_BYTES + 10, ID)]
        assert first == [None] * 3
        assert last is not None
        assert bytes(last) == b"body" * 9


def test_chunks_that_contradict_each_other_are_rejected() -> None:
    assembler = Assembler()
    assembler.add(frame(0, 2, 4, 8, b"abcd"))
    for contradicting in (frame(0, 2, 4, 8, b"ABCD"), frame(1, 2, 4, 7, b"efg")):
        with pytest.raises(MessageRejected, match="contradiction"):
            assembler.add(contradicting)
    whole = assembler.add(frame(1, 2, 4, 8, b"efgh"))
    assert whole is not None
    assert bytes(whole) == b"abcdefgh"


@pytest.mark.parametrize(
    "impossible",
    [
        frame(2, 2, 4, 8, b"abcd"),
        frame(0, 3, 4, 8, b"abcd"),
        frame(0, 0, 4, 0, b""),
        frame(0, 1, 0, 0, b""),
        frame(0, 2, 4, 8, b"abc"),
        frame(1, 2, 4, 7, b"efgh"),
        frame(0, MAX_CHUNKS + 1, 1, MAX_CHUNKS + 1, b"a"),
    ],
)
def test_an_impossible_chunk_is_rejected(impossible: bytes) -> None:
    with pytest.raises(MessageRejected, match="schema"):
        Assembler().add(impossible)


def test_a_body_above_the_limit_is_rejected_before_memory_is_allocated() -> None:
    with pytest.raises(MessageRejected, match="too_large"):
        Assembler(max_bytes=1000).add(frame(0, 1001, 1, 1001, b"a"))


def test_incomplete_bodies_are_dropped_for_new_ones() -> None:
    assembler = Assembler(max_bytes=100_000)
    frames = [list(split([bytes([number]) * 40_000], OVERHEAD_BYTES + 20_000)) for number in range(5)]
    for first, _ in frames:
        assert assembler.add(first) is None
    # 100 kB are enough for two bodies of 40 kB: the newest.
    assert assembler.add(frames[4][1]) is not None
    assert assembler.add(frames[3][1]) is not None
    assert assembler.add(frames[2][1]) is None


def test_a_single_body_as_large_as_the_limit_is_assembled() -> None:
    assembler = Assembler(max_bytes=1000)
    first, second = split([bytes(1000)], OVERHEAD_BYTES + 500, ID)
    assert assembler.add(first) is None
    assert assembler.add(second) is not None


def test_first_chunks_of_many_tiny_bodies_take_no_more_memory_than_the_limit() -> None:
    bound = 1_000_000
    assembler = Assembler(max_bytes=bound)
    frames = [beginning(number) for number in range(5000)]
    tracemalloc.start()
    try:
        for each in frames:
            assembler.add(each)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < bound


def beginning(number: int) -> bytes:
    """The first of two chunks"""
    return next(split([b"ab"], OVERHEAD_BYTES + 1, number.to_bytes(16, "big")))


def test_memory_of_complete_bodies_is_free_again() -> None:
    assembler = Assembler(max_bytes=100_000)
    waiting = list(split([bytes(40_000)], OVERHEAD_BYTES + 20_000, ID))
    assembler.add(waiting[0])
    for number in range(10):
        body_id = number.to_bytes(16, "big")
        *_, last = [assembler.add(each) for each in split([bytes(40_000)], OVERHEAD_BYTES + 20_000, body_id)]
        assert last is not None
    assert assembler.add(waiting[1]) is not None


# assembled()


def test_one_body_is_assembled_from_chunks_in_any_order_each_up_to_twice() -> None:
    frames = list(split([b"body" * 9], OVERHEAD_BYTES + 10, ID))
    for order in (frames, frames[::-1], [*frames[:-1], *frames]):
        whole = assembled(order)
        assert whole is not None
        assert bytes(whole) == b"body" * 9
    assert assembled(frames[1:]) is None
    assert assembled([]) is None


def test_a_body_whose_chunks_repeat_endlessly_is_given_up() -> None:
    frames = list(split([b"body" * 9], OVERHEAD_BYTES + 10, ID))
    endless = iter(frames[:-1] * 100)
    assert assembled(endless) is None
    assert len(list(endless)) == 3 * 100 - 2 * 4


def test_a_body_in_far_more_chunks_than_the_limit_needs_is_refused_at_the_first() -> None:
    frames = iter([frame(0, 1000, 1, 1000, b"a")] * 3)
    with pytest.raises(MessageRejected, match=r"schema.*1000 chunks"):
        assembled(frames, max_bytes=1_000_000)
    assert len(list(frames)) == 2


@pytest.mark.parametrize("other", [beginning(1), next(split([b"whole"], 100, b"o" * 16))])
def test_a_chunk_of_another_body_is_refused(other: bytes) -> None:
    frames = iter([beginning(0), other, *map(beginning, range(2, 100))])
    with pytest.raises(MessageRejected, match=r"contradiction.*another body"):
        assembled(frames)
    assert len(list(frames)) == 98
