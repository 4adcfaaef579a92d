"""Mistakes in a user's own network and data, as the command line tells them."""

from pathlib import Path

import pytest

from tests.integration.test_cli import ROOT, SMALL, complaint, fedil

MINE = """
from dataclasses import replace
from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.digits import digits


def network(input_shape, num_classes):
    raise OverflowError("too deep")  # line 8


def unread():
    def load():
        return open("scans.npy")  # line 13
    return replace(digits(), load_train=load)


class Views(TensorViews):
    def strong(self, raw, generator):
        return raw.pixels  # line 19


def unseen():
    return replace(digits(), views=Views())
"""


@pytest.mark.parametrize(
    ("setting", "error", "line"),
    [
        ("network.name=mine:network", "OverflowError: too deep", 8),
        ("data.name=mine:unread", "load_train(): FileNotFoundError: [Errno 2] No such file", 13),
        ("data.name=mine:unseen", "views.strong(): AttributeError: 'Tensor' object has no", 19),
        ("network.name=unfinished:network", "SyntaxError: '(' was never closed", 1),
    ],
)
def test_an_error_in_a_users_code_is_one_line_with_its_place_and_exit_code_2(
    tmp_path: Path, setting: str, error: str, line: int
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "unfinished.py").write_text("def network(")
    words = ["simulate", *SMALL, "--set", setting, "--run-dir", "run", "--quiet"]
    said = complaint(fedil(*words, cwd=tmp_path), 2)
    assert said.startswith(f"fedil: {setting}: {error}")
    module = setting.partition("=")[2].partition(":")[0]
    assert said.endswith(f"({tmp_path / module}.py:{line})")
    assert not (tmp_path / "run").exists()


def test_the_whole_traceback_can_be_had(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    words = ["simulate", *SMALL, "--set", "network.name=mine:network", "--run-dir", "run"]
    result = fedil(*words, cwd=tmp_path, FEDIL_DEBUG="1")
    assert 'raise OverflowError("too deep")' in result.stderr


def test_a_module_beside_the_recipe_is_found_from_any_folder_also_by_the_workers(tmp_path: Path) -> None:
    beside, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
    (beside / "mine.py").write_text(
        "from fedil_model.data.datasets.digits import digits\n\ndef same():\n    return digits()\n"
    )
    (beside / "random.py").write_text("raise RuntimeError('not the standard library')")
    recipe = beside / "study.toml"
    digits = (ROOT / "ops/recipes/digits.toml").read_text()
    recipe.write_text(digits.replace('[data]\nname = "digits"', '[data]\nname = "mine:same"'))
    words = ["simulate", str(recipe), *SMALL, "--run-dir", "run", "--quiet"]
    result = fedil(*words, cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    assert '"mine:same"' in (elsewhere / "run/recipe.json").read_text()
