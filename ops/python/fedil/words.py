"""Errors tell of the command line's options; a person who calls a function is told of its arguments."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from broker_config.protocol.errors import FedILError
from fedil_model.errors import LearningError

_ARGUMENTS = {
    r"--resume\b": "resume=True",
    r"--overwrite\b": "overwrite=True",
    r"--rounds (\d+)": r"rounds=\1",
    r"--run-dir\b": "run_dir",
    r"--plugin (\S+)": r"plugins=['\1']",
    r"--out\b": "path",
}


@contextmanager
def arguments_instead_of_options() -> Iterator[None]:
    try:
        yield
    except (FedILError, LearningError) as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    for option, argument in _ARGUMENTS.items():
        text = re.sub(option, argument, text)
    return text
