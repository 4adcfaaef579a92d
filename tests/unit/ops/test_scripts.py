"""The shell scripts where they can go wrong before Python runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "ops" / "scripts"
VERBS = ("quickstart", "setup", "test", "lint", "types", "format")


@pytest.mark.parametrize("script", [*(SCRIPTS / verb for verb in VERBS), ROOT / ".ci" / "run"], ids=str)
def test_a_script_is_executable_and_stops_at_the_first_error(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    assert str(ROOT) not in script.read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository without an environment, and a PATH with the few programs that the scripts use."""
    clone = tmp_path / "clone with a space"
    shutil.copytree(SCRIPTS, clone / "ops" / "scripts")
    (clone / "pyproject.toml").write_text("[project]\n")
    programs = clone / "bin"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "cksum", "grep", "cat", "mkdir", "chmod"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return clone


def put_program(clone: Path, name: str, body: str) -> Path:
    program = clone / "bin" / name
    program.write_text(f"#!/usr/bin/env bash\n{body}\n")
    program.chmod(0o755)
    return program


def run_script(clone: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / "ops" / "scripts" / name, *arguments],
        env={"PATH": str(clone / "bin")},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_machine_without_python_is_told_what_to_install(clone: Path) -> None:
    put_program(clone, "python3", "exit 1  # too old: its version check fails")
    result = run_script(clone, "quickstart")
    assert result.returncode == 1
    assert result.stderr.startswith("fedil: Python 3.11 or newer was not found")
    assert not (clone / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install(clone: Path) -> None:
    put_program(clone, "python3", '[[ "$*" != *ensurepip* ]]')
    result = run_script(clone, "setup")
    assert result.returncode == 1
    assert "python3-venv" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# Stands in for a Python that makes environments; the python that `-m venv` makes notes what pip is asked.
FAKE_PYTHON = r"""
case "$*" in
*"-m venv"*)
    mkdir -p "${@: -1}/bin"
    {
        echo '#!/usr/bin/env bash'
        echo '[[ "$*" == *"pip install"* ]] && echo "$*" >>"$(dirname "$0")/../pip-calls"'
        echo '[[ "$*" != *"pip install"* || ! -e "$(dirname "$0")/../offline" ]]'
    } >"${@: -1}/bin/python"
    chmod +x "${@: -1}/bin/python" ;;
esac
"""


def pip_calls(clone: Path) -> list[str]:
    return (clone / ".venv" / "pip-calls").read_text().splitlines()


def test_installing_happens_once_until_pyproject_changes(clone: Path) -> None:
    put_program(clone, "python3", FAKE_PYTHON)
    for _ in range(2):
        assert run_script(clone, "setup").returncode == 0
    assert len(pip_calls(clone)) == 1
    assert pip_calls(clone)[0].endswith(f"--editable {clone}[test]")
    (clone / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert run_script(clone, "setup").returncode == 0
    assert len(pip_calls(clone)) == 2


def test_the_quickstart_does_not_install_again_what_setup_has_installed(clone: Path) -> None:
    put_program(clone, "python3", FAKE_PYTHON)
    assert run_script(clone, "setup").returncode == 0
    run_script(clone, "quickstart")
    assert len(pip_calls(clone)) == 1


def test_a_failed_installation_says_so_and_is_tried_again(clone: Path) -> None:
    put_program(clone, "python3", FAKE_PYTHON)
    assert run_script(clone, "setup").returncode == 0
    (clone / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    (clone / ".venv" / "offline").touch()
    failed = run_script(clone, "setup")
    assert failed.returncode == 1
    assert "Is the package registry reachable?" in failed.stderr
    (clone / ".venv" / "offline").unlink()
    assert run_script(clone, "setup").returncode == 0
    assert len(pip_calls(clone)) == 3


def test_the_quickstart_runs_the_default_recipe_in_the_repository_from_any_folder(clone: Path) -> None:
    put_program(clone, "python3", FAKE_PYTHON)
    assert run_script(clone, "setup").returncode == 0
    fedil = put_program(clone, "fedil", 'printf "%s|" "$@"')
    fedil.rename(clone / ".venv" / "bin" / "fedil")
    result = run_script(clone, "quickstart", "--quiet")
    assert result.stdout == f"simulate|digits|--overwrite|--run-dir|{clone}/runs/quickstart|--quiet|"


def test_the_readmes_tables_are_those_of_the_results() -> None:
    result = subprocess.run(
        [SCRIPTS / "readme_tables", "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_readme_tables_writes_what_results_say_and_check_notices_drift(tmp_path: Path) -> None:
    row = {"variant": "a", "accuracy": 91.256, "deviation": 1.5, "seeds": 2, "rounds": 4, "cpu_seconds": 30.4}
    failed = dict.fromkeys(row) | {"variant": "b", "seeds": 0, "megabytes_received": None}
    results = {"table": [row | {"megabytes_received": 2.6}, failed]}
    (tmp_path / "ops" / "results").mkdir(parents=True)
    (tmp_path / "ops" / "results" / "one.json").write_text(json.dumps(results))
    (tmp_path / "ops" / "docs").mkdir()
    pages = (tmp_path / "README.md", tmp_path / "ops" / "docs" / "page.md")
    for page in pages:
        page.write_text("before\n<!-- table one -->\nold\n<!-- end -->\nafter\n")

    def run(*options: str) -> int:
        words = [sys.executable, str(SCRIPTS / "readme_tables.py"), str(tmp_path), *options]
        return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode

    assert run("--check") == 1
    assert run() == 0
    assert run("--check") == 0
    assert pages[0].read_text() == pages[1].read_text()
    lines = pages[0].read_text().splitlines()
    assert lines[4:6] == ["| `a` | 91.26 ± 1.50 | 2 | 4 | 30 | 3 |", "| `b` | failed | 0 | – | – | – |"]
    assert (lines[0], lines[-1]) == ("before", "after")
