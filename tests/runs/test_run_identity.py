"""A run's identity, and finding runs again."""

import dataclasses
import json
import shutil
from zlib import crc32

import pytest
from support.commands import only_run
from support.results import add_run

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.runs.find import find_run, find_runs, runs_to_score
from pe_bench.runs.folder import read_config
from pe_bench.runs.identity import identity, run_name, setting


def config_of(*overrides: str) -> Config:
    return parse_config(compose(list(overrides)))


def identity_of(config: Config, data_hash: str = "d", dtype: str = "float32"):
    return identity(config, data_hash, dtype, EncodingSpec(config.encoding).identity())


def name_of(*overrides: str) -> str:
    config = config_of(*overrides)
    return run_name(config, identity_of(config))


def test_the_name_of_the_default_run_is_pinned():
    # Another name here means that nobody's finished runs are found again: raise IDENTITY_VERSION
    # where a change of meaning is intended, and see why otherwise.
    assert name_of("encoding=rope") == "rope-s0-a064382b"


def test_the_rate_that_a_class_declares_is_part_of_what_identifies_a_run():
    (part,) = identity_of(config_of("encoding=t5"))["encoding"]
    assert part["lr_multiple"] == 10


def test_values_that_equal_their_defaults_are_not_in_the_identity():
    found = identity_of(config_of("encoding=rope"))
    assert found == {
        "version": 4,
        "encoding": [
            {"name": "rope", "options": {}},
        ],
        "seed": 0,
        "model": {},
        "train": {"steps": 1_000},
        "data": "d",
        "precision": "float32",
    }


@pytest.mark.parametrize(
    "override",
    [
        "encoding=alibi",
        "encoding.base=5e5",
        "encoding.layout=interleaved",
        "modifier=[logn]",
        "seed=1",
        "model.n_layers=3",
        "model.tie_embeddings=false",
        "model.qk_norm=true",
        "train.steps=9",
        "train.tokens=10000",
        "train.lr=1e-3",
        "train.length=64",
        "train.betas=[0.9,0.99]",
        "train.optimizer=adamw",
        "train.encoding_lr=3",
        "train.from=other",
    ],
)
def test_an_override_that_changes_the_weights_changes_the_name(override):
    assert name_of(override) != name_of()


@pytest.mark.parametrize(
    "override",
    [
        "eval.targets=3",
        "eval.lengths=[128]",
        "results_dir=elsewhere",
        "cache_dir=elsewhere",
        "threads=1",
        "device=cpu",
        "train.log_every=1",
        "train.checkpoint_every=7",
        "train.validate_every=7",
        "train.steps=1000",
    ],
)
def test_an_override_that_does_not_change_the_weights_keeps_the_name(override):
    assert name_of(override) == name_of()


def test_the_data_and_the_precision_are_in_the_identity():
    config = config_of()
    base = run_name(config, identity_of(config))
    assert run_name(config, identity_of(config, data_hash="other")) != base
    assert run_name(config, identity_of(config, dtype="bfloat16")) != base


def test_a_modifier_and_the_encoding_that_ships_with_it_are_one_run():
    assert name_of("encoding=rope", "modifier=[logn]") == name_of("encoding=logn")


def test_the_setting_depends_on_everything_except_encoding_and_seed():
    base = setting(identity_of(config_of()))
    assert setting(identity_of(config_of("encoding=t5", "seed=4"))) == base
    assert setting(identity_of(config_of("train.steps=9"))) != base


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["encoding=rope"], "rope"),
        (["encoding=rope", "encoding.base=500000"], "rope base=500000.0"),
        (["encoding=rope", "encoding.layout=interleaved"], "rope layout=interleaved"),
        (["encoding=alibi", "modifier=[logn]"], "alibi+logn"),
        (["encoding=logn", "modifier=[sliding_window]"], "rope+logn+sliding_window"),
        (["encoding=sliding_window"], "rope+sliding_window"),
        (
            ["encoding=sliding_window", "encoding.modifiers.sliding_window.window=64"],
            "rope+sliding_window sliding_window.window=64",
        ),
        (["encoding=learned", "train.length=64"], "learned"),
        (["encoding=learned", "encoding.max_position=512"], "learned max_position=512"),
    ],
)
def test_a_label_shows_the_chosen_options(overrides, label):
    assert EncodingSpec(config_of(*overrides).encoding).label == label


def test_a_run_is_found_by_path_by_name_and_by_a_prefix_of_its_name(begin, folder):
    begin("encoding=rope")
    run, results = only_run(folder), folder / "results"
    for name in (str(run), run.name, run.name[:9], "rope"):
        assert find_run(name, results).resolve() == run.resolve()
    begin("encoding=rope", "seed=1")
    with pytest.raises(UserError, match="'rope' is the name of several runs"):
        find_run("rope", results)


