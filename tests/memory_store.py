"""Memory stores for tests that need no directory of their own."""

import shutil
import tempfile
import weakref
from pathlib import Path

from broker_config.stores.memory.store import MemoryStore


def new_store() -> MemoryStore:
    """Its directory is deleted with it."""
    directory = Path(tempfile.mkdtemp(prefix="fedil-"))
    store = MemoryStore(directory)
    weakref.finalize(store, shutil.rmtree, directory, ignore_errors=True)
    return store
