import threading
import time

import pytest

from broker_config.process import retry
from broker_config.process.retry import Retrier, RetriesExhausted, RetryPolicy
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)


class Attempt:
    """Fails a number of times, then returns how often it was called."""

    def __init__(self, failures: float, kinds: int = 1000) -> None:
        self._failures, self._kinds, self.calls = failures, kinds, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise BrokerUnavailable(f"failure {(self.calls - 1) % self._kinds + 1}")
        return self.calls


def test_a_call_is_repeated_until_it_succeeds() -> None:
    retrier = Retrier("the broker", RetryPolicy())
    assert retrier.call(Attempt(failures=0)) == 1
    assert retrier.outage_seconds == 0.0
    assert retrier.call(Attempt(failures=3)) == 4
    assert retrier.outage_seconds > 0.0


def test_each_error_of_an_outage_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    retrier = Retrier("the broker", RetryPolicy())
    for _ in range(2):
        retrier.call(Attempt(failures=5, kinds=2))
        retrier.call(Attempt(failures=0))
    assert [record.getMessage() for record in caplog.records] == [
        "failure 1; trying again",
        "failure 2; trying again",
        "the broker is back",
    ] * 2


def test_on_wait_is_called_with_every_error_before_the_next_attempt() -> None:
    waits: list[str] = []
    Retrier("the broker", RetryPolicy(on_wait=waits.append)).call(Attempt(failures=2))
    assert waits == ["failure 1", "failure 2"]


@pytest.mark.parametrize(
    ("policy", "calls"),
    [(RetryPolicy(stop=lambda: True), 1), (RetryPolicy(seconds=0.0), 1), (RetryPolicy(seconds=0.05), None)],
    ids=["stop", "no time", "some time"],
)
def test_retries_end_with_the_last_error(policy: RetryPolicy, calls: int | None) -> None:
    attempt = Attempt(failures=float("inf"))
    with pytest.raises(RetriesExhausted) as exhausted:
        Retrier("the broker", policy).call(attempt)
    assert str(exhausted.value) == f"failure {attempt.calls}"
    assert attempt.calls == calls if calls else attempt.calls > 1


def test_other_errors_are_not_retried() -> None:
    def refuse() -> None:
        calls.append(1)
        raise BrokerRefused("wrong password")

    calls: list[int] = []
    with pytest.raises(BrokerRefused):
        Retrier("the broker", RetryPolicy()).call(refuse)
    assert calls == [1]


def test_delays_double_up_to_the_maximum_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.2)
    retrier, delays = Retrier("the broker", RetryPolicy()), list[float]()

    def record(seconds: float) -> bool:
        delays.append(seconds)
        return False

    monkeypatch.setattr(retrier._closed, "wait", record)
    retrier.call(Attempt(failures=8))
    full = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert all(seconds / 2 <= delay <= seconds for delay, seconds in zip(delays, full, strict=True))
    assert len({delay / seconds for delay, seconds in zip(delays, full, strict=True)}) > 1


def test_close_ends_a_waiting_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 60.0)
    monkeypatch.setattr(retry, "MAX_DELAY_SECONDS", 60.0)
    waiting = threading.Event()
    retrier = Retrier("the broker", RetryPolicy(on_wait=lambda _: waiting.set()))

    def close() -> None:
        waiting.wait()
        retrier.close()

    closer = threading.Thread(target=close)
    closer.start()
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="this connection to the broker is closed: open another"):
        retrier.call(Attempt(failures=float("inf")))
    assert time.monotonic() - began < 20.0
    closer.join()
