"""Folders of runs that nobody ran, for what reads and shows them."""

import json
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fedil_model.settings import merge
from ops.inspect.report.reading import Run, read_run
from server_worker.run.recipe import make_recipe
from server_worker.watch.events import RoundRecord
from tests.unit.ops.records import make_record, write_history

DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"name": "digits"},
    "split": {"labelled": 50, "clients": 20},
    "network": {"name": "cnn", "width": 4},
}


def make_run_folder(
    folder: Path, rounds: Iterable[RoundRecord] | int = 12, planned: int = 12, **settings: Any
) -> Path:
    folder.mkdir(parents=True)
    recipe = make_recipe(merge(DIGITS | {"rounds": planned}, settings))
    (folder / "recipe.json").write_text(recipe.model_dump_json(), encoding="utf-8")
    records = (
        [make_record(number, planned) for number in range(1, rounds + 1)]
        if isinstance(rounds, int)
        else rounds
    )
    write_history(folder, list(records))
    return folder


def make_run(
    folder: Path, rounds: Iterable[RoundRecord] | int = 12, planned: int = 12, **settings: Any
) -> Run:
    return read_run(make_run_folder(folder, rounds, planned, **settings))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


class Parsed(HTMLParser):
    """What a browser would make of a page, as far as a test wants to know."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._in_style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def references(self) -> list[str]:
        """Everything that could make a browser fetch something."""
        named = ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background")
        return [value or "" for _, attrs in self.tags for name, value in attrs.items() if name in named]
