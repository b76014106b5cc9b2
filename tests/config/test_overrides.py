"""Hydra's overrides as they are: order, names, sweeps, and what is refused."""

import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.commands import files_in

from pe_bench.commands.sweep.run import check_sweep
from pe_bench.config import compose as config_compose
from pe_bench.config.compose import (
    OVERRIDES_VARIABLE,
    _hydra,
    _merge,
    choose_encoding,
    complete_overrides,
    compose,
    compose_config,
    multirun,
    parse_composed,
    resolve_encoding,
)
from pe_bench.config.groups import GROUPS, aliases, config_dir, find_name, names_in
from pe_bench.config.overrides import ROOT_CONFIG, for_hydra, overrides_of, quote, read_option
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import plan_jobs, with_swept_options
from pe_bench.errors import UserError


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
    sweep, _ = check_sweep(overrides, search, lambda config: None)
    launched = with_swept_options(overrides)
    multirun(launched, search, lambda composed: seen.append(parse_composed(composed)), sweep.path)
    assert [job.config for job in plan_jobs(overrides, search)] == seen, "both ways give the same jobs"
    return seen


TEXTS = ("plain", "with space", "a,b", "[a]", "null", "1e3", "", "it's", 'say "so"', "~/x", "x=y", "#x")
HARD = ("a\\b", "ends\\", '\\"', "${seed}", "a\\${seed}", "C:\\x\\${y}", "file:///a b")
PLAIN = (1, 1e-05, True, None, [1, "a b"], [], {"a": [1.5, None]})


def test_a_quoted_value_is_read_by_hydra_as_it_was() -> None:
    values = dict(enumerate([*TEXTS, *HARD, *PLAIN]))
    overrides = [f"+encoding.value{number}={quote(value)}" for number, value in values.items()]
    encoding = compose(overrides)["encoding"]
    assert {number: encoding[f"value{number}"] for number in values} == values


