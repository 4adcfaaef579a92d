"""The checks of this machine, of clocks and of sizes, and `fedil doctor` without any broker."""

import json
from pathlib import Path

import pytest

from broker_config.process.addresses import BROKER_URL, MANAGEMENT_URL, STORE_URL
from ops.cli.main import main
from ops.doctor.clocks import check_clock
from ops.doctor.machine import check_bf16, check_device, check_disk, check_shards, pairing_problems
from ops.doctor.rabbitmq import check_message_limit
from tests.unit.ops.plans import SIZES, sizes_of

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (BROKER_URL, STORE_URL, MANAGEMENT_URL):
        monkeypatch.delenv(name, raising=False)


def test_without_brokers_the_machine_is_checked_and_the_missing_addresses_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--recipe", "digits", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("wrong")] == []
    assert any(line.startswith("ok: torch ") and "goes with torchvision" in line for line in lines)
    assert "ok: data digits has 1438 training and 359 test samples" in lines
    assert [line.partition(":")[0] for line in lines[-3:]] == ["unknown"] * 3
    assert lines[-3] == "unknown: RabbitMQ: no address is named: give --broker URL, or set FEDIL_BROKER_URL"


def test_json_names_data_and_devices_that_are_missing_and_the_exit_code_tells(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = ["--set", f"data.root={tmp_path}", "--device", "cuda:7"]
    assert main(["doctor", "--recipe", "mnist-iid-001", "--json", *missing]) == 1
    found = json.loads(capsys.readouterr().out)
    wrong = [each["text"] for each in found["findings"] if each["verdict"] == "wrong"]
    assert found["ok"] is False
    assert wrong[0].startswith("device cuda:7 asked for")
    assert "set data.download=true, or name the right folder with --set data.root=FOLDER" in wrong[1]
    assert len(wrong) == 2


def test_data_without_which_no_size_is_known_are_told_and_the_other_checks_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--recipe", "digits", "--set", "data.name=folder", "--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (wrong,) = (line for line in lines if line.startswith("wrong"))
    assert "data.root" in wrong
    assert any(line.startswith("unknown: sizes of what the recipe sends: ") for line in lines)
    assert any(line.startswith("ok: disk of ") for line in lines)


def test_a_misspelt_recipe_is_a_mistake_and_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--recipe", "digit"]) == 2
    assert "did you mean digits?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("torch_version", "vision_version", "built_for", "problem"),
    [
        ("2.14.0+cpu", "0.29.0+cpu", "2.14.0", None),
        ("2.14.0", "0.29.0", None, None),
        (
            "2.15.0",
            "0.29.0",
            "2.14.0",
            "torchvision 0.29.0 was built for torch 2.14.0: pip install --upgrade",
        ),
        ("2.14.0+cu130", "0.29.0+cpu", "2.14.0", "torchvision 0.29.0+cpu is of another build: pip install"),
    ],
)
def test_torch_and_torchvision_go_in_pairs(
    torch_version: str, vision_version: str, built_for: str | None, problem: str | None
) -> None:
    problems = list(pairing_problems(torch_version, vision_version, built_for))
    assert len(problems) == (problem is not None)
    assert problem is None or problems[0].startswith(problem)


def test_bf16_is_wrong_only_where_a_recipe_asks_for_it_and_the_processor_emulates_it() -> None:
    assert check_bf16("CPU", True, "bf16").verdict == "ok"
    assert check_bf16("CPU", False, "auto").verdict == "ok"
    emulated = check_bf16("CPU", False, "bf16")
    assert emulated.is_wrong
    assert emulated.text.endswith("--set autocast=auto")


def test_a_gpu_that_torch_does_not_use_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho NVIDIA L4\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (wrong,) = (found for found in check_device("auto", None) if found.is_wrong)
    assert wrong.text.startswith("NVIDIA L4 is not used: ")
    assert [found for found in check_device("cpu", None) if found.is_wrong] == []


@pytest.mark.parametrize(
    ("seconds", "verdict", "text"),
    [(9.0, "ok", "has the time"), (61.0, "wrong", "61 s ahead of"), (-3600.0, "wrong", "3600 s behind")],
)
def test_a_clock_that_is_more_than_ten_seconds_off_is_wrong(seconds: float, verdict: str, text: str) -> None:
    (found,) = check_clock("Redis", seconds)
    assert (found.verdict, text in found.text) == (verdict, True)
    (untold,) = check_clock("Redis", None)
    assert untold.verdict == "unknown"


def test_a_disk_without_room_for_three_checkpoints_is_wrong(tmp_path: Path) -> None:
    (found,) = check_disk(tmp_path / "not" / "there", SIZES)
    assert found.verdict == "ok"
    (found,) = check_disk(tmp_path, sizes_of(state=1 << 60))
    assert found.is_wrong
    assert found.text.endswith("free space, or --run-dir elsewhere")


def test_shards_that_are_not_there_are_named_by_their_folder(tmp_path: Path) -> None:
    assert main(["doctor", "--shards", str(tmp_path), "--device", "cpu"]) == 1
    with pytest.raises(Exception, match="no shards in"):
        list(check_shards(tmp_path))


@pytest.mark.parametrize(
    ("chunk_bytes", "model", "verdict", "text"),
    [
        (4 * MIB, 26 * MIB, "ok", "in messages: 7"),
        (64 << 10, MIB, "ok", "in messages: 402, since max_message_size is below 4194304"),
        (16 << 10, 2 << 30, "wrong", "set max_message_size = 65536 or more in its rabbitmq.conf"),
    ],
)
def test_the_message_limit_is_judged_by_the_largest_body(
    chunk_bytes: int, model: int, verdict: str, text: str
) -> None:
    found = check_message_limit("RabbitMQ", chunk_bytes, sizes_of(model=model))
    assert found.verdict == verdict
    assert found.text.endswith(text)
