"""What a sweep shows while it runs and when it ends: lines, counts, failures, and the tables of its jobs."""

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.sweeps import states, summary_of

from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState, SweepFolder
from pe_bench.sweep.show import Summary, View, print_summary


def shown(folder: Path, jobs: int, *written: list[JobState], is_terminal: bool = False) -> str:
    """Return what a view of so many jobs shows, whose states are written one list after another."""
    text = io.StringIO()
    with View(
        SweepFolder(folder), jobs, Console(file=text, force_terminal=is_terminal, width=100, highlight=False)
    ):
        for jobs_at_once in written:
            for state in jobs_at_once:
                SweepFolder(folder).write(state)
            time.sleep(0.4)
    return text.getvalue()


def test_a_terminal_has_a_line_for_each_running_job_and_the_total(tmp_path):
    text = shown(tmp_path, 9, states(DONE, SKIPPED, FAILED, RUNNING, RUNNING), is_terminal=True)
    assert "seed=0: done in 10 s" in text and "seed=2: failed:" in text
    assert "seed=1:" not in text, "it is counted alone"
    assert re.search(r"seed=3\s+━+·+\s+step 3 of 9", text) and re.search(r"seed=4\s+━+·+\s+step 4 of 9", text)
    assert "3 of 9 jobs (1 done, 1 skipped, 1 failed, 2 running)" in text


def test_without_a_terminal_a_job_that_works_or_ends_has_a_line_and_one_that_checks_has_none(tmp_path):
    checks = JobState(0, "seed=0", "", started=time.time() - 60)  # it may turn out to be done already
    begun = replace(states(RUNNING)[0], share=0.1, has_worked=True)
    ended = JobState(0, "seed=0", "", DONE, seconds=3700.0)
    text = shown(tmp_path, 3, [checks], [begun], [ended, *states(DONE, SKIPPED)[1:]])
    assert text.splitlines() == ["seed=0: begins", "seed=0: done in 1 h 01 min"]


def test_the_summary_counts_a_job_without_a_final_state_as_failed(tmp_path, capsys):
    print_summary(summary_of(tmp_path, [DONE, RUNNING], 3, problem="TerminatedWorkerError: a worker"))
    told = capsys.readouterr().err
    assert "3 jobs: 1 done, 1 failed, 1 stopped or not started" in told
    assert "the launcher ended: TerminatedWorkerError: a worker" in told
    assert "to retry it: pe-bench train seed=1" in told


@pytest.mark.parametrize(
    ("kinds", "jobs", "line"),
    [
        ([SKIPPED, SKIPPED], 2, "2 jobs, all done already\n"),
        ([DONE, SKIPPED, SKIPPED], 3, "3 jobs: 1 done, 2 done already\n"),
        ([SKIPPED, STOPPED], 2, "2 jobs: 1 done already, 1 stopped or not started\n"),
        ([STOPPED], 1, "1 job: 0 done, 1 stopped or not started\n"),
        ([DONE, STOPPED, RUNNING], 5, "5 jobs: 1 done, 4 stopped or not started\n"),
    ],
)
def test_the_summary_of_a_stopped_sweep_counts_its_jobs_and_blames_none(tmp_path, capsys, kinds, jobs, line):
    summary = summary_of(tmp_path, kinds, jobs, stopped=True)
    print_summary(summary)
    assert capsys.readouterr().err == line and not summary.failed
    assert summary.is_done == (kinds.count(STOPPED) == 0)


def tables_of(*jobs: tuple[str, str, str], margins: tuple[float, ...] = ()) -> list[tuple[str, str, str]]:
    """Return runs, targets and words of the tables of jobs: label, run, a letter for each set."""
    finished = [
        JobState(
            number,
            label,
            "",
            DONE,
            run=f"results/runs/{run}",
            keys=[["a row"]],
            target_hashes=list(targets),
            margin=margins[number] if margins else 0.01,
        )
        for number, (label, run, targets) in enumerate(jobs)
    ]
    tables = Summary(Path(), finished, len(finished), "", False).tables
    return [
        (" ".join(run.name for run in table.runs), "".join(table.target_hashes), table.words)
        for table in tables
    ]


def test_jobs_that_score_one_run_on_other_targets_have_separate_named_tables():
    jobs = [
        (f"encoding={name} eval.targets={targets}", name, letter)
        for name in ("nope", "rope")
        for targets, letter in ((6, "a"), (9, "b"))
    ]
    first, second = tables_of(*jobs)
    assert first == ("nope rope", "a", "eval.targets=6") and second == ("nope rope", "b", "eval.targets=9")
    # Where rope failed with 6, its 9 belong to nope's all the same.
    assert [table[:2] for table in tables_of(*jobs[:2], jobs[3])] == [("nope", "a"), ("nope rope", "b")]
    protocols = [
        (f"encoding={name} eval.protocol={protocol}", name, letter)
        for name in ("nope", "rope")
        for protocol, letter in (("paired", "a"), ("nonoverlapping", "b"), ("sliding", "b"))
    ]
    words = [words for _, _, words in tables_of(*protocols)]
    assert words == ["eval.protocol=paired", "eval.protocol=nonoverlapping, eval.protocol=sliding"]
    two = ("report.margin=0.01", "nope", "a"), ("report.margin=0.1", "nope", "a")
    assert len(tables_of(*two, margins=(0.01, 0.1))) == 2


def test_jobs_that_fit_into_one_table_share_it_without_a_name():
    assert tables_of(("eval.lengths=[16]", "nope", "a")) == [("nope", "a", "")]
    texts = ("data=stdlib", "nope-1", "a"), ("data=files", "nope-2", "b")
    assert tables_of(*texts) == [("nope-1 nope-2", "ab", "")]
    assert tables_of() == []
