from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import chromium, new_page
from tests.services import needed


# Not for the session: a thread can run one Playwright, and other tests start their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(chromium()))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with new_page(browser) as page:
        yield page
