"""The installed Chromium, driven by Playwright."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from ops.local.services import ServiceMissing

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Playwright itself adds --headless, --no-sandbox and the flags against background networking.
_FLAGS = ["--disable-gpu", "--disable-quic", "--disable-sync"]
TIMEOUT_SECONDS = 60.0


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises ServiceMissing."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise ServiceMissing("chromium is not installed. Debian: sudo apt install chromium")
    expect.set_options(timeout=1000 * TIMEOUT_SECONDS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, args=_FLAGS) as browser,
    ):
        yield browser


def new_page(browser: Browser, width: int = 1280, height: int = 900, *, dark: bool = False) -> Page:
    """A page with storage of its own; a context manager that closes it."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(1000 * TIMEOUT_SECONDS)
    return page


def wait_until(page: Page, expression: str, seconds: float = TIMEOUT_SECONDS) -> None:
    """Until a JavaScript expression is true. Page.wait_for_function needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never true: {expression}; logged: {complaints(page)}"
        page.wait_for_timeout(50)


def complaints(page: Page) -> list[str]:
    """Script errors, console warnings, content-policy violations and failed requests."""
    logged = [
        f"{message.text} ({message.location['url']})"
        for message in page.console_messages(filter="all")
        if message.type in ("error", "warning", "assert")
    ]
    return [*map(str, page.page_errors(filter="all")), *logged]
