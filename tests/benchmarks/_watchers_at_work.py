"""A browser with the live page and a Prometheus that scrapes every five seconds, as one process: `… URL`.

It asks until it is killed. Prometheus finds the workers as it would: the server's /targets tells."""

import http.client
import json
import sys
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

EVERY_SECONDS = 1.0
"""The page does so by itself."""
SCRAPED_EVERY = 5
"""Turns: `fedil cluster` scrapes every 5 seconds, and what `fedil monitoring` writes every 15."""


class Connection:
    """Kept open, as browsers and Prometheus do."""

    def __init__(self, place: str) -> None:
        self._http = http.client.HTTPConnection(place, timeout=30)

    def ask(self, path: str) -> bytes:
        try:
            self._http.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = self._http.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()  # it may come back
            return b""
        if answer.headers["Content-Encoding"] == "gzip":
            import gzip

            return gzip.decompress(body)
        return body


class Page:
    def __init__(self, connection: Connection) -> None:
        self._connection, self._known = connection, dict[str, Any]()
        self._shown = 0

    def ask(self) -> None:
        body = self._connection.ask(f"/api/state?{urlencode(self._known)}")
        if not body:
            return
        told = json.loads(body)
        rounds, notes = told["rounds"], told["notes"]
        after = rounds[-1]["round"] if rounds else self._known.get("after", 0)
        self._known = {
            "life": told["life"],
            "after": after,
            "about": told.get("abouts", self._known.get("about", 0)),
            "fleet": told.get("surveys", self._known.get("fleet", 0)),
            "note": notes[-1][0] if notes else self._known.get("note", 0),
        }
        if after != self._shown:
            self._connection.ask(f"/api/round?number={after}")
            self._shown = after


def main(url: str) -> None:
    place = urlsplit(url).netloc
    page, server = Page(Connection(place)), Connection(place)
    workers: dict[str, Connection] = {}
    turn = 0
    while True:
        page.ask()
        if turn % SCRAPED_EVERY == 0:
            server.ask("/metrics")
            found = json.loads(server.ask("/targets") or b"[]")
            targets = [target for group in found for target in group["targets"]]
            workers = {target: workers.get(target) or Connection(target) for target in targets}
            for worker in workers.values():
                worker.ask("/metrics")
        turn += 1
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
