"""`python -m tests.browser.screenshot OUT.png`: trains the digits recipe on this machine and takes a
picture of its live page during the run, for the README."""

import argparse
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from broker_config.process.addresses import LOOPBACK, WebAddress
from ops.cli.recipe_files import read_recipe
from ops.inspect.summary import Summary
from ops.local.simulate import simulate
from tests.browser.checks import ROUNDS_DRAWN, open_page
from tests.browser.chromium import chromium, new_page, wait_until
from tests.federation import Diary

_WATCH = "watch it at "
_TIMEOUT_SECONDS = 600.0


def main() -> None:
    options = _options()
    recipe = read_recipe(options.recipe, options.set)
    diary, stop = Diary(), threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="fedil-") as folder,
        ThreadPoolExecutor(1) as thread,
        chromium() as browser,
        new_page(browser, options.width, options.height, dark=options.dark) as page,
    ):
        run = thread.submit(
            simulate,
            recipe,
            Path(folder),
            workers=2,
            device="cpu",
            resume=False,
            watcher=diary,
            stop=stop,
            web=WebAddress(LOOPBACK, 0),
        )
        try:
            open_page(page, _address(diary, run), 1)
            wait_until(page, f"{ROUNDS_DRAWN} >= {options.rounds or recipe.rounds - 5}", _TIMEOUT_SECONDS)
            page.screenshot(path=options.picture, full_page=options.whole)
        finally:
            stop.set()
    print(f"{options.picture}: {options.width} pixels wide")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshot", description=__doc__)
    parser.add_argument("picture", type=Path, metavar="OUT.png")
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, help="take it after so many; all but five if not given")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1040)
    parser.add_argument("--whole", action="store_true", help="the whole page, however long")
    parser.add_argument("--dark", action="store_true")
    return parser.parse_args()


def _address(diary: Diary, run: "Future[Summary]") -> str:
    while not run.done():
        for note in diary.notes:
            if note.startswith(_WATCH):
                return note.removeprefix(_WATCH)
        time.sleep(0.05)
    raise SystemExit(f"the run ended before its page was served: {run.exception()}")


if __name__ == "__main__":
    main()
