"""Types, defaults and checks of a configuration; the keys that a run does not read."""

import re
from dataclasses import replace
from typing import Any, Literal

import pytest
import yaml
from support.commands import write_corpus
from support.encodings import one_of_a_kind

from pe_bench.config.compose import compose
from pe_bench.config.groups import GROUPS, config_dir, keys, names_in
from pe_bench.config.parse import parse_config, to_plain, unused_keys, warn_unused
from pe_bench.config.schema import KEYS, SECTIONS, Config, keys_of_sections, quarter_of
from pe_bench.data.packed import load_data
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.scoring.plans import make_plans
from pe_bench.values import check_type, parse_lengths, unknown


def test_the_yaml_files_have_every_key_of_the_schemas_with_its_default_and_meaning() -> None:
    composed = parse_config(compose(["encoding=nope"]))
    assert replace(composed, encoding={}) == Config(encoding={})
    values, plain = compose([]), to_plain(Config(encoding={}))
    assert all(values[section].keys() == plain[section].keys() for section in SECTIONS)
    assert values.keys() - {"encoding"} == plain.keys() - {"encoding"}
    single = {*KEYS} - {*SECTIONS, *GROUPS}
    inside = {key for key in keys_of_sections() if key.partition(".")[0] not in GROUPS}
    listed = {key.name: key for key in keys()}
    of_groups = {name for name in listed if name.startswith(("model.", "data."))}
    sizes = {key for key in keys_of_sections() if key.startswith(("model.", "data."))}
    assert of_groups == sizes - {"model.name", "data.name"}
    assert not any("$" in listed[name].default for name in of_groups)
    assert listed.keys() == {*GROUPS, *single, *inside, *of_groups}
    assert all(key.meaning for key in listed.values())
    listed = {name: key for name, key in listed.items() if name not in of_groups}
    file = yaml.safe_load((config_dir() / "train.yaml").read_text(encoding="utf-8"))
    chosen = {name: value for entry in file["defaults"] if entry != "_self_" for name, value in entry.items()}
    for name, key in listed.items():
        section, dot, last = name.rpartition(".")
        value = chosen[last] if name in GROUPS else (file[section] if dot else file)[last]
        assert yaml.safe_load(key.default) == value, key


@pytest.mark.parametrize("group", ["model", "data", "task", "tokenizer", "experiment"])
def test_every_shipped_file_composes_and_parses(group: str) -> None:
    needed = {"files": "data.path=x", "task": "task=majority", "drope": "train.from=x"}
    needed |= dict.fromkeys(("hub", "file"), "tokenizer.name=x")
    for name in names_in(group):
        parse_config(compose([f"{group}={name}", *([needed[name]] if name in needed else [])]))


@pytest.mark.parametrize("encoding", one_of_a_kind(names_in("encoding")))
def test_every_modifier_composes_on_every_encoding(encoding: str) -> None:
    modifiers = names_in("modifier")
    config = parse_config(compose([f"encoding={encoding}", f"modifier=[{','.join(modifiers)}]"]))
    assert set(modifiers) <= set(config.encoding["modifiers"])


def test_an_unknown_word_is_answered_with_the_closest_or_with_all() -> None:
    names = ["rope", "alibi", "train.length", "train.tokens", "eval.tokens", "train.lr"]
    for word, answer in [
        ("ropee", "did you mean 'rope'?"),
        ("lr", "did you mean 'train.lr'?"),
        ("lenght", "did you mean 'train.length'?"),
        ("train_length", "did you mean 'train.length'?"),
        ("tokns", "did you mean 'eval.tokens' or 'train.tokens'?"),
        ("train.xyz", "there are: train.length, train.lr, train.tokens"),
    ]:
        assert unknown(word, "key", names) == f"unknown key '{word}': {answer}"


NOPE = {"name": "nope", "class": "pe_bench.encodings.nope:NoPE"}


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"name": "x"}, "encoding.class must be text .* not null"),
        ({**NOPE, "name": "a/b"}, "encoding.name must be letters, .*not 'a/b'"),
        ({**NOPE, "modifiers": {"../x": NOPE}}, "a modifier's name must be letters, .*not '../x'"),
    ],
)
def test_an_encoding_needs_a_name_that_fits_a_folder_and_a_class(encoding: Any, message: str) -> None:
    parse_config({"encoding": {**NOPE, "modifiers": {"logn+2.b_c-d": NOPE}}})
    with pytest.raises(UserError, match=message):
        parse_config({"encoding": encoding})


