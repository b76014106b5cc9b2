"""A run's identity, and finding runs again."""

import json
from zlib import crc32

import pytest
from support.results import add_run

from pe_bench.config.compose import compose_config
from pe_bench.config.schema import Config
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.runs.find import find_run, find_runs, parse_condition, runs_to_score
from pe_bench.runs.folder import read_config, write_config
from pe_bench.runs.job import identity, run_name, setting


def config_of(*overrides: str) -> Config:
    return compose_config(overrides)


def identity_of(config: Config, data_hash: str = "d", dtype: str = "float32"):
    return identity(config, data_hash, dtype, EncodingSpec(config.encoding).identity())


def name_of(*overrides: str) -> str:
    config = config_of(*overrides)
    return run_name(config, identity_of(config))


def test_the_name_of_the_default_run_is_pinned_and_no_default_is_in_it():
    # Another name here means that nobody's finished runs are found again: raise IDENTITY_VERSION
    # where a change of meaning is intended, and see why otherwise.
    assert name_of("encoding=rope") == "rope-s0-a064382b"
    assert identity_of(config_of("encoding=rope")) == {
        "version": 4,
        "encoding": [{"name": "rope", "options": {}}],
        "seed": 0,
        "model": {},
        "train": {"steps": 1_000},
        "data": "d",
        "precision": "float32",
    }


CHANGING = (
    "encoding=alibi encoding.base=5e5 encoding.layout=interleaved modifier=[logn] seed=1 model.n_layers=3 "
    "model.tie_embeddings=false train.steps=9 train.tokens=10000 train.lr=1e-3 train.length=64 "
    "train.betas=[0.9,0.99] train.optimizer=adamw train.encoding_lr=3 train.from=other train.clip=2 "
    "train.batch_tokens=2048 train.micro_batches=2 train.final_lr=0.5 train.warmup_steps=9 "
    "train.weight_decay=0 model.d_model=64 model.n_heads=8 model.n_kv_heads=2 model.d_head=16 "
    "model.d_ff=64 model.qk_norm=true"
)
KEEPING = (
    "eval.targets=3 eval.lengths=[128] results_dir=elsewhere cache_dir=elsewhere threads=1 device=cpu "
    "train.log_every=1 train.checkpoint_every=7 train.validate_every=7 train.steps=1000"
)


def test_the_name_changes_with_all_that_changes_the_weights_and_with_nothing_else():
    default, config = name_of(), config_of()
    assert [override for override in CHANGING.split() if name_of(override) == default] == []
    assert [override for override in KEEPING.split() if name_of(override) != default] == []
    others = [identity_of(config, data_hash="other"), identity_of(config, dtype="bfloat16")]
    assert default not in [run_name(config, each) for each in others]
    assert name_of("encoding=rope", "modifier=[logn]") == name_of("encoding=logn")
    (part,) = identity_of(config_of("encoding=t5"))["encoding"]
    assert part["lr_multiple"] == 10, "the rate that a class declares"
    base = setting(identity_of(config))
    assert setting(identity_of(config_of("encoding=t5", "seed=4"))) == base, "all but encoding and seed"
    assert setting(identity_of(config_of("train.steps=9"))) != base
    assert setting(identity_of(config_of("train.micro_batches=2"))) == base, "a step is the same in parts"


LABELS = {
    "encoding=rope": "rope",
    "encoding=rope encoding.base=500000": "rope base=500000.0",
    "encoding=alibi modifier=[logn]": "alibi+logn",
    "encoding=logn encoding.modifiers.logn.train_length=64": "rope+logn logn.train_length=64",
    "encoding=learned train.length=64": "learned",
    "encoding=learned encoding.max_position=512": "learned max_position=512",
}


def test_a_label_shows_the_chosen_options():
    labels = {text: EncodingSpec(config_of(*text.split()).encoding).label for text in LABELS}
    assert labels == LABELS


def add_named(results, encoding, label, **changes):
    """Add a finished run with a configuration, of an encoding that tables call `label`."""
    run = add_run(results, encoding, {128: 3.0}, code=f"{crc32(label.encode()):08x}", **changes)
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "result.json").write_text(json.dumps({"encoding": label}))
    return run


IMPOSSIBLE = "x r*x /tmp/nowhere / . .. ~ a/b ./rope \0 \ud800"


def test_a_name_selects_all_the_runs_that_it_describes(tmp_path, monkeypatch):
    rope, nope = add_named(tmp_path, "rope", "rope"), add_named(tmp_path, "nope", "nope")
    seed = add_named(tmp_path, "rope", "rope", seed=1)
    logn = add_named(tmp_path, "rope+logn", "rope+logn")
    weak = add_named(tmp_path, "root", "root@0cba strength=0.25")
    strong = add_named(tmp_path, "root", "root@0cba strength=1.0")
    hashed = add_named(tmp_path, "root+logn", "root@1111+logn")
    (add_run(tmp_path, "damaged", {128: 3.0}) / "result.json").write_text("[")
    for name, expected in {
        "rope": {rope, seed},
        "rope+logn": {logn},
        "rope-s1": {seed},
        rope.name: {rope},
        str(rope): {rope},
        "*ope-s0-*": {rope, nope},
        "root+logn": {hashed},
        "root": {weak, strong},
    }.items():
        assert set(find_runs([name], tmp_path)) == expected, name
    where = [parse_condition("seed=1")]
    assert find_runs([], tmp_path, where) == find_runs(["rope"], tmp_path, where) == [seed]
    with pytest.raises(UserError, match="no run meets seed=1"):
        find_runs(["nope"], tmp_path, where)
    assert find_run("rope-s1", tmp_path) == seed
    with pytest.raises(UserError, match="'rope' is the name of several runs: give one in full: "):
        find_run("rope", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("", "x" * 5000, *IMPOSSIBLE.split()):
        with pytest.raises(UserError, match="no finished run '"):
            find_run(name, tmp_path)


def test_a_report_takes_the_path_of_a_run_in_its_folder_as_eval_does(tmp_path, monkeypatch):
    run = add_named(tmp_path / "results", "rope", "rope")
    add_named(tmp_path / "results", "alibi", "alibi")
    for folder, path in ((tmp_path, f"./results/../results/runs/{run.name}/"), (run, ".")):
        monkeypatch.chdir(folder)
        assert find_run(path, tmp_path / "results").resolve() == run, path
        assert find_runs([path], tmp_path / "results") == [run], path
    other = add_named(tmp_path / "other", "rope", "rope")
    with pytest.raises(UserError, match="is not one of .*: copy it there with `pe-bench import /"):
        find_runs([str(other)], tmp_path / "results")


def test_the_newest_run_is_the_one_that_finished_last_and_runs_are_written_with_what_made_them(
    begin, train, folder
):
    results = folder / "results"
    with pytest.raises(UserError, match="no finished run in"):
        runs_to_score([], [], results, everything=False)
    begin("encoding=rope")
    (folder / "corpus").rename(folder / "moved")
    moved = f"data.path={folder / 'moved'}"
    assert "is already trained" in train("encoding=rope", moved).err, "the text counts, wherever it lies"
    train("encoding=logn", "modifier=[sliding_window]", moved)
    [run] = runs_to_score([], [], results, everything=False)
    config = read_config(run)
    assert config.train.steps == 8 and list(config.encoding["modifiers"]) == ["logn", "sliding_window"]
    write_config(run, config)
    assert read_config(run) == config
    assert len(runs_to_score([], [], results, everything=True)) == 2
