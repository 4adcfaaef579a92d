"""A worker of another version of FedIL: it refuses the tasks by name, and the server says so at once."""

from pathlib import Path

import pytest

from broker_config.brokers.topology import DEAD_LETTERS
from broker_config.protocol.errors import FedILError, MessageRejected
from broker_config.protocol.messages import ModelEntry, TrainTask
from broker_config.protocol.schema import to_fields
from broker_config.protocol.wire import decode_message, encode_arrays
from broker_config.transports.interface import ModelAddress
from client_worker import participant
from tests.federation import Federation, blobs_recipe

TASK = TrainTask("run-1", 3, 7, 2, ModelEntry(ModelAddress("run-1", 3, 40), "0" * 32), "{}")


@pytest.mark.parametrize(
    ("change", "what"), [({"wire": None}, "'wire' is missing"), ({"new": 1}, "'new' is unknown")]
)
def test_a_task_with_other_fields_is_refused_with_the_reason_and_the_remedy(
    change: dict[str, object], what: str
) -> None:
    kind, fields, _ = to_fields(TASK)
    changed = {name: value for name, value in {**fields, **change}.items() if value is not None}
    with pytest.raises(
        MessageRejected, match=f"{what}; server and workers of a run must have the same version"
    ):
        decode_message(b"".join(encode_arrays(kind, changed, {})))
    assert decode_message(b"".join(encode_arrays(kind, fields, {}))) == TASK


def test_the_server_hears_that_a_worker_of_another_version_took_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_as_another_version(body: bytes) -> object:
        raise MessageRejected("unknown_version", "format 1; this side reads 9: use one version of FedIL")

    monkeypatch.setattr(participant, "decode_message", read_as_another_version)
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    with pytest.raises(FedILError, match=r"every client refused.* is a dead letter \(unknown_version\)"):
        federation.play()
    assert (
        "message refused: unknown_version: format 1; this side reads 9: use one version of FedIL"
        in caplog.text
    )
    assert federation.connect().depth(DEAD_LETTERS)
