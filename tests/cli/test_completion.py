"""Completion of what is typed: keys, names, options and runs, in every shell."""

import os
import subprocess
import sys

import pytest

from pe_bench.cli.completion import complete_word

ROPE = ["encoding.base=", "encoding.form=", "encoding.layout="]


@pytest.mark.parametrize(
    ("chosen", "typed", "offered"),
    [
        ("", "enc", ["encoding="]),
        ("", "encoding=rope,al", ["encoding=rope,alibi"]),
        ("", "modifier=[logn", ["modifier=[logn"]),
        ("", "encoding.", ROPE),
        ("encoding=t5", "encoding.", ["encoding.buckets=", "encoding.max_distance="]),
        ("encoding=logn", "encoding.b", ["encoding.base="]),  # which is rope with a modifier
        ("modifier=[logn]", "encoding.modifiers.logn.t", ["encoding.modifiers.logn.train_length="]),
    ],
)
def test_keys_names_and_options_of_what_is_chosen_are_offered(chosen, typed, offered) -> None:
    assert complete_word(typed, chosen.split()) == offered


def completed(shell: str, **environment: str) -> list[str]:
    program = [sys.executable, "-c", "from pe_bench.cli import main; main()"]
    variables = {**os.environ, "_PE_BENCH_COMPLETE": f"complete_{shell}", **environment}
    done = subprocess.run(program, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_gets_what_replaces_its_last_word_and_runs_of_the_folder_of_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elsewhere/runs/alibi-s0-1", "elsewhere/runs/a$(x)"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    for typed, offered in [
        ("train -m encoding = rope,al", ["rope,alibi"]),
        ("train encoding=no", ["encoding=nope"]),  # where COMP_WORDBREAKS has no `=`
        ("train encoding = t5 seed = 3 encoding.b", ["encoding.buckets="]),
    ]:
        words = ["pe-bench", *typed.split()]
        environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        assert completed("bash", **environment) == offered, typed
    line = "pe-bench train encoding=no"
    assert '"encoding=nope"' in "".join(completed("zsh", _TYPER_COMPLETE_ARGS=line))
    line = "pe-bench report --results-dir elsewhere a"
    shell = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert completed("fish", **shell) == ["alibi-s0-1"]
