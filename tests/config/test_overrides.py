"""Hydra's overrides as they are: order, flags, sweeps, and completion of what is typed."""

from itertools import pairwise
from pathlib import Path

import pytest
from support.commands import files_in

from pe_bench.config.compose import (
    OVERRIDES_VARIABLE,
    complete_overrides,
    compose,
    compose_config,
    multirun,
    parse_composed,
)
from pe_bench.config.groups import names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Config
from pe_bench.errors import UserError
from pe_bench.sweep.run import check_sweep, with_swept_options


def words_of(arguments: list[str]) -> tuple[list[str], list[Path]]:
    """The overrides and the folder of --config-dir among arguments."""
    folders = [Path(after) for before, after in pairwise(arguments) if before == "--config-dir"]
    overrides = [text for text in arguments if text not in ("-m", "--config-dir", *map(str, folders))]
    return complete_overrides(overrides, folders), folders


def seen_by(arguments: list[str]) -> list[Config]:
    overrides, search = words_of(arguments)
    if "-m" not in arguments:
        return [compose_config(overrides, search)]
    seen: list[Config] = []
    check_sweep(overrides, search, lambda config: None)
    launched = with_swept_options(overrides)
    multirun(launched, search, lambda composed: seen.append(parse_composed(composed)))
    return seen


TEXTS = ("plain", "with space", "a,b", "[a]", "null", "1e3", "", "it's", 'say "so"', "~/x", "x=y", "#x")
HARD = ("a\\b", "ends\\", '\\"', "${seed}", "a\\${seed}", "C:\\x\\${y}", "file:///a b")
PLAIN = (1, 1e-05, True, None, [1, "a b"], [], {"a": [1.5, None]})


@pytest.mark.parametrize("value", [*TEXTS, *HARD, *PLAIN])
def test_a_quoted_value_is_read_by_hydra_as_it_was(value):
    assert compose([f"+encoding.value={quote(value)}"])["encoding"]["value"] == value


def test_a_job_gets_the_configuration_that_its_arguments_ask_for(monkeypatch):
    (config,) = seen_by([])
    assert config.encoding["name"] == "rope" and config.search == ()
    monkeypatch.setenv(OVERRIDES_VARIABLE, "seed=7 train.lr=1e-4")
    (config,) = seen_by(["seed=8"])
    assert config.seed == 8 and config.train.lr == 1e-4, "the environment's come before the user's own"
    (config,) = seen_by(["encoding=alibi", "train.length=64", "train.batch_tokens=640", "seed=3"])
    assert config.encoding["name"] == "alibi" and config.seed == 3
    assert (config.train.length, config.train.batch) == (64, 10)
    assert config.search == ()


def test_options_of_a_swept_encoding_need_not_be_options_of_the_default(folder):
    arguments = ["-m", "encoding=alibi,t5", "encoding.n_heads=2", f"results_dir={folder / 'r'}"]
    assert [config.encoding["n_heads"] for config in seen_by(arguments)] == [2, 2]
    arguments = ["-m", "encoding=t5", "encoding.buckets=8,16", f"results_dir={folder / 'r'}"]
    assert [config.encoding["buckets"] for config in seen_by(arguments)] == [8, 16]


def checked_by(arguments: list[str], check=lambda config: None):
    return check_sweep(*words_of(arguments), check)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encoding=t5,alibi", "encoding.buckets=8"], "'encoding.buckets': there are: encoding.slope_scale"),
        (["task=index,copy", "encoding=rope,nope", "task.reach=4"], "unknown key 'task.reach'"),
        (["encoding=t5,alibi", "encoding.bukets=3"], "'encoding.bukets': did you mean 'encoding.buckets'"),
        (["encoding=alibi,ropee"], "unknown encoding 'ropee'"),
        (["train.lr=1e-3,x"], "train.lr must be a number above 0, not 'x'"),
    ],
)
def test_an_option_that_one_value_of_a_sweep_lacks_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        checked_by(["-m", *arguments])


@pytest.mark.parametrize("values", ["texts,nowhere", "nowhere,texts"])
def test_a_folder_that_is_not_there_is_named_by_its_value_and_by_where_it_was_looked_for(
    train, folder, values
):
    work = folder / "work"
    (work / "texts").symlink_to(folder / "corpus")
    outcome = train("-m", "encoding=nope,rope", f"data.path={values}")
    assert outcome.code == 2 and files_in(work) == []
    assert outcome.line.startswith(f"pe-bench: data.path=nowhere does not exist in {work}: name a folder")
    assert "the job" not in outcome.line, "the value is"


@pytest.mark.parametrize(
    "arguments", [["seed=0,1", "encoding=rope,alibi"], ["encoding=alibi,rope", "seed=0"]]
)
def test_a_job_of_a_sweep_that_cannot_run_is_named_where_its_error_names_no_value(arguments):
    def check(config):
        if config.encoding["name"] == "alibi":
            raise UserError("too little text")

    with pytest.raises(UserError, match=r"^too little text \(the job .*encoding=alibi.*\)$"):
        checked_by(["-m", *arguments], check)


def test_a_sweep_takes_every_combination_of_patterns_and_ranges_and_writes_nothing_here(folder):
    arguments = ["-m", "encoding=glob(*ape*,exclude=*d*)", "seed=range(3,5)", f"results_dir={folder / 'r'}"]
    seen = [(config.encoding["name"], config.seed) for config in seen_by(arguments)]
    names = sorted(name for name in names_in("encoding") if "ape" in name and "d" not in name)
    labels = [compose([f"encoding={name}"])["encoding"]["name"] for name in names]
    assert seen == [(label, seed) for label in labels for seed in (3, 4)] and len(names) > 1
    assert files_in(folder / "work") == []
    assert [name.split("/")[-1] for name in files_in(folder / "r")] == ["multirun.yaml"]


@pytest.mark.parametrize("name", ["d[x]", "dir,é", 'it\'s "so"', "a b"])
def test_a_config_dir_may_have_any_name_in_a_run_and_in_a_sweep(folder, name):
    (folder / name / "encoding").mkdir(parents=True)
    (folder / name / "encoding" / "mine.yaml").write_text("defaults: [rope]\nname: mine\n")
    arguments = ["--config-dir", str(folder / name), f"results_dir={folder / 'r'}", "encoding=mine"]
    for given in (arguments, ["-m", *arguments]):
        (config,) = seen_by(given)
        assert config.encoding["name"] == "mine" and config.search == (folder / name,)


def test_the_first_jobs_of_a_sweep_are_checked_with_each_value_once():
    checked = []
    swept = checked_by(["-m", "encoding=rope,alibi,nope", "seed=0,1"], checked.append)
    assert swept.jobs == 6 and swept.keys == ("encoding", "seed")
    found = [(config.encoding["name"], config.seed) for config in checked]
    assert found == [("rope", 0), ("alibi", 0), ("nope", 0), ("rope", 1)]
    checked.clear()
    assert checked_by(["-m", "seed=range(0,30)"], checked.append).jobs == 30
    assert len(checked) == 20, "a big sweep starts quickly"


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


def test_a_file_that_is_no_yaml_is_refused_in_one_line(folder):
    (folder / "encoding").mkdir()
    (folder / "encoding" / "bad.yaml").write_text("defaults: [rope\n")
    with pytest.raises(UserError, match="^a YAML file cannot be read: .*, line 2"):
        compose_config(["encoding=bad"], [folder])