def test_values_from_a_file_have_the_keys_of_the_schema_alone() -> None:
    for values, message in (
        ({"sead": 1}, "unknown key 'sead': did you mean 'seed'?"),
        ({"train": {"lenght": 8}}, "unknown key 'train.lenght': did you mean 'train.length'?"),
        ({"train": 3}, "train is a group of keys and cannot be 3: say train.length=VALUE"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
            parse_config({"encoding": NOPE, **values})


def test_a_tilde_in_a_path_is_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = parse_config(compose(["data=files", 'data.path="~/a"', 'cache_dir="~/c"']))
    assert (config.data.path, config.cache_dir) == ("/home/someone/a", "/home/someone/c")


def test_an_error_is_one_line_in_plain_words() -> None:
    for error, line in [
        (NotADirectoryError(20, "Not a directory", "afile/runs"), "afile/runs: not a directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RunError("\n first \n second"), "first"),
    ]:
        assert first_line(error) == line


def test_values_are_converted_to_their_type_or_named_with_the_type_they_need() -> None:
    for value, kind, result in [
        (1e6, int, 1_000_000),
        (123, str, "123"),
        (None, int | None, None),
        (5, str | int, 5),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        (True, bool, True),
    ]:
        converted = check_type(value, kind, "key")
        assert converted == result and type(converted) is type(result)
    for value, kind, described in [
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (float("inf"), float, "a number"),
        (1, bool, "true or false"),
        ([1, "x"], list[int], "a list, each item a whole number"),
        ("c", list[int] | None, "a list, each item a whole number or null, not 'c'"),
        ([1.0], tuple[float, float], "a list of a number and a number"),
        ("c", Literal["a", "b"], "one of a, b"),
        (10**400, float, "a number"),
    ]:
        with pytest.raises(UserError, match="key must be .*not ") as error:
            check_type(value, kind, "key")
        assert described in str(error.value) and repr(value)[:60] in str(error.value)
        assert len(str(error.value)) < 120


def test_lengths_and_steps_follow_from_the_rest() -> None:
    config = parse_config(compose(["train.length=64", "train.batch_tokens=1024"]))
    assert config.eval.resolved_lengths(64) == [16, 32, 64, 66, 72, 80, 96, 128, 256, 512, 1024]
    assert (config.eval.resolved_max_length(64), config.eval.resolved_target_tokens(64)) == (1024, 64)
    for protocol, shortest in (("paired", 2), ("sliding", 1), ("nonoverlapping", 1)):
        evaluation = replace(config.eval, protocol=protocol)
        for length in (2, 3, 5, 64):
            lengths = evaluation.resolved_lengths(length)
            assert {length, 16 * length} <= {*lengths} and lengths == sorted({*lengths})
            assert lengths[0] >= shortest
    assert replace(config.eval, lengths=[256, 64]).resolved_lengths(128) == [64, 128, 256]
    # A later stage also scores the quarter that reports judge its use of context from.
    later = replace(config.eval, lengths=[300], first_length=64)
    assert later.resolved_lengths(150) == [quarter_of(150), 64, 150, 300] == [38, 64, 150, 300]
    for overrides, steps in (([], 1_000), (["train.tokens=10000"], 10), (["train.steps=7"], 7)):
        assert parse_config(compose(overrides)).train.total_steps == steps
    assert parse_lengths("512, 2048") == [512, 2048]
    for text in ("x", "1.5", "-3", "0", "512,,1024", "", "1e3"):
        with pytest.raises(UserError, match="positive whole numbers"):
            parse_lengths(text)


# After the arrow: why the first key has no effect, or nothing if no warning is printed.
COMMANDS = """
data.text_column=x -> data.source=stdlib: it is for files or hub
data.subset=x data=files data.path=y -> data.source=files: it is for hub
data.max_tokens=9 task=copy -> data.source=task: it is for stdlib or files or hub
tokenizer.vocab_size=300 -> tokenizer.kind=bytes: it is for bpe
train.tokens=9 train.steps=3 -> train.steps=3
eval.controls=all eval.protocol=sliding -> eval.protocol=sliding: it is for paired
eval.tokens=9 -> eval.protocol=paired: it is for nonoverlapping, sliding or by position
eval.tokens=9 eval.per_position=true ->
eval.tokens=9 eval.protocol=sliding ->
data.validation_fraction=0.5 data.validation_path=y data=files data.path=x -> data.validation_path=y
data.validation_path=y data=files data.path=x data.text_column=z ->
data.validation_fraction=0.5 data.max_tokens=9 tokenizer.vocab_size=300 tokenizer=bpe ->
"""


@pytest.mark.parametrize("case", COMMANDS.strip().splitlines())
def test_a_key_that_nothing_reads_is_told_and_no_other(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, why = case.split(" ->")[0].split(), case.partition(" -> ")[2]
    keys = [text.partition("=")[0] for text in overrides]
    warn_unused([parse_config(compose(overrides))], keys)
    assert capsys.readouterr().err == (f"warning: {keys[0]} has no effect with {why}\n" if why else "")


def test_a_key_that_one_of_several_runs_reads_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    paired, sliding = (parse_config(compose([f"eval.protocol={name}"])) for name in ("paired", "sliding"))
    warn_unused([paired, sliding], ["eval.stride", "eval.controls"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("protocol", ["paired", "sliding", "nonoverlapping"])
def test_the_keys_that_are_told_are_those_that_scoring_does_not_read(tmp_path, protocol) -> None:
    """Plans are the same, whatever the value of a key that is unused, and others for every other key."""
    overrides = [f"eval.protocol={protocol}", "train.length=16", "train.batch_tokens=64"]
    plain = parse_config(compose([*overrides, "eval.lengths=[64]", "eval.max_length=64", "eval.tokens=4000"]))
    source = replace(plain.data, source="files", path=str(write_corpus(tmp_path / "corpus")))
    data = load_data(replace(plain, data=source, cache_dir=str(tmp_path / "cache")))

    def plans(**changes: int):
        evaluation = replace(plain.eval, **changes)
        return [(plan.length, plan.windows) for plan in make_plans(plain, evaluation, data)]

    changes = {"targets": 6, "target_tokens": 4, "stride": 3, "tokens": 700}
    unread = {f"eval.{key}" for key, value in changes.items() if plans(**{key: value}) == plans()}
    assert unread == unused_keys(plain).keys() & {f"eval.{key}" for key in changes}


@pytest.mark.parametrize(
    ("overrides", "d_ff"),
    [
        ([], 344),
        (["model.d_model=96"], 256),
        (["model.d_model=96", "model.d_ff=344"], 344),
        (["model=small", "model.d_model=128"], 344),
        (["model=gpt2", "model.d_model=24", "model.n_heads=2"], 64),
    ],
)
def test_the_mlp_follows_a_changed_width_unless_it_is_set(overrides: list[str], d_ff: int) -> None:
    assert parse_config(compose(overrides)).model.d_ff == d_ff


def test_a_model_may_be_a_file_of_the_users(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("d_model: 96\nn_layers: 2\nn_heads: 3\n")
    for typed in ("mine.yaml", str(tmp_path / "mine.yaml")):
        model = parse_config(compose([f"model={typed}", "model.n_layers=1"])).model
        sizes = (model.d_model, model.n_layers, model.n_kv_heads, model.d_head, model.d_ff)
        assert (model.name, sizes) == ("mine", (96, 1, 3, 32, 256))
    (tmp_path / "wrong.yaml").write_text("width: 96\n")
    with pytest.raises(UserError, match=r"unknown key 'model\.width'"):
        compose(["model=wrong.yaml"])
    (tmp_path / "list.yaml").write_text("- 96\n")
    with pytest.raises(UserError, match=r"model=list\.yaml must hold keys such as d_model: 96, one a line"):
        compose(["model=list.yaml"])
    with pytest.raises(UserError, match=r"model=nowhere\.yaml: there is no such file"):
        compose(["model=nowhere.yaml"])


@pytest.mark.parametrize(
    ("text", "tokens"), [("128k", 128_000), ("1M", 1_000_000), ("1.5M", 1_500_000), ("0.5k", 500)]
)
def test_counts_of_tokens_are_read_with_k_and_m(text: str, tokens: int) -> None:
    config = parse_config(
        compose([f"train.tokens={text}", f"eval.tokens='{text}'", f"data.max_tokens={text}"])
    )
    assert (config.train.tokens, config.eval.tokens, config.data.max_tokens) == (tokens, tokens, tokens)
    for wrong in (f"train.length={text}", "train.tokens=1.00005k", "train.tokens=1G"):
        with pytest.raises(UserError, match="must be a whole number"):
            parse_config(compose([wrong]))


@pytest.mark.parametrize("task", [{}, {"symbols": 5}])
def test_a_task_without_a_name_is_refused_in_one_line(task: dict[str, int]) -> None:
    with pytest.raises(UserError, match="do not fit task=null: say task=NAME"):
        parse_config({**compose([]), "task": task})
