"""Tables and .npz files from training to prediction, as a person types it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_cli import SMALL, complaint, fedil


def table_rows(num: int) -> list[str]:
    generator = np.random.default_rng(0)
    ill, clinic = generator.integers(0, 2, num), generator.integers(0, 3, num)
    age = 45 + 20 * ill + generator.normal(0, 5, num)
    return [
        f"{number},{'nsw'[clinic[number]]},{age[number]:.0f},{'fm'[number % 2]},{['no', 'yes'][ill[number]]}"
        for number in range(num)
    ]


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("table")
    (place / "own.csv").write_text("\n".join(["id,clinic,age,sex,ill", *table_rows(120)]))
    settings = {
        "data.name": "csv",
        "data.root": "own.csv",
        "data.options": '{label = "ill", site = "clinic", ignore = ["id"]}',
        "split.partition": "natural",
        "split.clients": "3",
        "split.labelled": "20",
        "federation.clients_per_round": "3",
        "network.name": "mlp",
        "network.norm": "none",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = fedil("simulate", *SMALL, *words, "--run-dir", "run", "--quiet", cwd=place)
    assert result.returncode == 0, result.stderr
    return place


def test_each_clinic_is_a_client_and_the_scores_are_named_after_the_table(table_run: Path) -> None:
    split = json.loads((table_run / "run/split.json").read_text())
    assert len(split["clients"]) == 3
    assert sum(map(len, split["clients"])) == 96 - 20
    quality = json.loads(fedil("evaluate", "run", "--json", "--csv", "scores.csv", cwd=table_run).stdout)
    overall = quality["scores"]["overall"]["accuracy"]
    assert overall["low"] <= quality["accuracy"] == overall["value"] <= overall["high"]
    rows = (table_run / "scores.csv").read_text().splitlines()
    assert rows[1].split(",")[:5] == ["global", "(all)", "24", "accuracy", str(quality["accuracy"])]
    assert (quality["data"], quality["samples"], list(quality["per_class"])) == ("csv", 24, ["no", "yes"])
    assert quality["scores"]["overall"]["auc"]["value"] > 0.9


def test_the_run_alone_is_enough_to_validate_and_predict_elsewhere(table_run: Path, tmp_path: Path) -> None:
    """Another clinic has the run's folder and a table of its own."""
    shutil.copytree(table_run / "run", tmp_path / "run")
    (tmp_path / "theirs.csv").write_text("sex,ill,age\nf,no,44\nm,yes,66\nx,yes,70\n")
    result = fedil("evaluate", "run", "--data", "theirs.csv", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["samples"] == 3, result.stderr
    assert "theirs.csv: column 'sex': 0 of 3 values are missing, 1 unknown" in result.stderr
    asked = ["--csv", "said.csv", "--probabilities"]
    assert fedil("predict", "run", "theirs.csv", *asked, cwd=tmp_path).returncode == 0
    header, *lines = (tmp_path / "said.csv").read_text().splitlines()
    assert header == "file,row,label,confidence,p(no),p(yes)"
    assert [line.split(",")[:3] for line in lines] == [["theirs.csv", str(n), said] for n, said in
                                                       ((2, "no"), (3, "yes"), (4, "yes"))]  # fmt: skip
    result = fedil("predict", "run", "theirs.csv", "--json", "--top", "2", "--threshold", "1", cwd=tmp_path)
    answer = json.loads(result.stdout.splitlines()[0])
    assert (answer["row"], answer["label"], len(answer["top"])) == (2, None, 2)
    line = complaint(fedil("evaluate", "run", cwd=tmp_path), 1)
    assert "data.root must be a .csv file, or a folder with train.csv and test.csv, not own.csv" in line
    (tmp_path / "less.csv").write_text("sex,ill\nf,no\n")
    line = complaint(fedil("predict", "run", "less.csv", cwd=tmp_path), 1)
    assert line.startswith("fedil: csv: less.csv has no column 'age'; known: sex, ill")


def test_an_npz_file_is_trained_on_and_others_are_evaluated(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = (generator.integers(0, 100, (60, 12, 12, 3)) + 120 * labels[:, None, None, None]).astype(
        np.uint8
    )
    parts = {"train_images": images, "test_images": images[:20]}
    np.savez(tmp_path / "own.npz", train_labels=labels[:, None], test_labels=labels[:20], **parts)  # type: ignore[arg-type]
    words = ["data.name=npz", "data.root=own.npz", 'data.options.classes=["dark", "bright"]', "split.labelled=10",
             "split.clients=5", "network.name=mlp", "network.norm=none"]  # fmt: skip
    settings = [word for setting in words for word in ("--set", setting)]
    result = fedil("simulate", *SMALL, *settings, "--run-dir", "run", "--quiet", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (tmp_path / "own.npz").rename(tmp_path / "theirs.npz")
    quality = json.loads(fedil("evaluate", "run", "--data", "theirs.npz", "--json", cwd=tmp_path).stdout)
    assert (quality["samples"], list(quality["per_class"])) == (20, ["dark", "bright"])
    assert quality["accuracy"] > 0.9
    line = complaint(fedil("evaluate", "run", "--data", "digits", cwd=tmp_path), 2)
    assert line == "fedil: --data digits has samples of 1×8×8, the model takes 3×12×12"
