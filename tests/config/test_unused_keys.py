"""Keys without effect: which are refused, and which may be left over."""

from dataclasses import replace

import pytest
from support.commands import write_corpus
from support.configurations import choices

from pe_bench.config.checks import obeyed, refuse_unused, unused_keys
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, to_plain
from pe_bench.data.packed import load_data
from pe_bench.errors import UserError
from pe_bench.scoring.plans import make_plans


@pytest.mark.parametrize(
    ("overrides", "used_by"),
    [
        (["data.path=x"], "data=files or a data set of the Hub"),
        (["data.validation_path=x"], "data=files"),
        (["data.subset=x"], "a data set of the Hub"),
        (["data.revision=x"], "a data set of the Hub"),
        (["data.subset=x", "data=files", "data.path=y"], "a data set of the Hub"),
        (["data.validation_path=x", "data=pg19"], "data=files"),
        (["tokenizer.vocab_size=300"], "tokenizer=bpe"),
        (["tokenizer.vocab_size=300", "tokenizer=hub", "tokenizer.name=y"], "tokenizer=bpe"),
        (["tokenizer.name=x"], "tokenizer=hub or tokenizer=file"),
        (["tokenizer.revision=x", "tokenizer=bpe"], "tokenizer=hub"),
    ],
)
def test_a_key_that_nothing_would_use_is_refused_with_what_uses_it(overrides, used_by):
    with pytest.raises(UserError) as error:
        parse_config(compose(overrides))
    assert f"{overrides[0]} has no effect with " in str(error.value)
    assert str(error.value).endswith(f": remove it, or choose {used_by}")


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=files", "data.path=x", "data.validation_path=y"],
        ["data=pg19", "data.revision=v1", "data.subset=x"],
        ["tokenizer=bpe", "tokenizer.vocab_size=300"],
        ["tokenizer=hub", "tokenizer.name=gpt2", "tokenizer.revision=v1"],
        ["tokenizer=file", "tokenizer.name=folder"],
    ],
)
def test_a_key_is_taken_where_it_is_used(overrides):
    parse_config(compose(overrides))


PAIRED, SLIDING, CUT = (f"eval.protocol={name}" for name in ("paired", "sliding", "nonoverlapping"))
BY_POSITION = "eval.per_position=true"
OWN_VALIDATION = ["data=files", "data.path=x", "data.validation_path=y"]


def refusal(*commands):
    """What is said of the overrides of the jobs of one command; None where nothing is."""
    overrides = list(dict.fromkeys(override for overrides in commands for override in overrides))
    try:
        refuse_unused([parse_config(compose(overrides)) for overrides in commands], overrides)
    except UserError as error:
        return str(error)
    return None


SET_SLIDING, SET_PAIRED = f"set {SLIDING}", f"set {PAIRED}"


@pytest.mark.parametrize(
    ("overrides", "used_by"),
    [
        (["eval.stride=32"], SET_SLIDING),
        (["eval.stride=32", CUT], SET_SLIDING),
        (["eval.stride=32", BY_POSITION], SET_SLIDING),
        (["eval.targets=6", SLIDING], SET_PAIRED),
        (["eval.targets=6", CUT], SET_PAIRED),
        (["eval.target_tokens=8", SLIDING], SET_PAIRED),
        (["eval.target_tokens=8", CUT, BY_POSITION], SET_PAIRED),
        (["eval.tokens=100"], f"set {CUT} or {SLIDING} or {BY_POSITION}"),
        (["++eval.tokens=100"], f"set {CUT} or {SLIDING} or {BY_POSITION}"),
        (["data.text_column=body"], "choose data=files or a data set of the Hub"),
        (["data.validation_fraction=0.5", *OWN_VALIDATION], "remove that"),
    ],
)
def test_a_key_of_a_command_that_no_run_would_obey_is_refused_with_what_does(overrides, used_by):
    message = refusal(overrides)
    assert message is not None
    assert message.startswith(f"{overrides[0].lstrip('+')} has no effect with ")
    assert message.endswith(f": remove it, or {used_by}")


