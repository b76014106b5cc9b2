"""Hydra's words as they are: order, flags, sweeps, and completion of what is typed."""

import os
import sys

import pytest
from conftest import files_in

from pe_bench.completion import complete_run, complete_word
from pe_bench.errors import UserError
from pe_bench.hydra_app import WORDS_VARIABLE, compose, order_words, run_job


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        (["a=1", "-m", "b=2"], ["a=1", "b=2", "-m"]),
        (["--cfg", "job", "a=1"], ["a=1", "--cfg", "job"]),
        (["--config-dir", "d", "a=1", "-m", "b=2"], ["a=1", "b=2", "--config-dir", "d", "-m"]),
        (["--config-dir=d", "a=1"], ["a=1", "--config-dir", "d"]),
        (["~a", "+b=1", "-m"], ["~a", "+b=1", "-m"]),
        (["--info", "searchpath", "a=1"], ["a=1", "--info", "searchpath"]),
        (["--info", "a=1"], ["a=1", "--info"]),
    ],
)
def test_overrides_come_before_flags_and_values_stay_with_theirs(words, ordered):
    assert order_words(words) == ordered


def seen_by(words: list[str]) -> list[tuple]:
    seen = []
    run_job(words, lambda config, search: seen.append((config, search)))
    return seen


def test_a_job_gets_the_configuration_that_its_words_ask_for():
    ((config, search),) = seen_by(["encoding=alibi", "train.length=64", "train.batch_tokens=640", "seed=3"])
    assert config.encoding["name"] == "alibi" and config.seed == 3
    assert (config.train.length, config.train.batch) == (64, 10)
    assert search == []


def test_a_sweep_gives_every_combination(folder):
    words = ["-m", "encoding=rope,alibi", "seed=range(0,3)", f"results_dir={folder / 'r'}"]
    seen = [(config.encoding["name"], config.seed) for config, _ in seen_by(words)]
    assert seen == [(name, seed) for name in ("rope", "alibi") for seed in range(3)]
    assert files_in(folder / "work") == []
    assert [name.split("/")[-1] for name in files_in(folder / "r")] == ["multirun.yaml"]


def test_options_of_a_swept_encoding_need_not_be_options_of_the_default(folder):
    words = ["-m", "encoding=alibi,t5", "encoding.n_heads=2", f"results_dir={folder / 'r'}"]
    assert [config.encoding["n_heads"] for config, _ in seen_by(words)] == [2, 2]
    words = ["-m", "encoding=t5", "encoding.buckets=8,16", f"results_dir={folder / 'r'}"]
    assert [config.encoding["buckets"] for config, _ in seen_by(words)] == [8, 16]


def test_all_jobs_of_a_sweep_run_though_the_first_fails(folder, capsys):
    seen = []

    def job(config, search):
        seen.append(config.seed)
        if config.seed == 0:
            raise RuntimeError("the first\nfails")

    failures = run_job(["-m", "seed=0,1,2", f"results_dir={folder / 'r'}"], job)
    assert seen == [0, 1, 2]
    assert [str(failure) for failure in failures] == ["the first\nfails"]
    assert capsys.readouterr().err == "error: seed=0: the first\n"


def test_a_mistake_in_the_last_value_of_a_sweep_is_told_before_the_first_runs(folder):
    seen = []
    with pytest.raises(UserError, match="unknown encoding 'ropee'"):
        run_job(["-m", "encoding=alibi,ropee"], lambda config, search: seen.append(config))
    with pytest.raises(UserError, match=r"train.lr must be a number, not 'x'"):
        run_job(["-m", "train.lr=1e-3,x"], lambda config, search: seen.append(config))
    assert seen == []


def test_options_derived_from_the_rest_of_the_configuration_are_marked():
    encoding = compose(["encoding=sliding_window", "encoding.base=5"])["encoding"]
    assert encoding["derived"] == ["d_head"]
    assert encoding["modifiers"]["sliding_window"]["derived"] == ["window"]
    assert (
        compose(["encoding=sliding_window", "train.length=64"])["encoding"]["modifiers"]["sliding_window"][
            "window"
        ]
        == 64
    )


def test_arguments_and_environment_are_given_back(monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before = list(sys.argv)
    with pytest.raises(UserError):
        run_job(["encoding=nothing"], lambda config, search: None)
    assert sys.argv == before and "HYDRA_FULL_ERROR" not in os.environ


def test_words_from_the_environment_come_before_the_users_own(monkeypatch):
    monkeypatch.setenv(WORDS_VARIABLE, "seed=7 train.lr=1e-4")
    ((config, _),) = seen_by(["seed=8"])
    assert config.seed == 8 and config.train.lr == 1e-4


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("enc", ["encoding="]),
        ("encoding=ro", ["encoding=rope"]),
        ("encoding=rope,al", ["encoding=rope,alibi"]),
        ("train.le", ["train.length="]),
        ("train.fr", ["train.from="]),
        ("nothing", []),
        ("encoding=zzz", []),
    ],
)
def test_completion_offers_keys_and_names(typed, offered):
    assert complete_word(typed) == offered


def test_completion_of_a_modifier_list():
    assert "modifier=[logn" in complete_word("modifier=[lo")


def test_completion_of_runs_names_those_there_are(folder):
    run = folder / "work" / "results" / "runs" / "rope-s0-1"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    assert complete_run("ro") == ["rope-s0-1"] and complete_run("x") == []
