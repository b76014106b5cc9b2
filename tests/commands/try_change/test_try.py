"""The `try` command: three lines, an exit code, and a count of tries."""

import json
import math
import re
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest
from filelock import FileLock
from support.commands import LEARNED, TRIED, Command, Outcome, stop_before
from support.results import ROW
from support.shown import ROOT_BIAS
from tokenizers import Tokenizer, normalizers

import pe_bench
from pe_bench.commands.evaluate import Run
from pe_bench.commands.try_change import trying
from pe_bench.commands.try_change.sequential import look
from pe_bench.commands.try_change.trying import Try, _store_try, read_tries
from pe_bench.config.arguments import overrides_in
from pe_bench.config.compose import compose_config
from pe_bench.data.tokenizer import write_byte_tokenizer
from pe_bench.errors import RunError
from pe_bench.report.records import BreakPoint
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import read_rows
from pe_bench.runs.typed import COMMAND_VARIABLE, recorded_commands
from pe_bench.system.terminal import say
from pe_bench.system.version import own_version

SHORT = ("--minutes", "0.001")  # one seed


@pytest.fixture
def tried(command: Command, folder: Path) -> Callable[..., Outcome]:
    """Try on the tiny corpus."""
    text = f"data.path={folder / 'corpus'}"
    usual = (*TRIED, text, "--lengths", "16,32")
    return lambda change, *arguments: command("try", change, *usual, *arguments)


def test_a_change_is_named_with_its_options_and_modifiers() -> None:
    for text, overrides in (
        ("rope base=500000", ["encoding=rope", "encoding.base=500000"]),
        ("my.py:RootBias strength=[1, 2]", ["encoding=my.py:RootBias", "encoding.strength=[1, 2]"]),
        ("rope+logn modifier.logn.length=8", ["encoding=rope", "modifier=[logn]", "modifier.logn.length=8"]),
    ):
        assert overrides_in(text) == overrides


