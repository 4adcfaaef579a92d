"""What every transport promises of a run: its model log, its one leader, its end."""

import threading

import numpy as np
import pytest

from broker_config.brokers.topology import DEFAULT_SITE, updates_queue
from broker_config.protocol.errors import ModelMissing, QueueMissing
from broker_config.transports.interface import ModelAddress, Transport
from tests.contract.transports import NOTHING, SOON, Connect, big_body

# Models


def test_a_model_is_read_by_many_and_as_often_as_they_like(
    connect: Connect, transport: Transport, run: str
) -> None:
    body = big_body(3_000_000)
    address = transport.append_model(run, 1, [body[:1000], body[1000:]])
    for reader in (transport, connect(), connect()):
        assert bytes(reader.read_model(address)) == body
        assert bytes(reader.read_model(address)) == body


def test_an_address_says_run_and_version(transport: Transport, run: str) -> None:
    address = transport.append_model(run, 7, [b"weights"])
    assert (address.run, address.version) == (run, 7)


def test_the_version_before_the_newest_is_still_there(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    second = transport.append_model(run, 2, [b"two"])
    assert bytes(transport.read_model(first)) == b"one"
    assert bytes(transport.read_model(second)) == b"two"


def test_writing_a_version_again_replaces_it(transport: Transport, run: str) -> None:
    transport.append_model(run, 1, [b"before the crash"])
    address = transport.append_model(run, 1, [b"after"])
    assert bytes(transport.read_model(address)) == b"after"


def test_writing_a_version_again_does_not_push_another_out(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    for _ in range(3):
        transport.append_model(run, 2, [b"two"])
    assert bytes(transport.read_model(first)) == b"one"


def test_a_version_written_again_is_as_young_as_its_last_writing(transport: Transport, run: str) -> None:
    for version in (1, 2):
        transport.append_model(run, version, [b"before the crash"])
    restored = transport.append_model(run, 1, [b"restored"])
    transport.append_model(run, 3, [b"later"])
    assert bytes(transport.read_model(restored)) == b"restored"


def test_an_old_version_leaves_the_log(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    for version in range(2, 30):
        transport.append_model(run, version, [b"later"])
    with pytest.raises(ModelMissing):
        transport.read_model(first)


def test_a_run_may_go_on_from_an_older_version(transport: Transport, run: str) -> None:
    for version in (8, 9):
        transport.append_model(run, version, [b"to be forgotten"])
    address = transport.append_model(run, 3, [b"restored"])
    assert bytes(transport.read_model(address)) == b"restored"


def test_the_model_of_an_unknown_run_is_missing(transport: Transport, run: str) -> None:
    with pytest.raises(ModelMissing):
        transport.read_model(ModelAddress(run, 1, 0))


def test_runs_do_not_see_each_others_models(transport: Transport, run: str) -> None:
    ours = transport.append_model(run, 1, [b"ours"])
    theirs = transport.append_model(f"{run}-other", 1, [b"theirs"])
    assert bytes(transport.read_model(ours)) == b"ours"
    assert bytes(transport.read_model(theirs)) == b"theirs"


def test_what_the_server_trains_after_appending_does_not_change_the_model(
    transport: Transport, run: str
) -> None:
    weights = np.ones(1000, np.uint8)
    address = transport.append_model(run, 1, [weights.data])
    weights[:] = 2
    assert bytes(transport.read_model(address)) == b"\1" * 1000


def test_as_many_versions_stay_as_are_to_be_kept(transport: Transport, run: str) -> None:
    addresses = [transport.append_model(run, version, [b"%d" % version], kept=4) for version in range(6)]
    assert [bytes(transport.read_model(address)) for address in addresses[2:]] == [b"2", b"3", b"4", b"5"]
    with pytest.raises(ModelMissing):
        transport.read_model(addresses[1])


# Leading and retiring a run


def test_one_leads_a_run_at_a_time(connect: Connect, transport: Transport, run: str) -> None:
    assert transport.acquire_leadership(run, SOON)
    assert not connect().acquire_leadership(run, NOTHING)
    assert transport.acquire_leadership(run, NOTHING)
    assert connect().acquire_leadership(f"{run}-other", SOON)


def test_the_lead_passes_to_whoever_waits_when_the_leader_goes(
    connect: Connect, transport: Transport, run: str
) -> None:
    leader, quitter = connect(), connect()
    assert leader.acquire_leadership(run, SOON)
    assert not quitter.acquire_leadership(run, NOTHING)
    won: list[bool] = []
    waiter = threading.Thread(target=lambda: won.append(transport.acquire_leadership(run, SOON)))
    waiter.start()
    leader.close()
    waiter.join()
    assert won == [True]
    assert not quitter.acquire_leadership(run, NOTHING)


def test_retiring_a_run_drops_what_it_had(connect: Connect, transport: Transport, run: str) -> None:
    transport.declare(updates_queue(run))
    transport.publish(updates_queue(run), [b"late"])
    address = transport.append_model(run, 1, [b"weights"])
    assert transport.acquire_leadership(run, SOON)
    transport.retire(run, [DEFAULT_SITE])
    with pytest.raises(QueueMissing):
        transport.publish(updates_queue(run), [b"later"])
    with pytest.raises(ModelMissing):
        transport.read_model(address)
    assert connect().acquire_leadership(run, SOON)


def test_retiring_a_run_that_has_nothing_is_harmless_and_others_keep_theirs(
    transport: Transport, run: str
) -> None:
    address = transport.append_model(run, 1, [b"weights"])
    transport.retire(f"{run}-other", [DEFAULT_SITE])
    transport.retire(f"{run}-other", [DEFAULT_SITE])
    assert bytes(transport.read_model(address)) == b"weights"


def test_a_retired_run_may_begin_anew(transport: Transport, run: str) -> None:
    transport.append_model(run, 1, [b"before"])
    transport.retire(run, [DEFAULT_SITE])
    transport.declare(updates_queue(run))
    assert transport.receive(updates_queue(run), 0.0) is None
    address = transport.append_model(run, 1, [b"after"])
    assert bytes(transport.read_model(address)) == b"after"
