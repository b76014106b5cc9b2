"""Types, defaults and checks of a configuration."""

from dataclasses import replace
from typing import Literal

import pytest
from support.configurations import choices
from support.encodings import one_of_a_kind

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import SECTIONS, Config
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.values import check_type, parse_lengths, unknown


def test_the_yaml_files_say_the_defaults_of_the_schemas():
    composed = parse_config(compose(["encoding=nope"]))
    assert replace(composed, encoding={}) == Config(encoding={})


def test_every_key_of_the_schemas_stands_in_the_yaml_files():
    values = compose([])
    plain = to_plain(Config(encoding={}))
    for section in SECTIONS:
        assert values[section].keys() == plain[section].keys()
    assert values.keys() - {"encoding"} == plain.keys() - {"encoding"}


@pytest.mark.parametrize("group", ["model", "data", "task", "tokenizer", "encoding", "experiment"])
def test_every_shipped_file_composes_and_parses(group):
    for name in choices(group):
        needed = {
            "files": ["data.path=x"],
            "hub": ["tokenizer.name=x"],
            "file": ["tokenizer.name=x"],
            "task": ["task=majority"],
            "drope": ["train.from=x"],
        }
        parse_config(compose([f"{group}={name}", *needed.get(name, [])]))


@pytest.mark.parametrize("encoding", one_of_a_kind(choices("encoding")))
def test_every_modifier_composes_on_every_encoding(encoding):
    modifiers = choices("modifier")
    config = parse_config(compose([f"encoding={encoding}", f"modifier=[{','.join(modifiers)}]"]))
    assert set(modifiers) <= set(config.encoding["modifiers"])


def test_parsing_what_was_written_gives_the_same_configuration():
    short = parse_config(compose(["precision=bf16", "eval.precision=fp32"]))
    assert (short.precision, short.eval.precision) == ("bfloat16", "float32")
    config = parse_config(compose(["encoding=logn", "train.steps=7", "eval.lengths=[64,128]"]))
    assert parse_config(to_plain(config)) == config


def test_an_unknown_override_is_answered_with_the_closest_or_with_all():
    assert unknown("ropee", "encoding", ["rope", "alibi"]) == "unknown encoding 'ropee': did you mean 'rope'?"
    assert unknown("lr", "key", ["train.lr", "seed"]).endswith("did you mean 'train.lr'?")
    keys = ["train.length", "train.tokens", "eval.tokens", "seed"]
    assert unknown("lenght", "key", keys).endswith("did you mean 'train.length'?")
    assert unknown("tokns", "key", keys).endswith("did you mean 'eval.tokens' or 'train.tokens'?")
    assert unknown("xyz", "encoding", ["rope", "alibi"]) == "unknown encoding 'xyz': there are: alibi, rope"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.n_kv_heads=3", "n_heads=4 is not divisible by model.n_kv_heads=3"),
        ("model.d_model=130", "d_model=130 is not divisible by model.n_heads=4"),
        ("model.n_heads=3", "model.d_model=128 is not divisible by model.n_heads=3"),
        ("data.path=x", "data.path=x is not read with data=stdlib: say data=files"),
        ("model.n_layers=0", "model.n_layers must be a whole number of at least 1, not 0"),
        ("train.length=1", "train.length must be a whole number of at least 2, not 1"),
        ("train.batch_tokens=4000", "train.batch_tokens=4000 is not a multiple of train.length=128"),
        ("train.micro_batches=5", "train.micro_batches=5 does not divide the 8 windows"),
        ("train.final_lr=2", "train.final_lr must be a number of at least 0 and at most 1, not 2"),
        ("train.betas=[0.9,1]", "train.betas must be below 1"),
        ("train.warmup_steps=-1", "must be a whole number of at least 0, not -1"),
        ("train.lr=0", "train.lr must be a number above 0, not 0"),
        ("train.steps=0", "train.steps must be a whole number of at least 1, not 0"),
        ("eval.lengths=[]", "eval.lengths is empty"),
        ("eval.lengths=[0]", "each a whole number of at least 1 or null, not [0]"),
        ("eval.lengths=[1]", "length 1 is too short for eval.protocol=paired: choose 2 tokens or more"),
        (
            "eval.lengths=256",
            "a list, each a whole number of at least 1 or null, not 256: write eval.lengths=[256]",
        ),
        ("experiment=drope", "give train.from=RUN"),
        ("eval.targets=0", "eval.targets must be a whole number of at least 1, not 0"),
        ("seed=-1", "seed must be a whole number of at least 0, not -1"),
        ("threads=zero", "threads must be one of auto or a whole number of at least 1"),
        ("data.validation_fraction=1.5", "must be a number above 0 and at most 1, not 1.5"),
        ("data=files", "say data.path=DIR"),
        ("data.max_tokens=0", "data.max_tokens must be a whole number of at least 1 or null, not 0"),
        ("data.encoding=latin-x", "data.encoding=latin-x is no encoding of text"),
        ("threads=1025", "at most 1024, not 1025"),
        ("train.from=", "train.from is empty"),
        ("data.name=", "data.name is empty"),
        ("tokenizer=hub", "say tokenizer.name=gpt2"),
        ("precision=fp8", "precision must be one of auto, float32, bfloat16, not 'fp8'"),
        ("eval.precision=auto", "eval.precision must be one of float32, bfloat16, not 'auto'"),
        ("eval.precision=[bf16]", "eval.precision must be one of float32, bfloat16, not ['bf16']"),
    ],
)
def test_what_cannot_work_is_told_with_its_value_and_the_way_out(override, message):
    with pytest.raises(UserError) as error:
        parse_config(compose([override]))
    assert message in str(error.value)


