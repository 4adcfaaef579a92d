"""What is the matter with a run: which words, since when, and whether anything still moves."""

from server_worker.watch.survey import Survey
from server_worker.watch.trouble import TroubleWatch
from server_worker.watch.words import Trouble


class Heard:
    def __init__(self, min_sites: int = 2) -> None:
        self.now = 100.0
        self.told: list[tuple[Trouble, ...]] = []
        self.watch = TroubleWatch(min_sites, lambda: self.now)
        self.watch.on_change = self.told.append

    def survey(self, at: float, absent: tuple[str, ...] = (), trouble: str = "") -> None:
        self.now = at
        self.watch.survey(Survey(at, absent=absent, num_sites=2, trouble=trouble))

    def sentences(self) -> list[str]:
        return [trouble.sentence(self.now) for trouble in self.told[-1]]


def test_a_site_without_a_worker_is_told_with_the_time_once_it_had_time_to_come() -> None:
    heard = Heard()
    heard.watch.phase(1, "wait")
    heard.survey(100.0, ("south",))
    assert heard.told == []
    heard.survey(105.0, ("south",))
    heard.now = 156.0
    assert heard.sentences() == ["site south has no worker, waiting for 56 s"]
    heard.survey(160.0, ("south",))
    assert len(heard.told) == 1, "nothing else is the matter"
    heard.survey(165.0)
    assert heard.told[-1] == ()


def test_a_run_that_needs_no_other_site_goes_on_and_so_does_one_whose_server_learns() -> None:
    alone = Heard(min_sites=1)
    alone.watch.phase(1, "wait")
    alone.survey(100.0, ("south",))
    alone.survey(110.0, ("south",))
    assert alone.sentences() == ["site south has no worker, for 10 s"]
    both = Heard()
    both.survey(100.0, ("south",))
    both.watch.phase(0, "pretrain")
    both.survey(110.0, ("south",))
    assert both.told == [], "workers come a little later than the server"
    both.survey(121.0, ("south",))
    assert [trouble.stops for trouble in both.told[-1]] == [False]
    both.watch.phase(1, "wait")
    assert [trouble.stops for trouble in both.told[-1]] == [True]


def test_the_only_site_needs_no_name() -> None:
    heard = Heard(min_sites=1)
    heard.watch.phase(1, "wait")
    for heard.now in (100.0, 105.0):
        heard.watch.survey(Survey(heard.now, absent=("local",), num_sites=1))
    assert heard.sentences() == ["no worker, waiting for 5 s"]


def test_a_broker_that_is_away_stops_the_run_since_it_was_first_missed() -> None:
    heard = Heard()
    heard.watch.brokers_away("no RabbitMQ answers at h:5672 (Connection refused)")
    heard.survey(112.0, trouble="the connection to RabbitMQ at h:5672 was lost")
    assert heard.sentences() == ["RabbitMQ is away, waiting for 12 s"]
    heard.survey(115.0)
    assert heard.told[-1] == ()
    heard.watch.brokers_away("Redis at h:6379 is away")
    heard.watch.brokers_back()
    assert heard.told[-1] == ()


def test_a_run_that_has_ended_has_no_trouble() -> None:
    heard = Heard()
    heard.watch.brokers_away("RabbitMQ is away")
    heard.watch.over()
    assert heard.told[-1] == ()
