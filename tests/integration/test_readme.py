"""What the README shows a newcomer works as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_ones_own_network_and_data_trains(tmp_path: Path) -> None:
    example = re.search(r"```python\n# mine\.py\n(.*?)```", README, re.DOTALL)
    command = re.search(r"^\$ fedil (simulate .*mine:network.*)$", README, re.MULTILINE)
    assert example
    assert command
    (tmp_path / "mine.py").write_text(example[1], encoding="utf-8")
    words = [*shlex.split(command[1]), "--set", "rounds=2", "--workers", "1"]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "fedil"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "finished 2 of 2 rounds" in done.stdout


def test_every_file_that_the_tour_names_exists() -> None:
    tour = README[README.index("## A tour of the code") :]
    rows = re.findall(r"^\| `(.+?)` \|", tour, re.MULTILINE)
    assert len(rows) == 12
    for before, choices, after in (re.fullmatch(r"([^{]*)(?:\{(.*)\}(.*))?", row).groups("") for row in rows):  # type: ignore[union-attr]
        for choice in choices.split(","):
            assert (ROOT / f"{before}{choice}{after}").exists(), f"{before}{choice}{after}"


def test_nothing_is_left_to_be_filled_in() -> None:
    assert re.findall(r"@[A-Z]+@", README) == []
