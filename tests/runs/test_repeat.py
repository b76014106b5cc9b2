"""Overrides recovered from a resolved configuration compose to the same run."""

import shlex
from dataclasses import replace

import pytest
import yaml
from support.results import ROW

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config
from pe_bench.encodings.source import digest
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.runs.identity import identity, run_name
from pe_bench.runs.repeat import Repeater, sweep_commands, with_scored_lengths

LINEAR = """
import torch
from pe_bench.encodings import LayerEncoding
class Linear(LayerEncoding):
    def __init__(self, n_heads: int, slope: float = 0.1) -> None:
        super().__init__()
        self.slope = slope
    def distance_bias(self, distance):
        return -self.slope * distance[None].float()
"""


def composed(overrides, search=()) -> Config:
    return parse_config(compose(overrides, search))


def name_of(config: Config, search=()) -> str:
    encoding = EncodingSpec(config.encoding, tuple(search)).with_code_hashes()
    config = parse_config({**to_plain(config), "encoding": encoding.values})
    return run_name(config, identity(config, "data", "float32", encoding.identity()))


def as_written(config: Config) -> dict:
    return yaml.safe_load(yaml.safe_dump(to_plain(config)))


@pytest.mark.parametrize(
    "overrides",
    [
        ["encoding=rope"],
        ["encoding=alibi", "seed=3", "train.length=64", "train.lr=1e-5"],
        ["encoding=yarn", "encoding.factor=4", "encoding.beta_fast=16", "encoding.train_length=64"],
        ["encoding=rope", "modifier=[logn,ssmax]", "encoding.modifiers.ssmax.window=64"],
        ["encoding=swa", "train.length=32"],
        ["encoding=gemma3", "encoding.window=8", "encoding.base=5e5"],
        ["encoding=local_global", "train.length=32"],
        ["encoding=local_global", "encoding.global={name: p_rope, fraction: 0.25}", "encoding.every=2"],
        ["encoding=local_global", "encoding.local={name: rope, modifiers: {logn: {}, sink: {initial: 1}}}"],
        ["encoding=local_global", "encoding.local.base=77"],
        ["encoding=longrope", "encoding.long_factors=[1.0,2.5]", "model.d_model=16"],
        ["encoding=rope", "modifier=[bipe]", 'encoding.modifiers.bipe.separators=[";","\\n"]'],
        ["model=small", "model.n_kv_heads=2", "experiment=quick", "eval.lengths=[128,256]"],
        ["model.d_model=16", "model.n_heads=2", "model.d_head=4", "train.steps=8"],
        ["data=files", 'data.path="/a folder/it\'s, \\"this\\" \\\\"', "tokenizer=bpe"],
        ["data=wikitext103", "tokenizer=hub", "tokenizer.name=gpt2", "precision=float32"],
        ["model.name=mine", "train.betas=[0.9,0.99]", "encoding.base=5e5"],
        ["experiment=drope", "train.from=rope-s0-1a2b3c4d"],
        ["eval.lengths=[256]", "eval.targets=5", "threads=1", "results_dir=elsewhere"],
    ],
)
def test_overrides_from_a_configuration_compose_to_the_same_run(overrides):
    config = composed(overrides)
    found = Repeater().overrides(as_written(config), "float32")
    again = composed(found)
    assert name_of(again) == name_of(config), found
    assert (again.eval, again.train) == (config.eval, config.train), found


def test_overrides_survive_a_shell():
    config = composed(["data=files", 'data.path="/a folder/it\'s"'])
    overrides = shlex.split(shlex.join(Repeater().overrides(as_written(config), "float32")))
    assert composed(overrides).data.path == "/a folder/it's"


def test_defaults_are_left_out_of_the_overrides():
    assert Repeater().overrides(as_written(composed([])), "float32") == [
        "encoding=rope",
        "seed=0",
        "precision=float32",
    ]
    found = Repeater().overrides(as_written(composed(["model.d_model=64", "train.steps=8"])), "float32")
    assert found[3:] == ["model.d_model=64", "train.steps=8"], "d_head and tokens follow, or do not matter"


def test_the_precision_that_auto_chose_is_written_out_because_another_machine_may_choose_differently():
    assert "precision=bfloat16" in Repeater().overrides(as_written(composed([])), "bfloat16")


def test_a_custom_encoding_is_repeated_with_its_files_which_are_named(tmp_path):
    (tmp_path / "encoding").mkdir()
    (tmp_path / "linear.py").write_text(LINEAR)
    yaml_file = tmp_path / "encoding" / "linear.yaml"
    yaml_file.write_text("name: linear\nclass: linear.py:Linear\nn_heads: ${model.n_heads}\nslope: 0.1\n")
    config = composed(["encoding=linear", "encoding.slope=0.5"], [tmp_path])
    written = as_written(config) | {
        "encoding": EncodingSpec(config.encoding, (tmp_path,)).with_code_hashes().values
    }
    repeater = Repeater()
    found = repeater.overrides(written, "float32")
    assert found[:2] == ["encoding=linear", "encoding.slope=0.5"]
    assert name_of(composed(found, [tmp_path]), [tmp_path]) == name_of(config, [tmp_path])
    file, code = repeater.requirements(written)
    assert "encoding/linear.yaml" in file and "--config-dir" in file
    assert code.startswith("linear.py:Linear (sha256 ")
    assert repeater.requirements(as_written(composed([]))) == []


