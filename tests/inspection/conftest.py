"""Commands of `speed` in a model so small that a pass takes no time."""

import pytest
from support.timed import LENGTHS, TINY


@pytest.fixture
def speed(command, folder):
    """Time encodings in a model of two layers, once each."""
    return lambda *arguments: command(
        "speed", *LENGTHS, *(arguments if "--train" in arguments else (*TINY, *arguments))
    )
