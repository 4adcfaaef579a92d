"""With real signals in this process, whose handlers are put back afterwards."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import client_worker.stopping
from client_worker.stopping import SIGNALS, Interrupted, Stopping

PATIENCE = 60.0


Install = Callable[..., Stopping]


@pytest.fixture
def installed() -> Iterator[Install]:
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    with ExitStack() as stack:

        def install(grace_seconds: float = 0.0, end: Callable[[int], object] = lambda _: None) -> Stopping:
            stopping = Stopping(grace_seconds, end)
            stack.enter_context(stopping.on_signals())
            return stopping

        yield install
    for number, handler in before.items():
        signal.signal(number, handler)


def in_training(stopping: Stopping, event: Callable[[], object]) -> None:
    """Something happens, and then training goes on until it is interrupted."""
    with stopping.interruptible():
        event()
        train_for_ever()


def train_for_ever() -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        pass
    raise AssertionError("nobody interrupted it")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_training_interrupts_it_at_once(installed: Install, number: signal.Signals) -> None:
    stopping = installed()
    with pytest.raises(Interrupted):
        in_training(stopping, lambda: signal.raise_signal(number))
    assert stopping.asked()


def test_a_signal_outside_of_training_interrupts_nothing_but_training_does_not_begin(
    installed: Install,
) -> None:
    stopping = installed()
    signal.raise_signal(signal.SIGTERM)
    assert stopping.asked()
    with pytest.raises(Interrupted), stopping.interruptible():
        pytest.fail("began")


def test_within_the_grace_period_training_goes_on_and_then_it_is_interrupted(installed: Install) -> None:
    stopping, went_on = installed(grace_seconds=1.0), list[bool]()

    def event() -> None:
        signal.raise_signal(signal.SIGTERM)
        went_on.append(stopping.asked())

    with pytest.raises(Interrupted):
        in_training(stopping, event)
    assert went_on == [True]


def test_training_that_ends_within_the_grace_period_is_not_interrupted(installed: Install) -> None:
    stopping = installed(grace_seconds=PATIENCE)
    with stopping.interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert stopping.asked()


class Swallows:
    """Python drops what is raised while an object is being deleted."""

    def __init__(self, during: Callable[[], None]) -> None:
        self._during = during

    def __del__(self) -> None:
        self._during()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_that_is_lost_comes_again(
    installed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_worker.stopping, "_INSIST_SECONDS", 0.05)
    stopping = installed()
    with pytest.raises(Interrupted):
        in_training(stopping, lambda: Swallows(lambda: signal.raise_signal(signal.SIGTERM)) and None)


def test_the_second_signal_ends_the_process_with_its_number(installed: Install) -> None:
    ended: list[int] = []
    installed(grace_seconds=PATIENCE, end=ended.append)
    signal.raise_signal(signal.SIGTERM)
    assert ended == []
    signal.raise_signal(signal.SIGINT)
    assert ended == [128 + signal.SIGINT]


def test_what_is_stuck_after_the_grace_period_is_ended(
    installed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_worker.stopping, "LAST_SECONDS", 0.01)
    ended: list[int] = []
    installed(end=ended.append)
    signal.raise_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while not ended and time.monotonic() < deadline:
        time.sleep(0.001)
    assert ended == [128 + signal.SIGTERM]


def test_asked_without_a_signal_it_finishes_what_it_is_doing() -> None:
    stopping = Stopping()
    with stopping.interruptible():
        stopping.ask()
    assert stopping.asked()


def test_afterwards_no_alarm_is_left_to_kill_the_process() -> None:
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    with Stopping(end=lambda _: None).on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    for number, handler in before.items():
        signal.signal(number, handler)
