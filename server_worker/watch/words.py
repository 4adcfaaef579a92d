"""What terminal, log, live page, board and report say of a run: each of them the same words."""

PHASES = {
    "load_data": "reading the data",
    "pretrain": "server learns from the labels first",
    "baseline": "server-only training, for comparison",
    "server_step": "server learns from the labels",
    "broadcast": "models go out",
    "wait": "clients learn",
    "close": "round closes",
}
"""By the name that Watcher.phase is told; those before the first and after the last round come first."""
OUTSIDE_ROUNDS = frozenset({"load_data", "pretrain", "baseline"})


def phase_words(name: str) -> str:
    return PHASES.get(name, name.replace("_", " "))


def epoch_words(done: int, total: int, left_seconds: float) -> str:
    left = f", about {duration(left_seconds)} left" if done < total else ""
    return f"epoch {done} of {total}{left}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
