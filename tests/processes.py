"""Which processes live, from /proc: to see that nothing is left behind."""

from pathlib import Path


def family(ancestor: int) -> set[int]:
    """All living descendants of a process, as far as their parents live too."""
    parents = {pid: parent for pid, (parent, _) in _all().items()}
    found, generation = set[int](), {ancestor}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found |= generation
    return found


def alive(pids: set[int]) -> set[int]:
    """Without those that are dead and only wait to be counted."""
    return {pid for pid, (_, state) in _all().items() if pid in pids and state not in "ZX"}


def _all() -> dict[int, tuple[int, str]]:
    """Parent and state of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        found[int(stat.parent.name)] = (int(parent), state)
    return found