def test_a_tilde_in_a_path_is_the_users_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    values = compose(["data=files", 'data.path="~/a"', 'data.validation_path="~/b"', 'cache_dir="~/c"'])
    config = parse_config({**values, "results_dir": "~"})
    assert (config.data.path, config.data.validation_path) == ("/home/someone/a", "/home/someone/b")
    assert (config.cache_dir, config.results_dir) == ("/home/someone/c", "/home/someone")


NOPE = {"name": "nope", "class": "pe_bench.encodings.nope:NoPE"}


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"name": "x"}, "encoding.class must be text .* not null"),
        ({"name": "x", "class": 3}, "encoding.class must be text .* not 3"),
        ({"class": "a:B"}, "encoding.name must be letters"),
        ({**NOPE, "name": "a/b"}, "encoding.name must be letters, .*not 'a/b'"),
        ({**NOPE, "name": ""}, "encoding.name must be letters, .*not ''"),
        ({**NOPE, "modifiers": 3}, "encoding.modifiers must be dict, not 3"),
        ({**NOPE, "modifiers": {"../x": NOPE}}, "a modifier's name must be letters, .*not '../x'"),
        ({**NOPE, "modifiers": {"x": 3}}, "encoding.modifiers.x.class must be text .* not null"),
        ({**NOPE, "modifiers": {"x": {}}}, "encoding.modifiers.x.class must be text .* not null"),
    ],
)
def test_an_encoding_needs_a_name_that_fits_a_folder_and_a_class(encoding, message):
    parse_config({"encoding": {**NOPE, "modifiers": {"logn+2.b_c-d": NOPE}}})
    with pytest.raises(UserError, match=message):
        parse_config({"encoding": encoding})


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotADirectoryError(20, "Not a directory", "afile/runs"), "afile/runs: not a directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("told by a library"), "told by a library"),
        (RunError("\n first \n second"), "first"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_error_is_one_line_in_plain_words(error, line):
    assert first_line(error) == line


def test_values_are_converted_to_their_type_or_named_with_the_type_they_need():
    for value, kind, result in [
        (3, int, 3),
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        ("x", str, "x"),
        (123, str, "123"),
        (None, int | None, None),
        (4, int | None, 4),
        (5, str | int, 5),
        ("auto", str | int, "auto"),
        ([1, 2], list[int], [1, 2]),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        ("a", Literal["a", "b"], "a"),
        (True, bool, True),
    ]:
        converted = check_type(value, kind, "key")
        assert converted == result and type(converted) is type(result)
    for value, kind, described in [
        ("x", int, "a whole number"),
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (float("nan"), int, "a whole number"),
        (float("inf"), float, "a number"),
        (2**63, int, "a whole number"),
        ("1", float, "a number"),
        (1, bool, "true or false"),
        ([1, "x"], list[int], "a list, each a whole number"),
        ([1.0], tuple[float, float], "a list of a number and a number"),
        ("c", Literal["a", "b"], "one of a, b"),
        ({}, int | None, "a whole number or null"),
        (10**400, float, "a number"),
    ]:
        with pytest.raises(UserError, match="key must be .*not ") as error:
            check_type(value, kind, "key")
        assert described in str(error.value) and repr(value)[:60] in str(error.value)
        assert len(str(error.value)) < 120


def test_default_lengths_are_multiples_of_the_training_length_that_can_all_be_scored():
    config = parse_config(compose(["train.length=64", "train.batch_tokens=1024"]))
    assert config.eval.resolved_lengths(64) == [16, 32, 64, 66, 72, 80, 96, 128, 256, 512, 1024]
    assert config.eval.resolved_max_length(64) == 1024
    assert config.eval.resolved_target_tokens(64) == 64
    for protocol, shortest in (("paired", 2), ("sliding", 1), ("nonoverlapping", 1)):
        evaluation = replace(config.eval, protocol=protocol)
        for length in (2, 3, 4, 5, 8, 16, 64):
            lengths = evaluation.resolved_lengths(length)
            assert {length, 16 * length} <= set(lengths) and lengths == sorted(set(lengths))
            assert lengths[0] >= shortest
    config = parse_config(compose(["eval.lengths=[256,64]"]))
    assert config.eval.resolved_lengths(128) == [64, 128, 256]


def test_steps_win_over_tokens_and_else_follow_from_them():
    for overrides, steps in (([], 1_000), (["train.tokens=10000"], 10), (["train.steps=7"], 7)):
        assert parse_config(compose(overrides)).train.total_steps == steps


def test_lengths_are_positive_whole_numbers_with_commas_between():
    assert parse_lengths("512, 2048") == [512, 2048]
    for text in ("x", "1.5", "-3", "0", "512,,1024", "", "1e3"):
        with pytest.raises(UserError, match="positive whole numbers"):
            parse_lengths(text)