# Texts of letters that have a meaning somewhere in the grammar, and of any others.
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False)
WORDS = st.text("ab1 \\\"'${}[](),:=#~@*é", max_size=8) | st.text(
    st.characters(exclude_categories=["C", "Z"]), max_size=8
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_any_plain_value_is_read_by_hydras_grammar_as_it_was_quoted(value: Any) -> None:
    override = OverridesParser.create().parse_override(f"key={quote(value)}")
    read = OmegaConf.to_container(OmegaConf.create({"key": override.value()}), resolve=True)
    assert read == {"key": value}


def test_plain_values_are_set_as_they_are_below_what_is_typed_and_above_the_rest(monkeypatch):
    for text in (text for text in (*TEXTS, *HARD) if text):
        [job] = plan_jobs(["seed=2"], values={"data.path": text, "data.source": "files", "seed": 1})
        assert (job.config.data.path, job.config.seed) == (os.path.expanduser(text), 2), text
    monkeypatch.setenv(OVERRIDES_VARIABLE, "train.lr=0.5 train.clip=2")
    values = {"train.lr": 0.25, "train.steps": 5, "train.betas": [0.1, 0.2], "eval.targets": 3}
    [job] = plan_jobs(["experiment=quick", "train={betas: [0.3, 0.4]}"], values=values)
    train = job.config.train
    assert (train.lr, train.clip, train.steps, train.betas) == (0.25, 2, 5, (0.3, 0.4))
    assert (job.config.eval.targets, job.config.eval.max_length) == (3, 512)


def test_a_sweep_in_a_list_of_jobs_has_labels_words_and_the_values_that_were_typed():
    jobs = plan_jobs(["train.lr=0.1,0.2", "threads=1"], choice=["encoding=rope,nope"], values={"seed": 3})
    assert [job.label for job in jobs] == [
        *("encoding=rope train.lr=0.1", "encoding=rope train.lr=0.2"),
        *("encoding=nope train.lr=0.1", "encoding=nope train.lr=0.2"),
    ]
    assert jobs[1].overrides == ("encoding=rope", "seed=3", "train.lr=0.2", "threads=1")
    assert jobs[1].given == {"train.lr": 0.2, "threads": 1}
    assert compose_config(jobs[3].overrides) == jobs[3].config
    with pytest.raises(UserError, match=r"train.lr=interval\(1,2\) is no list of values"):
        plan_jobs(["train.lr=interval(1,2)"])


BUILT = [
    name
    for name in names_in("encoding")
    if re.search(r"^defaults|\$\{", (config_dir() / "encoding" / f"{name}.yaml").read_text(), re.MULTILINE)
]


USUAL = ("train.length=64", "model.n_heads=2")


@pytest.fixture(scope="module")
def usual_config() -> Config:
    return compose_config(["encoding=nope", *USUAL])


@pytest.mark.parametrize("name", ["rope", "t5", *BUILT])
def test_an_encoding_is_the_same_whether_hydra_composes_it_or_it_is_read_for_a_configuration(
    name, usual_config
):
    assert len(BUILT) > 20
    for modifiers in ([], ["logn", "sliding_window"]):
        chosen = choose_encoding(name, modifiers)
        composed = compose([f"encoding={name}", f"modifier=[{','.join(modifiers)}]", *USUAL])["encoding"]
        assert json.dumps(resolve_encoding(chosen, {}, usual_config)) == json.dumps(composed), "in this order"


def test_options_of_a_read_encoding_are_those_that_hydra_would_set():
    config = compose_config([])
    for option in ("window=5", "global={name: yarn, factor: 2}", "global={name: nope}", "local.base=5.0"):
        key, value = read_option(f"encoding.{option}")
        composed = compose(["encoding=local_global", f"encoding.{option}"])["encoding"]
        assert resolve_encoding(choose_encoding("local_global", []), {key: value}, config) == composed
    for unknown in ("encoding.windo", "encoding.local.bas", "encoding.modifiers.logn.x"):
        with pytest.raises(UserError, match=f"unknown key '{unknown}'"):
            resolve_encoding(choose_encoding("local_global", []), {unknown: 1}, config)


def test_a_job_gets_the_configuration_that_its_arguments_ask_for(monkeypatch):
    (config,) = seen_by([])
    assert config.encoding["name"] == "rope" and config.search == ()
    monkeypatch.setenv(OVERRIDES_VARIABLE, "seed=7 train.lr=1e-4")
    (config,) = seen_by(["seed=8"])
    assert config.seed == 8 and config.train.lr == 1e-4, "the environment's come before the user's own"
    (config,) = seen_by(["encoding=alibi", "train.length=64", "train.batch_tokens=640", "seed=3"])
    assert config.encoding["name"] == "alibi" and config.seed == 3
    assert (config.train.length, config.train.batch) == (64, 10)


@pytest.mark.parametrize(
    "overrides",
    [
        ["encoding=t5", "encoding.buckets=8", "train.length=64", "seed=3"],
        ["encoding=local_global", "encoding.global={name: yarn, factor: 2}", "threads=1"],
        ["experiment=quick", "model=small", "model.d_model=96", "eval.lengths=[16,32]", "tag=null"],
        [
            "modifier=[sliding_window]",
            "encoding.modifiers.sliding_window.window=8",
            "data=files",
            'data.path="a b, ${seed}"',
        ],
        ["modifier=[]", "+train.more=1", "++train.lr=0.1", "~train.betas", "train={clip: 2.0}"],
        ["data=task", "task=index", "task.reach=4", "tokenizer=bytes"],
    ],
)
def test_a_job_is_what_hydra_composes_whatever_became_of_an_earlier_job(overrides):
    words = for_hydra(overrides)
    with _hydra():
        composed = OmegaConf.to_yaml(hydra_compose(ROOT_CONFIG, words))
        for _ in range(2):
            merged = _merge(words, ())
            assert OmegaConf.to_yaml(merged) == composed
            OmegaConf.update(merged, "eval.stride", 7)
    assert compose(words)["eval"]["stride"] is None


@pytest.mark.parametrize(
    ("file", "choice"),
    [
        ("encoding/rop.yaml", "encoding=rope"),
        ("encoding/rop.yaml", "encoding=yarn"),
        ("encoding/my rope.yaml", "encoding='my rope'"),
        ("encoding/mine.yaml", "modifier=[logn]"),
        ("experiment/mine.yaml", "experiment=mine"),
    ],
)
def test_a_folder_s_files_are_those_that_hydra_finds_and_no_other_job_s(tmp_path, file, choice):
    own = tmp_path / file
    own.parent.mkdir()
    own.write_text("# @package _global_\nseed: 5\n" if own.parent.name == "experiment" else "name: mine\n")
    with _hydra([tmp_path]):
        composed = OmegaConf.to_yaml(hydra_compose(ROOT_CONFIG, [choice]))
        assert OmegaConf.to_yaml(_merge([choice], [tmp_path])) == composed
    if own.stem in choice and choice != "encoding=rope":
        with pytest.raises(UserError, match="unknown"):
            compose([choice])


@pytest.mark.parametrize("file", ["encoding/rope.yaml", "model/tiny.yaml", "data/stdlib.yaml"])
def test_a_folders_file_with_the_name_of_a_shipped_file_is_refused(tmp_path: Path, file: str) -> None:
    own = tmp_path / file
    own.parent.mkdir()
    own.write_text("name: mine\n")
    with pytest.raises(UserError, match=rf"{file} would be ignored, because pe-bench has {file}"):
        compose([], [tmp_path])


def test_a_changed_file_is_read_by_the_next_job(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    shutil.copytree(config_dir(), folder)
    monkeypatch.setattr(config_compose, "config_dir", lambda: folder)
    for file, before, after in (
        (folder / "train.yaml", "lr: 0.005", "lr: 0.5"),
        (folder / "model" / "tiny.yaml", "d_model: 128", "d_model: 64"),
    ):
        section, key = ("train", "lr") if file.parent == folder else ("model", "d_model")
        first = compose([])[section][key]
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
        assert compose([])[section][key] == yaml.safe_load(after)[key] != first


def test_options_of_a_swept_encoding_need_not_be_options_of_the_default(folder):
    arguments = ["-m", "encoding=alibi,t5", "encoding.n_heads=2", f"results_dir={folder / 'r'}"]
    assert [config.encoding["n_heads"] for config in seen_by(arguments)] == [2, 2]
    arguments = ["-m", "encoding=t5", "encoding.buckets=8,16", f"results_dir={folder / 'r'}"]
    assert [config.encoding["buckets"] for config in seen_by(arguments)] == [8, 16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["encoding=t5,alibi", "encoding.buckets=8"],
            "'encoding.buckets': there are: encoding.silent, encoding.slope_scale",
        ),
        (["task=index,copy", "encoding=rope,nope", "task.reach=4"], "unknown key 'task.reach'"),
        (["train.lr=1e-3,x"], "train.lr must be a number above 0, not 'x'"),
    ],
)
def test_an_option_that_one_encoding_or_task_of_a_sweep_lacks_is_refused_and_so_is_a_wrong_value(
    arguments, message
):
    with pytest.raises(UserError, match=message):
        check_sweep(*words_of(["-m", *arguments]), lambda config: None)


