"""What a sweep prints when it ends: counts, failures, and the tables of its jobs."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.sweeps import summary_of

from pe_bench.sweep.jobs import DONE, RUNNING, SKIPPED, STOPPED, JobState
from pe_bench.sweep.summary import Summary, print_summary


def test_the_summary_counts_a_job_without_a_final_state_as_failed(tmp_path, capsys):
    print_summary(summary_of(tmp_path, [DONE, RUNNING], 3, problem="TerminatedWorkerError: a worker"))
    told = capsys.readouterr().err
    assert "3 jobs: 1 done, 1 failed, 1 stopped or not started" in told
    assert "the launcher ended: TerminatedWorkerError: a worker" in told
    assert "to retry it: pe-bench train seed=1" in told


@pytest.mark.parametrize(
    ("kinds", "line"),
    [
        ([DONE, SKIPPED, SKIPPED], "3 jobs: 1 done, 2 done already\n"),
        ([SKIPPED, STOPPED], "2 jobs: 1 done already, 1 stopped or not started\n"),
        ([STOPPED], "1 job: 0 done, 1 stopped or not started\n"),
    ],
)
def test_the_summary_counts_jobs_that_were_done_before(tmp_path, capsys, kinds, line):
    print_summary(summary_of(tmp_path, kinds, len(kinds), stopped=True))
    assert capsys.readouterr().err == line


def scored(*jobs: tuple[str, str, str], margin: float = 0.01) -> list[JobState]:
    """Return finished jobs, each from its label, its run and a letter for each set of targets."""
    return [
        JobState(
            number,
            label,
            "",
            DONE,
            run=f"results/runs/{run}",
            has_rows=True,
            target_hashes=list(targets),
            margin=margin,
        )
        for number, (label, run, targets) in enumerate(jobs)
    ]


def tables_of(finished: list[JobState]) -> list[tuple[list[str], str, str]]:
    tables = Summary(Path(), finished, len(finished), "", False).tables
    return [([run.name for run in table.runs], "".join(table.target_hashes), table.words) for table in tables]


def test_jobs_that_score_one_run_on_other_targets_have_separate_named_tables():
    jobs = scored(
        ("encoding=nope eval.targets=6", "nope", "a"),
        ("encoding=nope eval.targets=9", "nope", "b"),
        ("encoding=rope eval.targets=6", "rope", "a"),
        ("encoding=rope eval.targets=9", "rope", "b"),
    )
    both = ["nope", "rope"]
    assert tables_of(jobs) == [(both, "a", "eval.targets=6"), (both, "b", "eval.targets=9")]
    # Where rope failed with 6, its 9 belong to nope's all the same.
    found = tables_of([*jobs[:2], jobs[3]])
    assert [(runs, targets) for runs, targets, _ in found] == [(["nope"], "a"), (both, "b")]


def test_protocols_that_share_their_targets_are_named_together():
    protocols = ("paired", "a"), ("nonoverlapping", "b"), ("sliding", "b")
    jobs = [
        (f"encoding={name} eval.protocol={protocol}", name, targets)
        for name in ("nope", "rope")
        for protocol, targets in protocols
    ]
    arguments = [arguments for _, _, arguments in tables_of(scored(*jobs))]
    assert arguments == ["eval.protocol=paired", "eval.protocol=nonoverlapping, eval.protocol=sliding"]


def test_jobs_that_fit_into_one_table_share_it_without_a_name():
    longer = scored(("eval.lengths=[16]", "nope", "a"), ("eval.lengths=[16,128]", "nope", "ab"))
    assert tables_of(longer) == [(["nope"], "ab", "")]
    texts = scored(("data=stdlib", "nope-1", "a"), ("data=files", "nope-2", "b"))
    assert tables_of(texts) == [(["nope-1", "nope-2"], "ab", "")]
    assert tables_of([]) == []


def test_two_margins_of_one_run_have_separate_tables():
    coarse = [replace(state, number=1) for state in scored(("report.margin=0.1", "nope", "a"), margin=0.1)]
    jobs = [*scored(("report.margin=0.01", "nope", "a")), *coarse]
    assert [table.margin for table in Summary(Path(), jobs, 2, "", False).tables] == [0.01, 0.1]


def test_the_summary_of_a_stopped_sweep_blames_no_job(tmp_path, capsys):
    summary = summary_of(tmp_path, [DONE, STOPPED, RUNNING], 5, stopped=True)
    print_summary(summary)
    assert capsys.readouterr().err == "5 jobs: 1 done, 4 stopped or not started\n"
    assert not summary.is_done and not summary.failed
