"""Every random draw of a run is named: (run seed, what for, round, client …) → one 63-bit seed."""

import hashlib


def derive_seed(*names: int | str) -> int:
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
