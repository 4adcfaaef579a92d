"""Code that a run's folder names and that must not run unless it is allowed."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_MODULE = "foreign_code_of_a_run"


@dataclass(frozen=True)
class Trap:
    """A module that can be imported and leaves a file behind when it is"""

    mark: Path
    name: str = f"{_MODULE}:make"

    @property
    def ran(self) -> bool:
        return self.mark.exists()


def foreign_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    mark = folder / "imported"
    body = f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef make(*_, **__): raise ValueError('foreign')\n"
    (folder / f"{_MODULE}.py").write_text(body, "utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, _MODULE, raising=False)
    return Trap(mark)