def test_a_refused_key_is_told_with_what_was_chosen_in_its_way():
    assert refusal(["eval.stride=32"]) == (
        "eval.stride=32 has no effect with eval.protocol=paired: remove it, or set eval.protocol=sliding"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["eval.stride=32", SLIDING],
        ["eval.targets=6", "eval.target_tokens=8"],
        ["eval.tokens=100", SLIDING],
        ["eval.tokens=100", CUT],
        ["eval.tokens=100", BY_POSITION],
        ["eval.tokens=100", BY_POSITION, PAIRED],
        ["eval.controls=none", SLIDING],
        ["eval.targets=128", SLIDING],
        ["data.text_column=body", "data=files", "data.path=x"],
        ["data.text_column=body", "data=pg19"],
        ["data.validation_fraction=0.5"],
    ],
)
def test_a_key_of_a_command_that_is_obeyed_or_as_usual_is_taken(overrides):
    assert refusal(overrides) is None


@pytest.mark.parametrize("protocol", [PAIRED, SLIDING, CUT])
def test_what_an_experiment_sets_for_another_protocol_is_not_refused(protocol):
    for name in choices("experiment"):
        assert (
            refusal([f"experiment={name}", protocol, *(["train.from=x"] if name == "drope" else [])]) is None
        )


def test_a_sweep_may_hold_the_keys_of_each_of_its_protocols_and_no_others():
    of_both = ["eval.stride=4", "eval.targets=6"]
    assert refusal([*of_both, PAIRED], [*of_both, SLIDING]) is None
    assert "eval.stride=4 has no effect" in str(refusal([*of_both, PAIRED], [*of_both, CUT]))
    assert "eval.targets=6 has" in str(refusal(["eval.targets=128", CUT], ["eval.targets=6", CUT]))


@pytest.mark.parametrize("protocol", [PAIRED, SLIDING, CUT])
def test_the_overrides_of_a_job_that_are_obeyed_are_those_that_are_not_refused(protocol):
    overrides = [protocol, "seed=1", "+eval.stride=4", "eval.targets=6", "eval.tokens=100"]
    config = parse_config(compose(overrides))
    taken = obeyed(overrides, config.data, config.eval)
    assert parse_config(compose(taken)).eval.protocol == config.eval.protocol
    assert refusal(taken) is None
    for override in set(overrides) - set(taken):
        assert f"{override.lstrip('+')} has no effect" in str(refusal([*taken, override]))


def test_a_configuration_that_is_read_again_may_hold_keys_of_another_protocol():
    config = parse_config(compose(["eval.stride=4", "eval.targets=6", "eval.tokens=100", SLIDING]))
    for protocol in ("paired", "sliding", "nonoverlapping"):
        values = to_plain(config)
        values["eval"]["protocol"] = protocol
        assert parse_config(values).eval.stride == 4


@pytest.mark.parametrize("protocol", [PAIRED, SLIDING, CUT])
@pytest.mark.parametrize("positions", [[], [BY_POSITION]], ids=["whole", "positions"])
def test_the_keys_that_are_refused_are_those_that_scoring_does_not_read(tmp_path, protocol, positions):
    """Plans are the same, whatever the value of a key that is unused, and others for every other key."""
    overrides = [protocol, *positions, "train.length=16", "train.batch_tokens=64", "eval.lengths=[64]"]
    plain = parse_config(compose([*overrides, "eval.max_length=64", "eval.tokens=4000"]))
    source = replace(plain.data, source="files", path=str(write_corpus(tmp_path / "corpus")))
    data = load_data(source, plain.tokenizer, str(tmp_path / "cache"))
    changes = {"targets": 6, "target_tokens": 4, "stride": 3, "tokens": 900}

    def plans(evaluation):
        return [(plan.length, plan.windows) for plan in make_plans(plain, evaluation, data)]

    unread = {
        f"eval.{key}"
        for key, value in changes.items()
        if plans(replace(plain.eval, **{key: value})) == plans(plain.eval)
    }
    assert unread == {key for key in unused_keys(plain.data, plain.eval) if key.startswith("eval.")}
