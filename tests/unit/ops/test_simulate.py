"""What surrounds the server's loop; the loop itself, with workers that work, is in tests/integration."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import client_worker.pool
import ops.local.simulate
from broker_config.protocol.errors import BrokerUnavailable, FedILError
from broker_config.stores.memory.ledger_files import LedgerFiles
from fedil_model.data.datasets.digits import digits
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, NetworkError, SettingError
from ops.cli.view import QuietView
from ops.inspect.run_place import replacing
from ops.inspect.summary import Summary
from ops.local.simulate import simulate
from server_worker.run.folder import RunDir
from server_worker.run.name import known_run
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.notices import Notice

test_set_read_in: list[threading.Thread] = []


def remembering() -> Dataset:
    def load_test() -> Samples:
        test_set_read_in.append(threading.current_thread())
        return digits().load_test()

    return replace(digits(), load_test=load_test)


def without_test_set() -> Dataset:
    def load_test() -> Samples:
        raise DataError("the test set is missing")

    return replace(digits(), load_test=load_test)


def tiny(data: str = "digits", **more: Any) -> Recipe:
    fields = {
        "baseline_epochs": 0,
        "data": {"name": data},
        "network": {"name": "mlp", "width": 8},
        "split": {"labelled": 20, "clients": 5},
        "server": {"epochs": 1, "pretrain_epochs": 0},
    }
    return make_recipe(fields | more)


ONE_CLIENT: dict[str, Any] = {"federation": {"clients_per_round": 1}}


def run(
    recipe: Recipe,
    run_dir: Path,
    watcher: QuietView | None = None,
    stop: threading.Event | None = None,
    *,
    resume: bool = False,
) -> Summary:
    return simulate(
        recipe,
        run_dir,
        workers=1,
        device="cpu",
        resume=resume,
        watcher=watcher or QuietView(),
        stop=stop or threading.Event(),
    )


@pytest.fixture
def _dying_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_worker.pool, "_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(client_worker.pool, "_BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(ops.local.simulate, "_worker_arguments", lambda *_: ["--nonsense"])
    monkeypatch.setattr(client_worker.pool, "WRONGLY_ASKED", None)  # as if they died of something else


def test_a_test_set_that_cannot_be_read_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the test set is missing"):
        run(tiny(f"{__name__}:without_test_set"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_test_set_is_read_once_and_in_the_main_thread(tmp_path: Path) -> None:
    test_set_read_in.clear()
    run(tiny(f"{__name__}:remembering", baseline_epochs=1, rounds=1, **ONE_CLIENT), tmp_path / "run")
    assert test_set_read_in == [threading.main_thread()]


@pytest.mark.usefixtures("_dying_workers")
def test_workers_that_keep_dying_are_the_error_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(FedILError, match="workers keep dying"):
        run(tiny(), tmp_path / "run")


def test_every_answer_counts_as_progress_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[client_worker.pool.WorkerPool] = []
    monkeypatch.setattr(client_worker.pool.WorkerPool, "progress", lambda pool: answers.append(pool))
    run(tiny(rounds=1, federation={"clients_per_round": 2}), tmp_path / "run")
    assert len(answers) == 2


@pytest.mark.usefixtures("_dying_workers")
def test_a_watcher_that_fails_beside_the_loop_is_the_error_of_the_run(tmp_path: Path) -> None:
    class Closed(QuietView):
        def note(self, notice: Notice) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run(tiny(), tmp_path / "run", Closed())


@pytest.mark.parametrize(("epochs", "again"), [(3, False), (4, True), (None, True)])
def test_a_baseline_is_measured_again_only_if_it_is_another(
    tmp_path: Path, epochs: int | None, again: bool
) -> None:
    """None: the server's budget, 5 rounds of one epoch"""
    known = {"accuracy": 0.123, "epochs": 3, "labels": 20, "choice": {"lr": 0.1}}
    (tmp_path / "baseline.json").write_text(json.dumps(known))
    run(tiny(baseline_epochs=epochs, rounds=5, **ONE_CLIENT), tmp_path)
    found = json.loads((tmp_path / "baseline.json").read_text())
    assert (found != known) == again
    assert found["epochs"] == epochs or (epochs, found["epochs"]) == (None, 5)
    if again:
        assert found["choice"] == found["tried"][0]
        assert len({(choice["lr"], choice["strong_weight"]) for choice in found["tried"]}) == 4


