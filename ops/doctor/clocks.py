"""Clocks of brokers against that of this machine: certificates, metrics and logs are compared by them."""

from collections.abc import Iterator

from ops.doctor.finding import Finding

_MOST_SECONDS = 10.0


def check_clock(where: str, ahead_seconds: float | None) -> Iterator[Finding]:
    """`ahead_seconds`: None if the broker did not tell its time"""
    if ahead_seconds is None:
        yield Finding("unknown", f"{where} does not tell its time")
    elif abs(ahead_seconds) > _MOST_SECONDS:
        side = "ahead of" if ahead_seconds > 0 else "behind"
        yield Finding(
            "wrong",
            f"{where}: its clock is {abs(ahead_seconds):.0f} s {side} this machine's: timedatectl set-ntp true, on the "
            "one that is wrong",
        )
    else:
        yield Finding("ok", f"{where} has the time of this machine")
