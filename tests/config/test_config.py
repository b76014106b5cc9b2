"""Types, defaults and checks of a configuration."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import yaml
from support.configurations import choices
from support.encodings import one_of_a_kind

from pe_bench.config.compose import compose
from pe_bench.config.groups import GROUPS, config_dir, keys
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import KEYS, SECTIONS, Config, keys_of_sections
from pe_bench.errors import RunError, UserError, first_line
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
    assert listed.keys() == {*GROUPS, *single, *inside} and all(key.meaning for key in listed.values())
    file = yaml.safe_load((config_dir() / "train.yaml").read_text(encoding="utf-8"))
    defaults = [entry for entry in file["defaults"] if isinstance(entry, dict)]
    chosen = {name: value for entry in defaults for name, value in entry.items()}
    for name, key in listed.items():
        section, dot, last = name.rpartition(".")
        value = chosen[last] if name in GROUPS else (file[section] if dot else file)[last]
        assert yaml.safe_load(key.default) == value, key


@pytest.mark.parametrize("group", ["model", "data", "task", "tokenizer", "encoding", "experiment"])
def test_every_shipped_file_composes_and_parses(group: str) -> None:
    needed = {
        "files": "data.path=x",
        "hub": "tokenizer.name=x",
        "file": "tokenizer.name=x",
        "task": "task=majority",
        "drope": "train.from=x",
    }
    for name in choices(group):
        parse_config(compose([f"{group}={name}", *([needed[name]] if name in needed else [])]))


@pytest.mark.parametrize("encoding", one_of_a_kind(choices("encoding")))
def test_every_modifier_composes_on_every_encoding(encoding: str) -> None:
    modifiers = choices("modifier")
    config = parse_config(compose([f"encoding={encoding}", f"modifier=[{','.join(modifiers)}]"]))
    assert set(modifiers) <= set(config.encoding["modifiers"])


def test_parsing_what_was_written_gives_the_same_configuration() -> None:
    short = parse_config(compose(["precision=bf16", "eval.precision=fp32"]))
    assert (short.precision, short.eval.precision) == ("bfloat16", "float32")
    config = parse_config(compose(["encoding=logn", "train.steps=7", "eval.lengths=[64,128]"]))
    assert parse_config(to_plain(config)) == config


def test_an_unknown_word_is_answered_with_the_closest_or_with_all() -> None:
    names = ["rope", "alibi", "train.length", "train.tokens", "eval.tokens", "train.lr"]
    for word, answer in [
        ("ropee", "did you mean 'rope'?"),
        ("lr", "did you mean 'train.lr'?"),
        ("lenght", "did you mean 'train.length'?"),
        ("tokns", "did you mean 'eval.tokens' or 'train.tokens'?"),
        ("xyz", "there are: alibi, rope"),
        ("train.xyz", "there are: train.length, train.lr, train.tokens"),
    ]:
        assert unknown(word, "key", names) == f"unknown key '{word}': {answer}"


def test_a_tilde_in_a_path_is_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({**NOPE, "modifiers": 3}, "encoding.modifiers must be dict, not 3"),
        ({**NOPE, "modifiers": {"../x": NOPE}}, "a modifier's name must be letters, .*not '../x'"),
        ({**NOPE, "modifiers": {"x": 3}}, "encoding.modifiers.x.class must be text .* not null"),
        ({**NOPE, "global": {"class": ""}}, "encoding.global.class must be text .* not ''"),
    ],
)
def test_an_encoding_needs_a_name_that_fits_a_folder_and_a_class(encoding: Any, message: str) -> None:
    parse_config({"encoding": {**NOPE, "modifiers": {"logn+2.b_c-d": NOPE}}})
    with pytest.raises(UserError, match=message):
        parse_config({"encoding": encoding})


def test_an_error_is_one_line_in_plain_words() -> None:
    for error, line in [
        (NotADirectoryError(20, "Not a directory", "afile/runs"), "afile/runs: not a directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("told by a library"), "told by a library"),
        (RunError("\n first \n second"), "first"),
        (KeyError(), "KeyError"),
    ]:
        assert first_line(error) == line


def test_values_are_converted_to_their_type_or_named_with_the_type_they_need() -> None:
    for value, kind, result in [
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        (123, str, "123"),
        (None, int | None, None),
        (4, int | None, 4),
        (5, str | int, 5),
        ("auto", str | int, "auto"),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        ("a", Literal["a", "b"], "a"),
        (True, bool, True),
    ]:
        converted = check_type(value, kind, "key")
        assert converted == result and type(converted) is type(result)
    for value, kind, described in [
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (float("nan"), int, "a whole number"),
        (float("inf"), float, "a number"),
        (2**63, int, "a whole number"),
        ("1", float, "a number"),
        (1, bool, "true or false"),
        ([1, "x"], list[int], "a list, each a whole number"),
        (2, list[int] | None, "a list, each a whole number or null, not 2: write key=[2]"),
        ("c", list[int] | None, "a list, each a whole number or null, not 'c'"),
        ([1.0], tuple[float, float], "a list of a number and a number"),
        ("c", Literal["a", "b"], "one of a, b"),
        ({}, int | None, "a whole number or null"),
        (10**400, float, "a number"),
    ]:
        with pytest.raises(UserError, match="key must be .*not ") as error:
            check_type(value, kind, "key")
        assert described in str(error.value) and repr(value)[:60] in str(error.value)
        assert len(str(error.value)) < 120 and "write key=[c]" not in str(error.value)


def test_lengths_and_steps_follow_from_the_rest() -> None:
    config = parse_config(compose(["train.length=64", "train.batch_tokens=1024"]))
    assert config.eval.resolved_lengths(64) == [16, 32, 64, 66, 72, 80, 96, 128, 256, 512, 1024]
    assert (config.eval.resolved_max_length(64), config.eval.resolved_target_tokens(64)) == (1024, 64)
    for protocol, shortest in (("paired", 2), ("sliding", 1), ("nonoverlapping", 1)):
        evaluation = replace(config.eval, protocol=protocol)
        for length in (2, 3, 4, 5, 8, 16, 64):
            lengths = evaluation.resolved_lengths(length)
            assert {length, 16 * length} <= set(lengths) and lengths == sorted(set(lengths))
            assert lengths[0] >= shortest
    config = parse_config(compose(["eval.lengths=[256,64]"]))
    assert config.eval.resolved_lengths(128) == [64, 128, 256]
    for overrides, steps in (([], 1_000), (["train.tokens=10000"], 10), (["train.steps=7"], 7)):
        assert parse_config(compose(overrides)).train.total_steps == steps


def test_lengths_are_positive_whole_numbers_with_commas_between() -> None:
    assert parse_lengths("512, 2048") == [512, 2048]
    for text in ("x", "1.5", "-3", "0", "512,,1024", "", "1e3"):
        with pytest.raises(UserError, match="positive whole numbers"):
            parse_lengths(text)
