"""Renders the Jinja templates of the report. Every value is escaped unless it is `Markup`."""

import unicodedata
from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from broker_config.process.version import software_version
from server_worker.watch import palette


def render(name: str, **values: object) -> str:
    template = environment().get_template(name)
    return template.render(
        values, palette=Markup(palette.css()), version=software_version(), now=datetime.now(UTC)
    )


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("ops.inspect.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def printable(text: str) -> str:
    """Replaces control characters, changes of the writing direction and unpaired surrogates by spaces."""
    return "".join(" " if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in text)


def brief(text: str, longest: int) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= longest else text[: longest - 1].rstrip(" ,;:") + "…"
