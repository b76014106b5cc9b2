"""The lines that show the jobs of a running sweep."""

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console
from support.sweeps import states, summary_of

from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, JobState, SweepFolder
from pe_bench.sweep.summary import print_summary
from pe_bench.sweep.view import View


def test_the_view_shows_a_line_for_each_running_job_and_the_total(tmp_path):
    folder, shown = SweepFolder(tmp_path), io.StringIO()
    for state in states(DONE, SKIPPED, FAILED, RUNNING, RUNNING):
        folder.write(state)
    with View(folder, 9, Console(file=shown, force_terminal=True, width=100, highlight=False)):
        time.sleep(0.5)
    text = shown.getvalue()
    assert "seed=0: done in 10 s" in text and "seed=2: failed:" in text
    assert "seed=1:" not in text, "it is counted alone"
    assert re.search(r"seed=3\s+━+·+\s+step 3 of 9", text) and re.search(r"seed=4\s+━+·+\s+step 4 of 9", text)
    assert re.search(r"3 of 9 jobs \(1 done, 1 skipped, 1 failed, 2 running\)  about (29|30) s left", text)


def test_the_view_prints_plain_lines_without_a_terminal(tmp_path):
    folder, shown = SweepFolder(tmp_path), io.StringIO()
    with View(folder, 2, Console(file=shown)):
        folder.write(replace(states(RUNNING)[0], share=0.1))
        time.sleep(0.5)
        folder.write(JobState(0, "seed=0", "", DONE, seconds=3700.0))
    lines = shown.getvalue().splitlines()
    assert lines == ["seed=0: begins", "seed=0: done in 1 h 01 min"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_sweep_with_nothing_to_do_prints_one_line_before_its_table(tmp_path, capsys, is_terminal):
    folder, shown = SweepFolder(tmp_path), io.StringIO()
    begun = JobState(0, "seed=0", "", started=time.time())
    with View(folder, 2, Console(file=shown, force_terminal=is_terminal, width=100, highlight=False)):
        folder.write(begun)
        time.sleep(0.5)
        for state in states(SKIPPED, SKIPPED):
            folder.write(state)
    told = shown.getvalue()
    assert told.endswith("2 jobs, all done already\n") and told.count("done already") == 1
    assert "begins" not in told and "seed=0:" not in told
    assert is_terminal or told.count("\n") == 1
    print_summary(summary_of(tmp_path, [SKIPPED, SKIPPED], 2))
    assert capsys.readouterr().err == "", "the view has printed it"


def test_a_job_that_takes_long_to_check_whether_it_is_done_is_shown_as_begun(tmp_path):
    folder, shown = SweepFolder(tmp_path), io.StringIO()
    folder.write(JobState(0, "seed=0", "", started=time.time() - 60))
    with View(folder, 2, Console(file=shown)):
        time.sleep(0.3)
    assert shown.getvalue() == "seed=0: begins\n"
