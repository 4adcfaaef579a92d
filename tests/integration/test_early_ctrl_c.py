"""Ctrl-C before the first round, when there is nothing to lose yet, and after the last one."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.test_cli import ROOT, SMALL, environment


def test_ctrl_c_stops_the_training_before_the_rounds(tmp_path: Path) -> None:
    output = interrupted(tmp_path, "server.pretrain_epochs", "server learns from the labels", 130)
    *_, how, line = output.splitlines()
    assert how == "Nothing was saved yet. Begin again with"
    assert line.endswith("--resume")


def test_ctrl_c_in_the_comparison_after_the_rounds_leaves_a_finished_run(tmp_path: Path) -> None:
    output = interrupted(tmp_path, "baseline_epochs", "server-only training", 0)
    assert "finished 2 of 2 rounds" in output
    assert "server-only on" not in output


def interrupted(folder: Path, setting: str, until: str, code: int) -> str:
    """What a simulation prints after Ctrl-C at a line that contains `until`"""
    command = [sys.executable, "-u", "-m", "ops.cli", "simulate", *SMALL, "--set", f"{setting}=1000000000"]
    process = subprocess.Popen(
        [*command, "--run-dir", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert any(until in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return output


def test_ctrl_c_while_the_command_line_is_loaded_is_quiet() -> None:
    program = """
import sys
class Impatient:
    def find_spec(self, name, *_):
        if name == "ops.cli.commands":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())
from ops.cli.entry import main
sys.exit(main())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), cwd=ROOT, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")
