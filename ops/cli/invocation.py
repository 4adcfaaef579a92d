"""How the person called us, so that what we tell them to run next works when it is pasted."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

STARTED_AS = "FEDIL_STARTED_AS"
"""For a process that a command starts: what the person has typed, whose view it is"""


def shell_line(*words: str | Path) -> str:
    """`fedil` as this process was started, followed by the words, quoted for a shell. People will read it, and so
    may others: passwords are left out."""
    return shlex.join([*program(), *(without_password(str(word)) for word in words)])


def without_password(word: str) -> str:
    """`--store=redis://user:secret@host?password=secret` → `--store=redis://user:PASSWORD@host?password=PASSWORD`"""
    # To the last @, because a password that should have been quoted may hold one, or a slash.
    word = re.sub(r"(://[^:/?#@]*):.*@", r"\1:PASSWORD@", word, flags=re.DOTALL)
    return re.sub(r"([?&]\w*password)=[^&#]*", r"\1=PASSWORD", word, flags=re.IGNORECASE)


def program() -> list[str]:
    started_as = Path(os.environ.get(STARTED_AS) or sys.argv[0])
    if started_as.name != "fedil":
        return [brief_path(Path(sys.executable)), "-m", "ops.cli"]
    on_path = shutil.which("fedil")
    if on_path is not None and Path(on_path).absolute() == started_as.absolute():
        return ["fedil"]
    return [brief_path(started_as)]


def brief_path(path: Path) -> str:
    """Relative to where the person stands when that is inside, else absolute; without following links."""
    absolute, here = os.path.abspath(path), os.getcwd()
    return os.path.relpath(absolute, here) if absolute.startswith(here.rstrip(os.sep) + os.sep) else absolute


def resume_words(argv: Sequence[str]) -> list[str]:
    """The same command, going on instead of starting."""
    return [*(word for word in argv if word not in {"--overwrite", "--resume"}), "--resume"]