def test_a_simulation_has_a_name_of_its_own_until_another_takes_its_place(tmp_path: Path) -> None:
    recipe, where = tiny(rounds=1, federation={"clients_per_round": 2}), RunDir(tmp_path / "run")
    first = run(recipe, where.root)
    name = known_run(where)
    assert name
    assert name != recipe.name
    assert [path.name for path in where.ledgers.iterdir()] == [name]
    again = run(recipe, where.root, resume=True)
    assert known_run(where) == name
    with replacing(where.root):
        other = run(recipe, where.root)
    assert known_run(where) not in (None, name)
    digests = {(done.model_digest, done.ledger_digest) for done in (first, again, other)}
    assert len(digests) == 1


@pytest.mark.parametrize("damaged", ["{", "{}", '{"epochs": 1}', '{"epochs": 1, "accuracy": 0.5}', "[]"])
def test_a_baseline_that_cannot_be_read_is_measured_again(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "baseline.json").write_text(damaged)
    run(tiny(baseline_epochs=1, rounds=1, **ONE_CLIENT), tmp_path)
    assert json.loads((tmp_path / "baseline.json").read_text())["epochs"] == 1


def test_the_baseline_of_static_batch_norm_has_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: list[float] = []

    def look(module: torch.nn.Module, *_: object) -> float:
        means.extend(
            float(b.abs().sum()) for name, b in module.named_buffers() if name.endswith("running_mean")
        )
        return 0.5

    monkeypatch.setattr(ops.local.simulate, "accuracy", look)
    network = {"name": "mlp", "width": 8, "norm": "sbn"}
    run(tiny(baseline_epochs=1, rounds=1, network=network, **ONE_CLIENT), tmp_path)
    assert means
    assert min(means) > 0.0


def unfit() -> Dataset:
    whole = digits().load_test()
    return replace(digits(), load_test=lambda: Samples(whole.inputs, whole.labels[:-1]))


def with_narrow_views() -> Dataset:
    return replace(digits(), input_shape=(1, 8, 9))


def without_a_seven() -> Dataset:
    whole = digits().load_train()
    rows = whole.labels != 7
    return replace(digits(), load_train=lambda: Samples(whole.inputs[rows], whole.labels[rows]))


def raising(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    raise ZeroDivisionError("not today")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": f"{__name__}:unfit"}, DataError, "unfit: load_test"),
        ({"data": f"{__name__}:with_narrow_views"}, DataError, r"views\.plain\(\)"),
        ({"data": f"{__name__}:without_a_seven"}, DataError, "no sample of '7'"),
        ({"network": {"name": f"{__name__}:raising"}}, SettingError, "raising: ZeroDivisionError: not today"),
        ({"network": {"name": "lenet5"}}, NetworkError, "lenet5"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_damaged_shards_are_named_with_the_folder_to_delete(tmp_path: Path) -> None:
    recipe, where = tiny(rounds=1, federation={"clients_per_round": 2}), RunDir(tmp_path / "run")
    first = run(recipe, where.root)
    (where.shards / "inputs.npy").write_bytes(b"not an array")
    with pytest.raises(DataError, match=r"shards cannot be used: inputs\.npy is damaged; delete that folder"):
        run(recipe, where.root, resume=True)
    shutil.rmtree(where.shards)
    assert run(recipe, where.root, resume=True).model_digest == first.model_digest


class StopsIn(QuietView):
    """Asks to stop as soon as the phase is entered."""

    def __init__(self, phase: str, stop: threading.Event) -> None:
        self._phase, self._stop = phase, stop

    def phase(self, round_number: int, name: str) -> None:
        if name == self._phase:
            self._stop.set()


def test_training_before_the_rounds_stops_when_asked_to(tmp_path: Path) -> None:
    stop = threading.Event()
    recipe = tiny(server={"pretrain_epochs": 10**9})
    done = run(recipe, tmp_path / "run", StopsIn("pretrain", stop), stop)
    assert done.stopped
    assert (done.rounds_done, done.model_digest) == (0, "")


def test_server_only_training_comes_after_the_rounds_and_stops_when_asked_to(tmp_path: Path) -> None:
    stop = threading.Event()
    recipe = tiny(baseline_epochs=10**9, rounds=1, **ONE_CLIENT)
    done = run(recipe, tmp_path / "run", StopsIn("baseline", stop), stop)
    assert not done.stopped
    assert (done.rounds_done, done.baseline_accuracy) == (done.rounds, None)
    assert done.model_digest
    assert not (tmp_path / "run" / "baseline.json").exists()


def test_a_disk_that_is_full_when_a_client_hands_in_its_ledger_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers would wait for the store until the deadline, and nobody would say why."""

    def full(_shelf: LedgerFiles, *_: Any) -> None:
        raise BrokerUnavailable("No space left on device")

    monkeypatch.setattr(LedgerFiles, "write_ledger", full)
    with pytest.raises(BrokerUnavailable, match="No space left on device"):
        run(tiny(rounds=1, federation={"clients_per_round": 2}), tmp_path / "run")
