"""Random streams that are functions of what they are for, so that none disturbs another.

A stream for each purpose and step, instead of one generator whose state goes on: a resumed run
draws what an unbroken one would have drawn, and a change of encoding moves no other stream.
"""

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, such as ("ids", step)."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
