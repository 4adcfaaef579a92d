"""What a release is made with: workflow files, citation, software bill of materials."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )


def zizmor(*files: Path) -> "subprocess.CompletedProcess[str]":
    (program,) = [
        file.locate() for file in metadata.files("zizmor") or () if file.parts[-2:] == ("bin", "zizmor")
    ]
    return run(str(program), "--offline", "--persona", "pedantic", *files)


def follows(schema: str, *files: Path) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files)


def test_zizmor_has_nothing_to_say_of_the_workflows_and_says_it_of_a_worse_one(tmp_path: Path) -> None:
    done = zizmor(*WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr
    worse = tmp_path / "worse.yml"
    worse.write_text(re.sub(r"checkout@\w+ .*", "checkout@v4", WORKFLOWS[1].read_text()))
    assert "unpinned-uses" in zizmor(worse).stdout


def test_workflows_and_citation_follow_their_schemas(tmp_path: Path) -> None:
    done = follows("vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout
    citation = ROOT / "CITATION.cff"
    done = follows("vendor.citation-file-format", citation)
    assert done.returncode == 0, done.stdout
    worse = tmp_path / "CITATION.cff"
    worse.write_text(citation.read_text().replace("authors:", "writers:"))
    assert follows("vendor.citation-file-format", worse).returncode == 1


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_the_scripts_that_people_run(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    scripts = [line for line in lines if line.startswith("./")]
    assert "./.ci/run" in scripts
    assert [one for one in scripts if not os.access(ROOT / one, os.X_OK)] == []


def test_the_sbom_names_what_an_environment_has_with_versions(tmp_path: Path) -> None:
    """In a small environment, since all of ours takes a while."""
    venv.create(tmp_path / "small", with_pip=False)
    (packages,) = tmp_path.glob("small/lib/python*/site-packages")
    about = (
        Path(str(metadata.distribution("pika").locate_file("")))
        / f"pika-{metadata.version('pika')}.dist-info"
    )
    shutil.copytree(about, packages / about.name)
    file = tmp_path / "sbom.json"
    words = ["environment", "--pyproject", "pyproject.toml", "--of", "JSON", "--output-file", str(file)]
    done = run(sys.executable, "-m", "cyclonedx_py", *words, tmp_path / "small" / "bin" / "python")
    assert done.returncode == 0, done.stderr
    made = json.loads(file.read_text())
    about_us = made["metadata"]["component"]
    assert (about_us["name"], about_us["version"]) == ("fedil", PROJECT["version"])
    assert [(one["name"], one["version"]) for one in made["components"]] == [
        ("pika", metadata.version("pika"))
    ]
