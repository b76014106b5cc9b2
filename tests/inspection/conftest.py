"""Commands of `speed` in a model so small that a pass takes no time."""

import pytest
from support.timed import LENGTHS, TINY

from pe_bench.inspection.speed import limits


@pytest.fixture
def speed(command, folder, monkeypatch):
    """Time encodings in a model of two layers, once each."""
    monkeypatch.setitem(limits.MATRIX_SIDES, "cpu", (64,))
    monkeypatch.setitem(limits.COPIED_BYTES, "cpu", 2**16)
    return lambda *arguments: command(
        "speed", *LENGTHS, *(arguments if "--train" in arguments else (*TINY, *arguments))
    )
