"""What a command costs: one sentence, from its first work."""

import pytest

from pe_bench.system import cost
from pe_bench.system.cost import Pace, cost_text, count, expect, print_cost_once, report_cost_to


def one_run(runs: int) -> str:
    assert runs == 1
    return "1 run"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (21, "30 s"),
        (89, "90 s"),
        (91, "2 min"),
        (14 * 60 + 10, "14 min"),
        (2 * 3_600 + 8 * 60, "2 h 10 min"),
        (3_600 * 5, "5 h"),
    ],
)
def test_a_time_is_said_as_exactly_as_an_estimate_is(seconds: float, said: str) -> None:
    assert cost_text("6 runs", seconds, 2) == f"6 runs, about {said} on 2 cores"


def test_one_core_and_a_gpu_are_named() -> None:
    assert cost_text("1 run", 60, 1).endswith("on 1 core") and cost_text("1 run", 60, 0).endswith(
        "on the GPU"
    )


def test_the_first_piece_says_what_all_that_are_left_cost_and_no_other_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with print_cost_once(lambda left: f"scoring {count(left, 'run')}", 4) as whole:
        whole.ended = 1  # it was done before, and told no time
        with print_cost_once(one_run):
            expect(40, 2)
        expect(400, 2)
    assert capsys.readouterr().err == "scoring 3 runs, about 2 min on 2 cores\n"


def test_the_last_piece_that_is_left_is_said_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with print_cost_once(lambda left: f"{count(left, 'run')} of one seed", 2) as whole:
        whole.ended = 1
        expect(40, 1)
    assert capsys.readouterr().err == "1 run of one seed, about 40 s on 1 core\n"


def test_what_ends_soon_and_what_nobody_listens_to_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    with print_cost_once(one_run):
        expect(3, 1)
    expect(1_000, 1)
    assert capsys.readouterr().err == ""


def test_a_listener_hears_what_the_work_inside_expects() -> None:
    heard: list[tuple[float, int]] = []
    with report_cost_to(lambda seconds, cores: heard.append((seconds, cores))), print_cost_once(one_run):
        expect(50, 2)
    assert heard == [(50, 2)]


def test_a_pace_is_known_once_and_without_the_work_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.0, 104.0, 110.0])
    monkeypatch.setattr(cost.time, "monotonic", lambda: next(times))
    pace = Pace()
    assert [pace.seconds_per_unit(done) for done in (1, 3, 5, 9)] == [None, None, 1.0, None]