def test_a_command_names_code_only_where_the_user_s_own_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    (results / "runs" / "rope-s0").mkdir(parents=True)
    for path in ("mine.py", "results/x.py", "results/runs/rope-s0/x.py"):
        (tmp_path / path).write_text(LINEAR)
    (tmp_path / "link.py").symlink_to(results / "x.py")
    (tmp_path / "package.py").write_text(LINEAR)
    encoding = {**composed(["encoding=alibi"]).encoding, "code_sha256": digest(tmp_path / "mine.py")}
    config, repeater = as_written(composed(["encoding=alibi"])), Repeater([results])

    def overrides(specification, **changes):
        part = {**encoding, "class": specification, **changes}
        nested = {"name": "local_global", "class": "pe_bench.encodings.layers.local_global:LocalGlobal"}
        modified = {**composed([]).encoding, "modifiers": {"logn": {"name": "logn", **part}}}
        for values in (part, {**nested, "local": part}, modified):
            yield lambda values=values: repeater.overrides({**config, "encoding": values}, "float32")

    for specification, changes in [
        ("results/runs/rope-s0/x.py:Linear", {}),
        (str(results / "x.py:Linear"), {}),
        ("elsewhere/../results/x.py:Linear", {}),
        ("link.py:Linear", {}),
        ("gone.py:Linear", {}),
        ("package:Linear", {}),
        ("mine.py:Linear", {"code_sha256": "0123456789abcdef"}),
        ("mine.py:Linear", {"code_sha256": None}),
    ]:
        for call in overrides(specification, **changes):
            with pytest.raises(UserError, match=r"the code of its encoding, .* is not here"):
                call()
    assert "encoding.class=mine.py:Linear" in next(overrides("mine.py:Linear"))()


def test_a_key_that_this_version_lacks_is_named():
    config = as_written(composed([]))
    config["train"]["momentum"] = 0.9
    with pytest.raises(UserError, match=r"train\.momentum is no key of this version"):
        Repeater().overrides(config, "float32")


def test_a_configuration_without_a_newer_key_has_its_default():
    config = as_written(composed(["encoding=alibi"]))
    del config["train"]["micro_batches"]
    assert name_of(composed(Repeater().overrides(config, "float32"))) == name_of(composed(["encoding=alibi"]))


def scored_at(*lengths, **changes):
    return [replace(ROW, length=length, **changes) for length in lengths]


@pytest.mark.parametrize(
    ("overrides", "rows", "expected"),
    [
        (["eval.lengths=[128,256]"], scored_at(32, 128, 256), [32, 128, 256]),
        (["eval.lengths=[256]"], scored_at(128, 256), [256]),
        (["eval.lengths=[128,256]"], scored_at(32, status="undefined"), [32, 128, 256]),
        (["eval.lengths=[128,256]"], scored_at(512, scored_with="yarn"), [128, 256]),
        (["eval.lengths=[128,256]"], scored_at(512, protocol="sliding"), [128, 256]),
        (["eval.lengths=[128,256]"], scored_at(1, 2, protocol="positions"), [128, 256]),
        (["eval.lengths=[128]", "eval.protocol=sliding"], scored_at(64, protocol="sliding"), [64, 128]),
        ([], scored_at(64, 128, 256, 512), None),
        ([], [], None),
    ],
)
def test_the_command_includes_lengths_that_the_run_was_scored_at_later(overrides, rows, expected):
    config = with_scored_lengths(as_written(composed(overrides)), rows)
    assert composed(Repeater().overrides(config, "float32")).eval.lengths == expected


def test_other_scored_lengths_are_added_to_the_default_ones():
    config = with_scored_lengths(as_written(composed([])), scored_at(96))
    found = composed(Repeater().overrides(config, "float32")).eval.lengths
    assert found == sorted({96, *composed([]).eval.resolved_lengths(128)})


def test_runs_that_end_with_the_same_lengths_become_one_sweep():
    rows = scored_at(32, 128, 256)
    configs = [
        as_written(composed([f"encoding={name}", f"eval.lengths={lengths}"]))
        for name, lengths in (("rope", "[128,256]"), ("nope", "[32,128,256]"))
    ]
    overrides = [Repeater().overrides(with_scored_lengths(config, rows), "float32") for config in configs]
    [command] = sweep_commands(shlex.join(["pe-bench", "train", *found]) for found in overrides)
    assert "encoding=rope,nope" in command and "'eval.lengths=[32,128,256]'" in command


def test_runs_that_differ_in_encoding_and_seed_become_one_sweep():
    runs = [f"pe-bench train encoding={name} seed={seed} x=1" for name in ("a", "b") for seed in (1, 0, 10)]
    others = ["pe-bench train encoding=c seed=0 x=1", "pe-bench train encoding=a seed=0 x=2"]
    assert sweep_commands([*runs, *others, runs[0]]) == [
        "pe-bench train -m encoding=a,b seed=0,1,10 x=1",
        "pe-bench train encoding=c seed=0 x=1",
        "pe-bench train encoding=a seed=0 x=2",
    ]
    assert sweep_commands([]) == []
