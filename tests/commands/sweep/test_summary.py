"""What a sweep shows while it runs and when it ends: lines, counts, failures, and the tables of its jobs."""

import io
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pe_bench.commands.sweep.jobs import (
    DONE,
    FAILED,
    RUNNING,
    SKIPPED,
    STOPPED,
    JobProgress,
    JobState,
    LaunchedSweep,
)
from pe_bench.commands.sweep.show import SweepSummary, SweepView
from pe_bench.errors import RunError
from pe_bench.system.signals import Stopped


def states(*kinds: str) -> list[JobState]:
    """Jobs of a sweep that nobody ran."""
    return [
        JobState(n, f"seed={n}", kind, text=f"step {n} of 9", share=n / 9, seconds=10.0)
        for n, kind in enumerate(kinds)
    ]


def shown(folder: Path, jobs: int, *written: list[JobState], is_terminal: bool = False) -> str:
    """Return what a view of so many jobs shows, whose states are written one list after another."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=100, highlight=False)
    with SweepView(LaunchedSweep(folder, jobs=jobs), console):
        for jobs_at_once in written:
            for state in jobs_at_once:
                LaunchedSweep(folder).write(state)
            time.sleep(0.4)
    return text.getvalue()


def test_a_terminal_has_a_line_for_each_running_job_and_the_total(tmp_path):
    text = shown(tmp_path, 9, states(DONE, SKIPPED, FAILED, RUNNING), is_terminal=True)
    assert "seed=0: done in 10 s" in text and "seed=2: failed:" in text
    assert "seed=1:" not in text, "it is counted alone"
    assert re.search(r"seed=3\s+━+·+\s+step 3 of 9", text)
    assert "3 of 9 jobs (1 done, 1 skipped, 1 failed, 1 running)" in text


def test_without_a_terminal_a_job_that_works_or_ends_has_a_line_and_one_that_checks_has_none(tmp_path):
    checks = JobState(0, "seed=0")  # it may be done already
    begun = replace(states(RUNNING)[0], share=0.1, has_worked=True)
    halfway, further = replace(begun, share=0.5), replace(begun, share=0.9)  # at the same step
    ended = JobState(0, "seed=0", DONE, seconds=3700.0)
    text = shown(tmp_path, 3, [checks], [begun], [halfway], [further], [ended, *states(DONE, SKIPPED)[1:]])
    assert text.splitlines() == ["seed=0: begins", "seed=0: step 0 of 9", "seed=0: done in 1 h 01 min"]


@pytest.mark.parametrize(
    ("kinds", "jobs", "is_stopped", "line", "raised"),
    [
        ([SKIPPED, SKIPPED], 2, True, "2 jobs, all done already", None),
        ([DONE, SKIPPED, SKIPPED], 3, True, "3 jobs: 1 done, 2 done already", None),
        ([STOPPED], 1, True, "1 job: 0 done, 1 stopped or not started", Stopped),
        ([DONE, STOPPED, RUNNING], 5, True, "5 jobs: 1 done, 4 stopped or not started", Stopped),
        ([DONE, RUNNING], 3, False, "3 jobs: 1 done, 1 failed, 1 stopped or not started", RunError),
    ],
)
def test_a_sweep_counts_its_jobs_and_blames_lost_ones(
    tmp_path, capsys, kinds, jobs, is_stopped, line, raised
):
    summary = SweepSummary(
        LaunchedSweep(tmp_path, jobs=jobs), states(*kinds), "" if is_stopped else "WorkerError: gone"
    )
    if is_stopped:
        summary.sweep.ask_to_stop()
    with nullcontext() if raised is None else pytest.raises(raised):
        summary.end()
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == line
    blamed = ["the launcher ended: WorkerError: gone", "  failed: seed=1: its process died, at step 1 of 9"]
    assert [each.partition(" (")[0] for each in rest] == ([] if is_stopped else blamed)


@pytest.mark.parametrize(
    ("jobs", "tables"),
    [
        ("eval.targets=6 nope a, eval.targets=6 rope a, eval.targets=9 nope b", "nope rope: a, nope: b"),
        # Where rope failed with 6, its 9 belong to nope's all the same.
        ("eval.targets=6 nope a, eval.targets=9 nope b, eval.targets=9 rope b", "nope: a, nope rope: b"),
        ("report.margin=0.01 nope a, report.margin=0.1 nope a", "nope: a, nope: a"),
        ("eval.per_position=true nope a, eval.per_position=false nope a", "nope: a"),  # one run
        ("data=stdlib nope-1 a, data=files nope-2 b", "nope-1 nope-2: ab"),
    ],
)
def test_jobs_that_score_on_other_targets_or_with_another_margin_have_separate_tables(jobs, tables):
    states = []
    for number, (label, run, target_hash) in enumerate(job.split() for job in jobs.split(", ")):
        margin = float(label.partition("margin=")[2] or 0)
        scored = JobState(number, label, DONE, run, target_hashes=[target_hash], keys=[["a row"]])
        states.append(replace(scored, margin=margin))
    texts = []
    for table in SweepSummary(LaunchedSweep(Path()), states).tables:
        texts.append(f"{' '.join(run.name for run in table.runs)}: {''.join(table.target_hashes)}")
    assert texts == tables.split(", ")


def test_a_sweep_says_once_what_the_jobs_cost_that_have_not_ended(tmp_path: Path) -> None:
    first, second = states(DONE, RUNNING)
    first = replace(first, seconds=1.0)
    second = replace(second, expected=130.0, cores=2)
    text = shown(tmp_path, 7, [first], [first, second], [first, replace(second, expected=900.0)])
    assert text.count("about") == 1 and "6 runs, about 13 min on 2 cores" in text


def test_jobs_side_by_side_take_less_time_and_the_line_says_how_many_they_are(tmp_path: Path) -> None:
    jobs = [replace(state, expected=100.0, cores=1) for state in states(RUNNING, RUNNING)]
    assert "6 runs, about 5 min on 1 core each, 2 at a time" in shown(tmp_path, 6, jobs)


def test_the_time_that_a_job_expects_is_in_its_state(tmp_path: Path) -> None:
    sweep = LaunchedSweep(tmp_path, jobs=1)
    progress = JobProgress(sweep, JobState(0, "seed=0"))
    progress.expect(77.0, 2)
    progress.expect(99.0, 2)
    [state] = sweep.states()
    assert (state.expected, state.cores) == (77.0, 2)
