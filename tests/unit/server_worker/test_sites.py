from broker_config.brokers.topology import workers_topic
from broker_config.stores.memory.store import MemoryStore
from server_worker.round.sites import WatchedSites


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pass_time(sites: WatchedSites, clock: Clock, until: float) -> None:
    """Somebody looks every second."""
    while clock.now < until:
        clock.now += 1.0
        sites.present()


def watched(store: MemoryStore, clock: Clock, notes: list[str], user: str | None = "server") -> WatchedSites:
    return WatchedSites({"a": range(0, 4), "b": range(4, 6)}, store, clock, 60.0, user, notes.append)


def test_a_site_counts_as_present_until_its_workers_have_had_time_to_come() -> None:
    clock = Clock()
    sites = watched(MemoryStore(), clock, [])
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 59.0)
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 61.0)
    assert sites.present() == ()


def test_a_site_that_vanished_is_named_once_and_so_is_its_return() -> None:
    clock, store, notes = Clock(), MemoryStore(), list[str]()
    sites = watched(store, clock, notes)
    store.announce(workers_topic("a"), "w", {}, 1000.0)
    pass_time(sites, clock, 100.0)
    assert sites.present() == ("a",)
    assert sites.present() == ("a",)
    store.announce(workers_topic("b"), "w", {}, 1000.0)
    pass_time(sites, clock, 101.0)
    assert sites.present() == ("a", "b")
    assert notes == ["site b has no worker: its clients are not asked until it has one", "site b is back"]


def test_the_store_is_asked_once_a_second_at_most_however_often_loops_ask() -> None:
    clock, store = Clock(), MemoryStore()
    asked: list[str] = []
    notices = store.notices
    store.notices = lambda topic: asked.append(topic) or notices(topic)  # type: ignore[func-returns-value, method-assign]
    sites = watched(store, clock, [])
    for clock.now in (1.0, 1.1, 1.9, 2.0):
        assert sites.present() == ("a", "b")
    assert len(asked) == 2 * len(sites.names())


def test_a_site_speaks_for_its_own_clients_only() -> None:
    sites = watched(MemoryStore(), Clock(), [])
    assert sites.may_speak("site-a", 3)
    assert not sites.may_speak("site-a", 4)
    assert not sites.may_speak("site-b", 99)
    assert not sites.may_speak("", 3)
    assert not sites.may_speak("stranger", 3)


def test_whoever_has_the_servers_own_credentials_is_trusted_and_so_is_a_broker_without_users() -> None:
    sites = watched(MemoryStore(), Clock(), [])
    assert sites.may_speak("server", 4)
    assert sites.may_speak(None, 4)


def test_clients_belong_to_sites_in_order() -> None:
    sites = watched(MemoryStore(), Clock(), [])
    assert [sites.site_of(client) for client in range(6)] == ["a", "a", "a", "a", "b", "b"]


def test_time_in_which_nobody_looked_makes_nobody_absent() -> None:
    clock = Clock()
    sites = watched(MemoryStore(), clock, [])
    clock.now = 1000.0
    assert sites.present() == ("a", "b")
    pass_time(sites, clock, 1061.0)
    assert sites.present() == ()
