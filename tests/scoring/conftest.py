"""Scoring without the probe for encodings that read later tokens."""

import pytest


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the probe, so that an encoding that records its calls is called for scores alone."""
    monkeypatch.setattr("pe_bench.scoring.scorer.find_lookahead", lambda model, length, first: "")
