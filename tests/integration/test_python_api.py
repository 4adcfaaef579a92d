"""`import fedil`: runs that are started, watched, stopped and used by function calls"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedil
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import DataError, SettingError
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord
from tests.federation import blobs, blobs_recipe

ROOT = Path(__file__).parents[2]
QUIET: dict[str, Any] = {"workers": 1, "progress": False}


def small(**settings: Any) -> Recipe:
    return fedil.Recipe(blobs_recipe(), **{"baseline_epochs": 4, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedil.Run:
    return fedil.simulate(small(), tmp_path_factory.mktemp("api") / "run", **QUIET)


def test_the_history_has_a_column_for_each_number_and_a_row_for_each_round(run: fedil.Run) -> None:
    history = run.history
    assert history["round"] == [1, 2, 3]
    assert {len(column) for column in history.values()} == {3}
    assert {"accuracy", "accuracy_server", "delta_norm", "loss_server", "seconds_total"} <= set(history)
    assert history["accuracy"][-1] == run.accuracy
    assert repr(run) == f"<Run {run.path}: 3 of 3 rounds, accuracy {100 * (run.accuracy or 0):.2f} %>"
    assert run.clients["round"] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert set(run.clients["site"]) == {"default"}


def test_the_model_takes_raw_samples_and_agrees_with_predict_and_evaluate(run: fedil.Run) -> None:
    test = blobs().load_test()
    model, predictions = run.model(), run.predict(test.inputs.numpy().astype(np.float64))
    assert not model.training
    with torch.no_grad():
        probabilities = model(test.inputs).softmax(dim=1)
    np.testing.assert_allclose(predictions.probabilities, probabilities, atol=1e-6)
    assert predictions.labels == [predictions.class_names[label] for label in probabilities.argmax(dim=1)]
    right = np.mean(np.array(predictions.labels) == np.array(list("abcd") * 100))
    assert run.evaluate().accuracy == pytest.approx(right)
    assert run.accuracy == pytest.approx(right)


def test_evaluate_takes_other_samples(run: fedil.Run) -> None:
    test = blobs().load_test()
    first = Samples(test.inputs[:40], test.labels[:40])
    assert run.evaluate(first).samples == 40
    assert run.evaluate((first.inputs.numpy(), first.labels.numpy())) == run.evaluate(first)


@pytest.mark.parametrize(
    ("inputs", "labels", "says"),
    [
        (np.zeros(8), [0], r"one sample of shape \(8,\): put it into a batch of one, inputs\[None\]"),
        (np.zeros((2, 7)), [0, 1], r"inputs have shape \(7,\) a sample, the run's data \(8,\)"),
        (np.zeros((2, 8)), [0.5, 1.0], "2 whole numbers are wanted, got float64"),
        (np.zeros((2, 8)), [0, 4], "labels go from 0 to 4, expected 0 to 3"),
    ],
)
def test_samples_that_do_not_fit_are_explained(run: fedil.Run, inputs: Any, labels: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        run.evaluate((inputs, labels))


def test_a_run_is_loaded_again_only_with_the_code_that_was_allowed(run: fedil.Run) -> None:
    name = "tests.federation:blobs"
    with pytest.raises(SettingError, match=rf"add plugins=\['{name}'\]"):
        fedil.load_run(run.path)
    loaded = fedil.load_run(run.path, plugins=[name])
    assert (loaded.digest, loaded.history) == (run.digest, run.history)


def test_the_report_is_written_where_it_is_asked_for(run: fedil.Run, tmp_path: Path) -> None:
    assert "<html" in run.report(tmp_path / "mine.html").read_text(encoding="utf-8")
    with pytest.raises(SettingError, match=r"path .*: there is no folder"):
        run.report(tmp_path / "nowhere" / "mine.html")


def test_a_folder_with_a_run_is_not_written_over_unasked(run: fedil.Run) -> None:
    with pytest.raises(SettingError, match="add resume=True to go on with it, or overwrite=True to replace"):
        fedil.simulate(small(), run.path, **QUIET)
    with pytest.raises(SettingError, match="seed was 0, is 1"):
        fedil.simulate(small(seed=1), run.path, resume=True, **QUIET)
    with pytest.raises(SettingError, match=r"rounds was 3, is 4.*; rounds=4 goes on to so many"):
        fedil.simulate(small(rounds=4), run.path, resume=True, **QUIET)


def in_round_one(act: Any) -> Any:
    def callback(record: RoundRecord) -> None:
        if record.round == 1:
            act()

    return callback


def stop() -> None:
    raise fedil.Stop


def fail() -> None:
    raise ValueError("a mistake of the callback's")


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_callback_stops_the_run_or_fails_and_ctrl_c_comes_and_nothing_is_lost(
    run: fedil.Run, tmp_path: Path
) -> None:
    stopped = fedil.simulate(small(), tmp_path / "run", callbacks=[in_round_one(stop)], **QUIET)
    assert (stopped.finished, stopped.rounds_done < 3) == (False, True)

    seen: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    begin = {"recipe": small(), "run_dir": tmp_path / "other", **QUIET}
    with pytest.raises(ValueError, match="a mistake of the callback's"):
        fedil.simulate(**begin, callbacks=[in_round_one(fail)])
    with pytest.raises(KeyboardInterrupt, match="of 3 rounds") as caught:
        fedil.simulate(
            **begin | {"recipe": small(evaluate_every=1)}, resume=True, callbacks=[lambda _: press_ctrl_c()]
        )
    assert "the same call with resume=True goes on" in caught.value.__notes__[0]
    finished = fedil.simulate(**begin, resume=True, callbacks=[lambda record: seen.append(record.round)])
    assert seen[-1] == 3
    assert signal.getsignal(signal.SIGINT) == handler
    assert (finished.digest, stopped.resume(**QUIET).digest) == (run.digest, run.digest)


def test_a_finished_run_goes_on_to_more_rounds_in_another_thread_too(tmp_path: Path) -> None:
    """Notebooks and servers run code in threads that no signal reaches."""
    runs: list[fedil.Run] = []

    def work() -> None:
        begun = fedil.simulate(small(rounds=1, baseline_epochs=0), tmp_path / "run", **QUIET)
        runs.append(begun.resume(rounds=2, **QUIET))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert runs[0].history["round"] == [1, 2]
    assert runs[0].recipe.rounds == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("digits.py", ["with the server's 50 labels alone", "a 0 is taken for a "]),
        ("hospitals.py", ["university", "from the 24 diagnoses alone", "a new sample is "]),
    ],
)
def test_the_examples_run_as_scripts(script: str, says: list[str], tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "ops/python")))
    done = subprocess.run(
        [sys.executable, ROOT / "ops/examples" / script, "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in (*says, ": 1 of 1 rounds, accuracy "):
        assert words in done.stdout