def test_tries_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    change = partial(Try, "try", 0, "rope base=2", "rope")
    tries = [change(f"rope-{n}", "rope-0", 16, [16, 32], "", evaluation="1a") for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        numbered = [*pool.map(partial(_store_try, tmp_path), tries)]
    assert sorted(one.number for one in numbered) == [*range(1, 41)]


def test_a_baseline_without_a_number_is_no_loss_of_the_change(tried) -> None:
    outcome = tried("nope", "--against", "learned", *SHORT)
    assert outcome.code == 1 and "the baseline learned-s0-" in outcome.line, outcome.err
    assert "has no number at 32 tokens" in outcome.line


@pytest.mark.parametrize("level", [math.inf, math.nan])
def test_a_baseline_with_an_infinite_level_is_no_loss_of_the_change(tmp_path: Path, level: float) -> None:
    infinite = replace(ROW, nll=level, bits_per_byte=level)
    baseline, change = Run(tmp_path / "a", [infinite], 0.01), Run(tmp_path / "b", [ROW], 0.01)
    with pytest.raises(RunError, match=f"the baseline a has no number at 128 tokens .its level is {level}"):
        trying._level_difference(change, baseline, 128)
    assert not math.isfinite(trying._level_difference(baseline, change, 128)), "it is a loss of a change"


def test_a_program_s_try_keeps_with_each_run_the_command_that_trains_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    monkeypatch.chdir(folder)
    pe_bench.try_change("nope eval.half=both", *TRIED, "data.path=corpus", minutes=0.001, lengths=[16, 32])
    for run in (folder / "results" / "tries" / "runs").iterdir():
        [command] = recorded_commands(run)
        words = shlex.split(command)
        assert words[:3] == ["pe-bench", "train", f"encoding={run.name.partition('-')[0]}"]
        chosen = ["eval.controls=none", "eval.half=first", "eval.lengths=[16,32]"]
        chosen.append("results_dir=results/tries")
        typed = [*TRIED, "data.path=corpus"]
        assert words[-len(typed) - 6 :] == ["train.tokens=256000", *chosen, *typed, "seed=0"]
        asked, made = compose_config(words[2:]), read_config(run)
        assert (asked.train, asked.eval, asked.seed) == (made.train, made.eval, made.seed)


def test_a_try_ends_with_three_lines_and_the_code_of_its_answer(
    tried, command: Command, folder: Path
) -> None:
    results = folder / "work" / "results"
    refused = "rope is compared with itself: give another run or encoding with --against"
    assert tried("rope").line == f"pe-bench: {refused}"
    assert not (results / "tries.json").exists()
    first = tried("nope", *LEARNED, *SHORT)
    assert first.code == 4, first.err
    assert first.out.startswith("nope against rope: unclear, after 1 seed (try 1 against it)\n")
    assert "at 16, trained" in first.out and "at 32, longest" in first.out and "works to" in first.out
    file = results / "tries.json"
    file.write_text(file.read_text().replace('"seeds": 1', '"seeds": 2'))  # as one with more time would
    again = tried("nope", *LEARNED, *SHORT)
    assert "after 2 seeds (try 1 against it)" in again.out, "the same change is the same try, with its seeds"
    assert "(try 2 against it)" in tried("rope base=20", *LEARNED, *SHORT).out
    confirmed = tried("nope", *LEARNED, *SHORT, "--confirm")
    assert "(confirm 1 against it)" in confirmed.out and "when it was tried" in confirmed.out

    tries = [(each["kind"], each["number"], each["seeds"]) for each in json.loads(file.read_text())]
    assert tries == [("try", 1, 2), ("try", 2, 1), ("confirm", 1, 1)]
    texts = {run.name: (run / "config.yaml").read_text() for run in (results / "tries" / "runs").iterdir()}
    halves = {("-s1000-" in name, "half: second" in text) for name, text in texts.items()}
    assert halves == {(False, False), (True, True)}, "what is confirmed shares no seed and no document"
    assert "confirm 1" in command("try", "--list").out
    tables = json.loads(command("report", "--results-dir", "results/tries", "--all", "--json").out)["tables"]
    seeds = {t["key"]["half"]: {line["label"]: line["seeds"] for line in t["lines"]} for t in tables}
    assert seeds == {"first": {"rope": 2, "nope": 2, "rope base=20.0": 1}, "second": {"rope": 1, "nope": 1}}


def test_a_confirmation_names_the_try_of_the_same_training_and_of_no_other(tried, folder: Path) -> None:
    def confirmed(tokens: int) -> str:
        return tried("nope", *LEARNED, f"train.tokens={tokens}", *SHORT, "--confirm").out

    for tokens in (1024, 2048):
        assert tried("nope", *LEARNED, f"train.tokens={tokens}", *SHORT).code == 4
    file = folder / "work" / "results" / "tries.json"
    entries = json.loads(file.read_text())
    means = [f"{entry['at_training']:+.4f} and {entry['at_longest']:+.4f}" for entry in entries]
    assert means[0] != means[1]
    assert f"when it was tried: {means[1]}, unclear" in confirmed(2048)
    assert "when it was tried" not in confirmed(4096)
    entries = json.loads(file.read_text())
    for entry in entries:
        del entry["evaluation"]
    file.write_text(json.dumps(entries))
    assert f"when it was tried: {means[1]}, unclear" in confirmed(2048), "as an earlier version stored it"


def test_what_else_is_looked_at_makes_another_try(tried) -> None:
    def place(*arguments: str) -> str:
        return re.findall(r"\((try \d)", tried("nope", *SHORT, *arguments).out)[0]

    assert place() == "try 1"
    for number, other in enumerate(
        (
            ["eval.seed=1"],
            ["eval.targets=5"],
            ["eval.target_tokens=4"],
            ["--lengths", "16,48"],
            ["eval.max_length=64"],
            ["eval.precision=bfloat16"],
            ["eval.protocol=nonoverlapping"],
        ),
        start=2,
    ):
        assert place(*other) == f"try {number}", other
    assert place() == "try 1"
    assert place("eval.controls=all", "eval.per_position=true") == "try 1", (
        "they change nothing that is judged"
    )
    assert place("eval.seed=1") == "try 2"


def test_a_try_of_an_earlier_version_is_continued(tried, folder: Path) -> None:
    tried("nope", *SHORT)
    file = folder / "work" / "results" / "tries.json"
    (entry,) = json.loads(file.read_text())
    del entry["evaluation"]
    file.write_text(json.dumps([entry]))
    assert "(try 1 against it)" in tried("nope", *SHORT).out
    (kept,) = json.loads(file.read_text())
    assert kept["evaluation"], "now it is known what it looked at"
    assert "(try 2 against it)" in tried("nope", "eval.seed=7", *SHORT).out


def test_the_code_of_an_encoding_is_checked_once_until_it_changes(tried, folder: Path) -> None:
    code = folder / "work" / "mine.py"
    code.write_text(ROOT_BIAS.replace(', "decaying"', ""))  # it does not hold
    for change, is_checked in (("", True), ("", False), ("# another line\n", True)):
        code.write_text(code.read_text() + change)
        outcome = tried("mine.py:RootBias", *SHORT)
        assert outcome.code == 4, outcome.err
        assert ("properties hold, none fails" in outcome.err) == is_checked, change


def test_a_program_s_try_is_no_check_of_the_code(tried, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder / "work")
    Path("mine.py").write_text(ROOT_BIAS.replace(', "decaying"', ""))
    first = tried("mine.py:RootBias", *SHORT)
    assert "properties hold, none fails" in first.err
    file = Path("results") / "tries.json"
    file.write_text(file.read_text().replace(f'"checked_by": "{own_version()}"', '"checked_by": ""'))
    assert "properties hold, none fails" in tried("mine.py:RootBias", *SHORT).err


def test_models_that_learned_nothing_get_no_verdict(tried, command: Command) -> None:
    outcome = tried("nope", "train.lr=1e-6", "--minutes", "1")
    assert outcome.code == 4 and outcome.out.count("\n") == 1, outcome.out
    assert outcome.out.startswith(
        "nope against rope: no verdict, after 3 seeds (try 1 against it): nope and rope"
    )
    assert "no verdict" in command("try", "--list").out


def test_a_stopped_try_is_listed_as_stopped_and_goes_on(
    tried, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = folder / "work" / "results"
    with monkeypatch.context() as patch:
        stop_before(patch, 2)
        assert tried("nope", *SHORT).code == 130
    assert " stopped" in command("try", "--list").out
    assert "(try 1 against it)" in tried("nope", *SHORT).out
    assert read_tries(results)[0].answer == "no verdict"
    with monkeypatch.context() as patch:
        stop_before(patch, 2)
        assert tried("rope base=20", *SHORT).code == 130
    assert [each.answer for each in read_tries(results)] == ["no verdict", "stopped"]


def test_a_failed_try_is_listed_as_failed(tried, command: Command) -> None:
    assert tried("nope", "--against", "learned", *SHORT).code == 1
    assert " failed" in command("try", "--list").out


def test_tries_on_one_baseline_wait_for_each_other(tried, folder: Path, monkeypatch) -> None:
    tried("nope", *SHORT)
    (baseline,) = (folder / "work" / "results" / "tries" / "runs").glob("rope-*")
    is_held, is_waited_for = Event(), Event()

    def hold() -> None:
        with FileLock(baseline / "lock"):
            is_held.set()
            is_waited_for.wait(timeout=60)

    def say_and_note(text: str) -> None:
        say(text)
        if text.startswith("waits"):
            is_waited_for.set()

    monkeypatch.setattr(trying, "say", say_and_note)
    other = Thread(target=hold)
    other.start()
    is_held.wait()
    outcome = tried("rope base=20", *SHORT)
    other.join()
    assert outcome.code == 4, outcome.err
    assert (
        f"waits for another process that is working on {baseline.relative_to(folder / 'work')}" in outcome.err
    )


def test_a_control_is_no_score_of_a_try(tried, folder: Path) -> None:
    tried("nope", *SHORT, "eval.controls=all", "eval.per_position=true")
    (path,) = (folder / "work" / "results" / "tries" / "runs").glob("nope-*")
    rows = [row for row in reversed(read_rows(path / "eval.csv")) if row.length == 32]
    assert {row.control for row in rows} > {"none"}
    for one in (rows, rows[::-1]):
        row = trying._row_at(Run(path, one, 0.01), 32)
        assert (row.control, row.protocol) == ("none", "paired")


def test_no_seed_is_trained_that_no_look_in_time_would_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying.time, "monotonic", lambda: 100.0)
    for seeds, has_time in ((1, True), (3, True), (5, False), (6, True), (7, True), (8, False)):
        assert trying._has_time(seeds, seconds=10, end=125) is has_time, seeds
    assert not trying._has_time(987, seconds=0, end=125), "there are no more looks"


def outcome_of(at_training: list[float], at_longest: list[float], seconds: float = 30) -> trying.Outcome:
    entry = Try("try", 1, "mine", "rope", "mine-0", "rope-0", 128, [128, 2048], "")
    unknown = BreakPoint(), BreakPoint()
    return trying.Outcome(entry, look(at_training, at_longest, 1, 0.01), unknown, 1, 0, seconds, None)


def test_an_answer_that_is_mixed_says_where() -> None:
    better, worse = [-0.3, -0.31, -0.29, -0.3, -0.3], [0.04, 0.05, 0.04, 0.05, 0.04]
    assert "rope: mixed (better at 128, worse at 2,048), after 5 seeds" in str(outcome_of(better, worse))
    text = str(outcome_of(worse, better))
    assert "rope: mixed (better at 2,048, worse at 128), after 5 seeds" in text
    assert "would settle it" not in text, "more seeds would not change it"


def test_the_minutes_that_are_named_are_those_of_the_seeds_that_are_missing() -> None:
    assert "the first answer needs 3 seeds: give --minutes 1" in str(outcome_of([-0.02], [0.0]))
    text = str(outcome_of([-0.02, -0.035, -0.01], [0.0, 0.01, -0.01]))
    found = re.search(r"about (\d+) seeds in all would settle it: give --minutes (\d+)", text)
    assert found is not None, text
    assert int(found[2]) == math.ceil((int(found[1]) - 3) / 2)


def test_a_try_with_a_tokenizer_that_loses_text_differs_in_nats_per_token(tried, folder: Path) -> None:
    write_byte_tokenizer(folder)
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.Replace("o", "u")
    tokenizer.save(str(path))
    outcome = tried("nope", "tokenizer=file", f"tokenizer.name={path}", *LEARNED, *SHORT)
    assert outcome.code == 4, outcome.err
    assert outcome.out.count("nats/token") == 2 and "bits/byte" not in outcome.out
    assert tried("nope", *LEARNED, *SHORT).out.count("bits/byte") == 2
