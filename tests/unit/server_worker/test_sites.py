from broker_config.brokers.topology import workers_topic
from broker_config.stores.memory.store import MemoryStore
from server_worker.round.sites import Sites
from server_worker.watch.notices import Notice
from tests.memory_store import new_store


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pass_time(sites: Sites, clock: Clock, until: float) -> None:
    """With a look every second."""
    while clock.now < until:
        clock.now += 1.0
        sites.present()


def watched(store: MemoryStore, clock: Clock, notes: list[Notice], user: str | None = "server") -> Sites:
    return Sites({"a": range(0, 4), "b": range(4, 6)}, store, clock, 60.0, user, notes.append)


def test_a_site_counts_as_present_until_its_workers_have_had_time_to_come() -> None:
    clock = Clock()
    sites = watched(new_store(), clock, [])
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 59.0)
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 61.0)
    assert sites.present() == ()


def test_a_site_that_vanished_is_named_once_and_so_is_its_return() -> None:
    clock, store, notes = Clock(), new_store(), list[Notice]()
    sites = watched(store, clock, notes)
    store.announce(workers_topic("a"), "w", {}, 1000.0)
    pass_time(sites, clock, 100.0)
    assert sites.present() == ("a",)
    assert sites.present() == ("a",)
    store.announce(workers_topic("b"), "w", {}, 1000.0)
    pass_time(sites, clock, 101.0)
    assert sites.present() == ("a", "b")
    assert list(map(str, notes)) == [
        "site b has no worker: its clients are not asked until it has one",
        "site b is back",
    ]
    assert [notice.is_trouble for notice in notes] == [True, False]


def test_the_store_is_asked_once_a_second_at_most_however_often_loops_ask() -> None:
    clock, store = Clock(), new_store()
    asked: list[str] = []
    notices = store.notices
    store.notices = lambda topic: asked.append(topic) or notices(topic)  # type: ignore[func-returns-value, method-assign]
    sites = watched(store, clock, [])
    for clock.now in (1.0, 1.1, 1.9, 2.0):
        assert sites.present() == ("a", "b")
    assert len(asked) == 2 * len(sites.names())


def test_a_site_answers_for_its_own_clients_only() -> None:
    sites = watched(new_store(), Clock(), [])
    assert sites.wrong_sender("site-a", 3) == ""
    assert sites.wrong_sender("site-a", 4) == "user 'site-a' answers for client 4, which belongs to site b"
    assert (
        sites.wrong_sender("site-b", 99)
        == "user 'site-b' answers for client 99, which this run does not have"
    )
    assert sites.wrong_sender("", 3).startswith("the sender has no validated user id")
    assert "stranger" in sites.wrong_sender("stranger", 3)


def test_the_servers_own_credentials_and_a_broker_without_users_are_trusted() -> None:
    sites = watched(new_store(), Clock(), [])
    assert sites.wrong_sender("server", 4) == ""
    assert sites.wrong_sender(None, 4) == ""


def test_clients_belong_to_sites_in_order() -> None:
    sites = watched(new_store(), Clock(), [])
    assert [sites.site_of(client) for client in range(6)] == ["a", "a", "a", "a", "b", "b"]


def test_time_without_a_look_is_not_counted_as_absence() -> None:
    clock = Clock()
    sites = watched(new_store(), clock, [])
    clock.now = 1000.0
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 1061.0)
    assert sites.present() == ()
