"""Completion of what is typed: keys, names, options and runs, in every shell."""

import os
import subprocess
import sys
from pathlib import Path

from pe_bench.cli.completion import complete_word


def test_completion_offers_keys_and_names():
    for typed, offered in [
        ("enc", ["encoding="]),
        ("encoding=kerple_l", ["encoding=kerple_log"]),
        ("encoding=rope,al", ["encoding=rope,alibi"]),
        ("train.le", ["train.length="]),
        ("train.fr", ["train.from="]),
        ("nothing", []),
        ("encoding=zzz", []),
        ("modifier=[logn", ["modifier=[logn"]),
    ]:
        assert complete_word(typed) == offered


def completed(shell: str, **environment: str) -> list[str]:
    """What a shell gets, asked as it asks."""
    done = subprocess.run(
        [sys.executable, "-c", "from pe_bench.cli.app import app; app(prog_name='pe-bench')"],
        env={**os.environ, "_PE_BENCH_COMPLETE": f"complete_{shell}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_gets_the_part_behind_its_argument_breaks():
    for arguments, offered in [
        (["enc"], ["encoding="]),
        (["encoding", "=", "no"], ["nope"]),
        (["-m", "encoding", "=", "rope,al"], ["rope,alibi"]),
        (["seed", "=", "3", "modifier", "=", "[logn"], ["[logn"]),
        (["tokenizer", "="], ["bpe", "bytes", "file", "hub"]),
        (["encoding=no"], ["encoding=nope"]),  # where COMP_WORDBREAKS has no `=`
        (["encoding", "=", "t5", "seed", "=", "3", "encoding.b"], ["encoding.buckets="]),
    ]:
        typed = ["pe-bench", "train", *arguments]
        words = {"COMP_WORDS": "\n".join(typed), "COMP_CWORD": str(len(typed) - 1)}
        assert completed("bash", **words) == offered


def test_zsh_and_fish_get_the_whole_argument():
    typed = "pe-bench train seed=3 encoding=no"
    assert '"encoding=nope"' in "".join(completed("zsh", _TYPER_COMPLETE_ARGS=typed))
    fish = {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert completed("fish", **fish) == ["encoding=nope"]


ROPE = ["encoding.base=", "encoding.form=", "encoding.layout="]


def test_after_an_encoding_its_options_are_offered():
    for chosen, typed, offered in [
        ([], "encoding.", ROPE),
        (["encoding=rope"], "encoding.", ROPE),
        (["encoding=t5"], "encoding.", ["encoding.buckets=", "encoding.max_distance="]),
        (["encoding=t5,rope"], "encoding.b", ["encoding.base=", "encoding.buckets="]),
        (["encoding=logn"], "encoding.b", ["encoding.base="]),  # which is rope with a modifier
        (
            ["encoding=t5", "modifier=[logn]"],
            "encoding.modifiers.logn.t",
            ["encoding.modifiers.logn.train_length="],
        ),
    ]:
        assert complete_word(typed, chosen) == offered


def test_runs_are_those_of_the_folder_of_results(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for results, names in (("results", ["rope-s0-1"]), ("elsewhere", ["alibi-s0-1", "alibi-s1-2"])):
        for name in names:
            (tmp_path / results / "runs" / name).mkdir(parents=True)
            (tmp_path / results / "runs" / name / "config.yaml").touch()
    for typed, offered in [
        ("report ", ["rope-s0-1"]),
        ("eval r", ["rope-s0-1"]),
        ("eval x", []),
        ("list mod", ["modifiers", "models"]),
        ("show ali", ["alibi"]),
        ("report --results-dir elsewhere a", ["alibi-s0-1", "alibi-s1-2"]),
    ]:
        shell = {"_TYPER_COMPLETE_ARGS": f"pe-bench {typed}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        assert completed("fish", **shell) == offered, typed
