"""A real Chromium without a window, spoken to over a pipe in its DevTools protocol: no driver, no websocket."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ops.local.services import ServiceMissing

SOON = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class PageFailed(AssertionError):
    pass


class Chromium:
    """One process; each page has storage of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, back: int) -> None:
        self._process, self._to = process, to
        self._numbers = itertools.count(1)
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(back,), name="chromium-pipe", daemon=True)
        self._reader.start()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number, answer = next(self._numbers), SimpleQueue[dict[str, Any]]()
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        with self._lock:
            self._answers[number] = answer
            os.write(self._to, json.dumps(message).encode() + b"\0")
        try:
            found = answer.get(timeout=SOON)
        except Empty:
            raise PageFailed(f"chromium does not answer {method}") from None
        if "error" in found:
            raise PageFailed(f"{method}: {found['error']['message']}")
        result = found["result"]
        assert isinstance(result, dict)
        return result

    def _read(self, back: int) -> None:
        buffered = b""
        with open(back, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                *messages, buffered = (buffered + chunk).split(b"\0")
                for message in messages:
                    self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            with self._lock:
                answer = self._answers.pop(message["id"], None)
            if answer is not None:
                answer.put(message)
        elif listener := self._listeners.get(message.get("sessionId", "")):
            listener(message["method"], message["params"])

    @contextmanager
    def page(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator["Page"]:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self._listeners[session] = page.hear
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            page.resize(width, height)
            page.colours("dark" if dark else "light")
            yield page
        finally:
            self._listeners.pop(session, None)
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        os.close(self._to)
        try:
            self._process.wait(SOON)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()


class Page:
    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        """Errors of scripts, broken content rules, files that did not come"""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def hear(self, event: str, params: Mapping[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageFailed(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = SOON) -> Any:
        """Until it is true."""
        deadline = time.monotonic() + seconds
        while not (found := self._try(expression)):
            if time.monotonic() > deadline:
                raise PageFailed(f"never came true: {expression}; complaints: {self.complaints}")
            time.sleep(0.05)
        return found

    def _try(self, expression: str) -> Any:
        try:
            return self.evaluate(expression)
        except PageFailed as failed:
            # Between two pages there is nothing to ask.
            if "context" not in str(failed).lower():
                raise
            return None

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def colours(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def mouse(self, kind: str, x: float, y: float) -> None:
        """mouseMoved, mousePressed or mouseReleased"""
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Raises ServiceMissing."""
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        raise ServiceMissing("chromium is not installed. Debian: sudo apt install chromium")
    with ExitStack() as stack:
        home = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="fedil-chromium-", ignore_cleanup_errors=True)
        )
        hears, to = os.pipe()
        back, says = os.pipe()
        # It reads at descriptor 3 and writes at 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{hears} 4>&{says}', "chromium"]
        process = subprocess.Popen(
            [*shell, program, *_FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(hears, says),
            env={**os.environ, "HOME": home},
        )
        os.close(hears)
        os.close(says)
        browser = Chromium(process, to, back)
        stack.callback(browser.close)
        yield browser
