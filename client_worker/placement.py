"""Which device each of a machine's worker processes trains on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """The `number`-th of `processes` workers that were started together."""

    number: int = 0
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.processes}"


def place(asked: str, slot: Slot, gpus: int) -> tuple[str, int]:
    """The device, and how many of these processes share it. `auto` and `cuda` deal the processes out over the visible
    GPUs; a device with a name is shared by all."""
    if asked in ("auto", "cuda") and gpus:
        gpu = slot.number % gpus
        return f"cuda:{gpu}", len(range(gpu, slot.processes, gpus))
    return "cpu" if asked == "auto" else asked, slot.processes