def test_a_sweep_takes_every_combination_of_patterns_and_ranges_and_writes_nothing_here(folder):
    arguments = ["-m", "encoding=glob(sh*,exclude=*pe)", "seed=range(3,5)", f"results_dir={folder / 'r'}"]
    seen = [(config.encoding["name"], config.seed) for config in seen_by(arguments)]
    names = sorted(name for name in names_in("encoding") if re.fullmatch("sh.*(?<!pe)", name))
    labels = [compose([f"encoding={name}"])["encoding"]["name"] for name in names]
    assert seen == [(label, seed) for label in labels for seed in (3, 4)] and len(names) > 1
    assert "shape" in names_in("encoding"), "one is excluded"
    assert files_in(folder / "work") == []
    assert [name.split("/")[-1] for name in files_in(folder / "r")] == ["multirun.yaml"]


def test_a_config_dir_may_have_any_name_in_a_run_and_in_a_sweep_and_its_files_come_before_aliases(folder):
    name = 'd[x], "é"'
    (folder / name / "encoding").mkdir(parents=True)
    (folder / name / "encoding" / "rotary.yaml").write_text("defaults: [nope]\nname: mine\n")
    arguments = ["--config-dir", str(folder / name), f"results_dir={folder / 'r'}", "encoding=rotary"]
    for typed in (arguments, ["-m", *arguments]):
        (config,) = seen_by(typed)
        assert config.encoding["name"] == "mine" and config.search == (folder / name,)
    (folder / name / "encoding" / "bad.yaml").write_text("defaults: [rope\n")
    with pytest.raises(UserError, match="^a YAML file cannot be read: .*, line 2"):
        compose_config(["encoding=bad"], [folder / name])


