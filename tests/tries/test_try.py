"""The `try` command: three lines, an exit code, and a count of tries."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.commands import TRIED, Command, Outcome

import pe_bench
from pe_bench.runs.commands import VARIABLE, recorded_commands
from pe_bench.tries.trying import Try, _keep, overrides_in

SHORT = ("--minutes", "0.001")  # one seed


@pytest.fixture
def tried(command: Command, folder: Path) -> Callable[..., Outcome]:
    """Try on the tiny corpus."""
    text = f"data.path={folder / 'corpus'}"
    return lambda *arguments: command("try", *arguments, *TRIED, text, "--lengths", "16,32")


def test_a_change_is_named_with_its_options_and_modifiers() -> None:
    for text, overrides in (
        ("rope base=500000", ["encoding=rope", "encoding.base=500000"]),
        ("my.py:RootBias strength=[1, 2]", ["encoding=my.py:RootBias", "encoding.strength=[1, 2]"]),
        ("rope+logn modifier.logn.length=8", ["encoding=rope", "modifier=[logn]", "modifier.logn.length=8"]),
    ):
        assert overrides_in(text) == overrides


def test_tries_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    change = partial(Try, "try", 0, "rope base=2", "rope")
    tries = [change(f"rope-{n}", "rope-0", 16, [16, 32], "") for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        numbered = [*pool.map(partial(_keep, tmp_path), tries)]
    assert sorted(one.number for one in numbered) == [*range(1, 41)]


def test_a_baseline_without_a_number_is_no_loss_of_the_change(tried) -> None:
    outcome = tried("nope", "--against", "learned", *SHORT)
    assert outcome.code == 1 and "the baseline learned-s0-" in outcome.line, outcome.err
    assert "has no number at 32 tokens" in outcome.line


def test_a_program_s_try_keeps_with_each_run_the_command_that_trains_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(folder)
    pe_bench.try_change("nope", *TRIED, "data.path=corpus", minutes=0.001, lengths=[16, 32])
    for run in (folder / "results" / "runs").iterdir():
        assert recorded_commands(run)[0].startswith(f"pe-bench train encoding={run.name.partition('-')[0]} ")


def test_a_try_ends_with_three_lines_and_the_code_of_its_answer(
    tried, command: Command, folder: Path
) -> None:
    results = folder / "work" / "results"
    assert tried("rope").line == "pe-bench: rope is compared with itself: name another --against"
    assert not (results / "tries.json").exists()
    first = tried("nope", *SHORT)
    assert first.code == 4, first.err
    assert first.out.startswith("nope against rope: unclear, after 1 seed (try 1 against it)\n")
    assert "at 16, trained" in first.out and "at 32, longest" in first.out and "works to" in first.out
    file = results / "tries.json"
    file.write_text(file.read_text().replace('"seeds": 1', '"seeds": 2'))  # as one with more time would
    again = tried("nope", *SHORT)
    assert "after 2 seeds (try 1 against it)" in again.out, "the same change is the same try, with its seeds"
    assert "(try 2 against it)" in tried("rope base=20", *SHORT).out
    confirmed = tried("nope", *SHORT, "--confirm")
    assert "(confirm 1 against it)" in confirmed.out and "when it was tried" in confirmed.out

    tries = [(each["kind"], each["number"], each["seeds"]) for each in json.loads(file.read_text())]
    assert tries == [("try", 1, 2), ("try", 2, 1), ("confirm", 1, 1)]
    texts = {run.name: (run / "config.yaml").read_text() for run in (results / "runs").iterdir()}
    halves = {("-s1000-" in name, "half: second" in text) for name, text in texts.items()}
    assert halves == {(False, False), (True, True)}, "what is confirmed shares no seed and no document"
    assert "confirm 1" in command("try", "--list").out
    tables = json.loads(command("report", "--all", "--json").out)["tables"]
    seeds = {t["key"]["half"]: {line["label"]: line["seeds"] for line in t["lines"]} for t in tables}
    assert seeds == {"first": {"rope": 2, "nope": 2, "rope base=20.0": 1}, "second": {"rope": 1, "nope": 1}}
