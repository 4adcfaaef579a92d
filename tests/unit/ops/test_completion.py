"""`fedil completion`: what a real shell offers after it has read the script."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ops.cli.main import main
from ops.cli.recipe_files import built_in_names

# As readline calls it, for the words in "$@", of which the last is being completed.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function="$(complete -p fedil)"; function="${function##*-F }"
"${function%% *}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    file = tmp_path / "fedil.bash"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def offered(script: Path, *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", script, "fedil", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=script.parent,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_choices_recipes_and_files(script: Path) -> None:
    assert offered(script, "sim") == {"simulate"}
    assert offered(script, "broker", "re") == {"retire"}
    assert offered(script, "simulate", "--res") == {"--resume"}
    assert offered(script, "export", "run", "--format", "") == {"onnx", "safetensors", "torchscript"}
    assert offered(script, "simulate", "mnist-") == {
        name for name in built_in_names() if name.startswith("mnist-")
    }
    (script.parent / "wards.toml").touch()
    assert offered(script, "server", "--recipe", "war") == {"wards.toml"}


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef fedil"), ("fish", "# ")])
def test_other_shells_have_a_script_that_names_every_command(
    shell: str, begins: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.startswith(begins)
    assert all(name in text for name in ("simulate", "retire", "resume"))
    if program := shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text)
        assert (
            subprocess.run([program, "-n", file], capture_output=True, timeout=30, check=False).returncode
            == 0
        )
