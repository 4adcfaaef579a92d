from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.browser.chromium import Chromium, Page, chromium
from tests.services import needed


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(chromium()))


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    with browser.page() as page:
        yield page