def test_a_second_encoding_in_a_file_is_not_taken_for_a_typed_plus(folder):
    (folder / "own" / "experiment").mkdir(parents=True)
    (folder / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [/encoding: alibi]\n"
    )
    with pytest.raises(UserError) as error:
        compose_config(["experiment=mine"], [folder / "own"])
    assert "without +" not in str(error.value) and "override" in str(error.value)


def test_the_first_jobs_of_a_sweep_are_checked_with_each_value_once():
    checked = []
    swept, keys = check_sweep(*words_of(["-m", "encoding=rope,alibi,nope", "seed=0,1"]), checked.append)
    assert swept.jobs == 6 and keys == ("encoding", "seed")
    combinations = [(config.encoding["name"], config.seed) for config in checked]
    assert combinations == [("rope", 0), ("alibi", 0), ("nope", 0), ("rope", 1)]
    checked.clear()
    assert check_sweep(*words_of(["-m", "seed=range(0,30)"]), checked.append)[0].jobs == 30
    assert len(checked) == 20, "a big sweep starts quickly"


def test_options_derived_from_the_rest_of_the_configuration_are_marked():
    encoding = compose(["encoding=sliding_window", "encoding.base=5", "train.length=64"])["encoding"]
    assert encoding["derived"] == ["d_head"]
    window = encoding["modifiers"]["sliding_window"]
    assert window["derived"] == ["window"] and window["window"] == 64


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_names_of_a_group_are_one_in_other_letters(group: str) -> None:
    names = [*names_in(group), *(aliases() if group == "encoding" else [])]
    assert len(names) == len({*names})
    assert [find_name(group, name.upper().replace("_", "-")) for name in names] == [
        find_name(group, name) for name in names
    ]


def test_a_name_is_found_by_an_alias_and_in_other_letters_and_the_rest_is_hydras() -> None:
    for typed, names in [
        ("encoding=rotary,alibi,ape", "encoding=rope,alibi,learned"),
        ("encoding=SWA", "encoding=sliding_window"),
        ("modifier=[LogN,sliding-window]", "modifier=[logn,sliding_window]"),
        ("data.name=rotary", "data.name=rotary"),
        ("encoding=glob(r*)", "encoding=glob(r*)"),
    ]:
        assert for_hydra([typed]) == [names]
    assert compose(["encoding=Rotary"]) == compose(["encoding=rope"])


def test_a_name_in_a_mapping_of_a_group_chooses_the_groups_file() -> None:
    texts = [
        *overrides_of("encoding", {"name": "alibi"}),
        *overrides_of("data", {"name": "files", "path": "books"}),
        *overrides_of("tokenizer", {"name": "a/b"}),
        *overrides_of("model", {"name": "my own", "d_ff": 7}),
    ]
    assert texts[:4] == ["encoding=alibi", "data=files", "data.path=books", "tokenizer.name=a/b"]
    assert texts[4:] == ['model.name="my own"', "model.d_ff=7"]