def test_a_name_selects_all_the_runs_that_it_describes(begin, folder):
    begin("encoding=rope")
    begin("encoding=rope", "seed=1")
    begin("encoding=nope")
    begin("encoding=rope", "modifier=[logn]")
    results = folder / "results"

    def selected(name: str) -> list[str]:
        return sorted(run.name.rsplit("-", 1)[0] for run in find_runs([name], results))

    assert selected("rope") == ["rope-s0", "rope-s1"]
    assert selected("rope+logn") == ["rope+logn-s0"]
    assert selected("rope-s1") == ["rope-s1"]
    assert selected("*-s0-*") == ["nope-s0", "rope+logn-s0", "rope-s0"]
    for name in ("x", "", "r*x"):
        with pytest.raises(UserError, match="no finished run"):
            find_runs([name], results)


def add_named(results, encoding, label, **result):
    """A finished run with a configuration, of an encoding that tables call `label`."""
    run = add_run(results, encoding, {128: 3.0}, code=f"{crc32(label.encode()):08x}")
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "result.json").write_text(json.dumps({"encoding": label, **result}))
    return run


@pytest.mark.parametrize(
    "name",
    ["/tmp/nowhere", "/", ".", "..", "../..", "~", "", "a/b", "./rope", "\0", "rope\0", "\ud800", "x" * 5000],
)
def test_an_impossible_run_name_gets_the_same_error_as_an_unknown_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    add_named(tmp_path, "rope", "rope")
    with pytest.raises(UserError, match="no finished run '"):
        find_run(name, tmp_path)


def test_a_report_takes_the_path_of_a_run_as_eval_does(tmp_path, monkeypatch):
    run = add_named(tmp_path / "results", "rope", "rope")
    add_named(tmp_path / "results", "alibi", "alibi")
    for folder, path in (
        (tmp_path, str(run)),
        (tmp_path, f"results/runs/{run.name}"),
        (tmp_path, f"results/runs/{run.name}/"),
        (tmp_path, f"./results/../results/runs/{run.name}"),
        (run.parent, f"{run.name}/"),
        (run, "."),
    ):
        monkeypatch.chdir(folder)
        assert find_run(path, tmp_path / "results").resolve() == run, path
        assert find_runs([path], tmp_path / "results") == [run], path


def test_the_path_of_a_run_elsewhere_is_refused_with_the_way_to_report_it(tmp_path):
    run = add_named(tmp_path / "other", "rope", "rope")
    add_named(tmp_path / "results", "rope", "rope")
    with pytest.raises(UserError, match=f"is not one of .*: say --results-dir {tmp_path}/other$"):
        find_runs([str(run)], tmp_path / "results")
    copy = shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(UserError, match="move it into a folder named runs/"):
        find_runs([str(copy)], tmp_path / "results")


def test_the_path_of_an_unfinished_run_is_refused_as_unfinished(tmp_path):
    run = add_named(tmp_path, "rope", "rope")
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        find_run(str(run), tmp_path)


def test_a_name_selects_runs_by_what_tables_call_their_encoding(tmp_path):
    weak = add_named(tmp_path, "root", "root@0cba strength=0.25")
    strong = add_named(tmp_path, "root", "root@0cba strength=1.0")
    other = add_named(tmp_path, "root+logn", "root@1111+logn")
    (add_run(tmp_path, "damaged", {128: 3.0}) / "result.json").write_text("[")
    for name, expected in {
        "root@0cba": {weak, strong},
        "root@0cba strength=1.0": {strong},
        "root@1111+logn": {other},
        "root": {weak, strong},
    }.items():
        assert set(find_runs([name], tmp_path)) == expected, name
    with pytest.raises(UserError, match="no finished run 'root@ffff'"):
        find_runs(["root@ffff"], tmp_path)


def test_the_newest_run_is_the_one_that_finished_last(train, folder):
    train("encoding=rope")
    train("encoding=nope")
    [run] = runs_to_score([], [], folder / "results", everything=False)
    assert run.name.startswith("nope")
    with pytest.raises(UserError, match="no finished run in"):
        runs_to_score([], [], folder / "nowhere", everything=False)


def test_the_same_data_elsewhere_is_the_same_run(train, folder):
    train("encoding=rope")
    shutil.copytree(folder / "corpus", folder / "moved")
    outcome = train("encoding=rope", f"data.path={folder / 'moved'}")
    assert "is already trained" in outcome.err


def test_a_written_configuration_reads_back_equal(train, folder):

    train("encoding=logn", "modifier=[sliding_window]")
    config = read_config(only_run(folder))
    assert config.train.steps == 8
    assert list(config.encoding["modifiers"]) == ["logn", "sliding_window"]
    assert dataclasses.replace(config) == config
