"""The pages under ops/docs: they build without a network, their links lead somewhere, and their commands are ones that
`fedil` takes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli.main import make_parser
from ops.reference.pages import DOCS, PAGES

ROOT = DOCS.parents[1]
WRITTEN_BY_HAND = sorted(path for path in DOCS.glob("*.md") if path.name not in PAGES)
DOCUMENTS = (ROOT / "README.md", *WRITTEN_BY_HAND)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """--strict refuses links and anchors that lead nowhere, and pages that no menu names."""
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--quiet", "--config-file", "ops/mkdocs.yml", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "FEDIL_REPOSITORY": "https://example.org/fedil"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_a_page_for_each_document(site: Path) -> None:
    for path in DOCS.glob("*.md"):
        page = (site / path.with_suffix(".html").name).read_text(encoding="utf-8")
        assert "<h1" in page, path


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"?(https?:[^\" >]+)|<link[^>]* rel=\"?stylesheet[^>]*https?:"
    )
    for page in site.glob("*.html"):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page.name


def test_pictures_are_there(site: Path) -> None:
    shown = [
        name
        for page in site.glob("*.html")
        for name in re.findall(r'<img[^>]* src="([^"]+)"', page.read_text(encoding="utf-8"))
    ]
    assert {"pictures/round.svg", "pictures/deployment.svg", "pictures/live-page.png"} <= set(shown)
    assert [name for name in shown if not (site / name).exists()] == []


def test_links_to_files_of_the_repository_lead_to_it(site: Path) -> None:
    page = (site / "deploy.html").read_text(encoding="utf-8")
    assert 'href="https://example.org/fedil/blob/main/ops/deploy/README.md"' in page


def test_python_that_is_documented_has_its_sentences(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    assert "MethodSpec" in page
    assert "write_shards" in page
    assert "Its unlabelled samples as stored" in page  # a field of Activation


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere_in_the_repository(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_a_document_are_ones_that_fedil_takes(document: Path) -> None:
    fedil = make_parser()
    for line in re.findall(r"^\$ fedil (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE):
        fedil.parse_args(shlex.split(re.sub(r" +# .*", "", line)))
