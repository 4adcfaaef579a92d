"""The notice board of one process."""

import threading
import time
from collections.abc import Mapping
from typing import Any


class MemoryBoard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {}
        """topic → name → (time of expiry, facts)"""

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        with self._lock:
            self._topics.setdefault(topic, {})[name] = (time.monotonic() + ttl_seconds, dict(facts))

    def withdraw(self, topic: str, name: str) -> None:
        with self._lock:
            self._topics.get(topic, {}).pop(name, None)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        now = time.monotonic()
        with self._lock:
            live = {name: notice for name, notice in self._topics.get(topic, {}).items() if notice[0] > now}
            self._topics[topic] = live
            return {name: dict(facts) for name, (_, facts) in sorted(live.items())}
