import pytest

from client_worker.placement import Slot, place


def devices(asked: str, processes: int, gpus: int) -> list[str]:
    return [place(asked, Slot(number, processes), gpus)[0] for number in range(processes)]


def test_auto_deals_processes_out_over_the_gpus() -> None:
    assert devices("auto", 5, 2) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert devices("cuda", 2, 4) == ["cuda:0", "cuda:1"]


def test_a_named_gpu_is_shared_by_all() -> None:
    assert devices("cuda:1", 3, 4) == ["cuda:1"] * 3
    assert place("cuda:1", Slot(0, 3), 4) == ("cuda:1", 3)


def test_without_a_gpu_all_are_on_the_cpu() -> None:
    assert devices("auto", 2, 0) == ["cpu", "cpu"]
    assert devices("cpu", 2, 8) == ["cpu", "cpu"]


def test_a_gpu_that_is_asked_for_and_not_there_is_left_for_torch_to_refuse() -> None:
    assert devices("cuda", 1, 0) == ["cuda"]


@pytest.mark.parametrize(("processes", "gpus"), [(1, 1), (5, 2), (7, 3), (2, 8)])
def test_each_knows_with_how_many_it_shares(processes: int, gpus: int) -> None:
    placements = [place("auto", Slot(number, processes), gpus) for number in range(processes)]
    for device, sharing in placements:
        assert sharing == [other for other, _ in placements].count(device)


def test_a_slot_is_written_as_it_is_read() -> None:
    assert str(Slot(2, 8)) == "2/8"
