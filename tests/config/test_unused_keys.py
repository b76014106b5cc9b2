"""Keys without effect are told."""

from dataclasses import replace

import pytest
from support.commands import write_corpus

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, unused_keys, warn_unused
from pe_bench.data.packed import load_data
from pe_bench.scoring.plans import make_plans


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["data.text_column=x"], "data.source=stdlib: it is for files or hub"),
        (["data.subset=x", "data=files", "data.path=y"], "data.source=files: it is for hub"),
        (["data.validation_path=x", "data=pg19"], "data.source=hub: it is for files"),
        (["data.max_tokens=9", "task=copy"], "data.source=task: it is for stdlib or files or hub"),
        (["tokenizer.vocab_size=300"], "tokenizer.kind=bytes: it is for bpe"),
        (["tokenizer=bpe", "task=copy"], "data.source=task: it is for stdlib or files or hub"),
        (["eval.controls=all", "task=copy"], "eval.protocol=task: it is for paired"),
        (["tokenizer.revision=x", "tokenizer=bpe"], "tokenizer.kind=bpe: it is for hub"),
        (["train.tokens=9", "train.steps=3"], "train.steps=3"),
        (
            ["data.validation_fraction=0.5", "data=files", "data.path=x", "data.validation_path=y"],
            "data.valid",
        ),
        (["eval.controls=all", "eval.protocol=sliding"], "eval.protocol=sliding: it is for paired"),
        (["data.validation_path=y", "data=files", "data.path=x", "data.text_column=z"], ""),
        (["data.subset=x", "data=pg19", "data.revision=v1", "data.text_column=z"], ""),
        (["data.validation_fraction=0.5", "data.max_tokens=9"], ""),
        (["tokenizer.vocab_size=300", "tokenizer=bpe"], ""),
        (["tokenizer.revision=v1", "tokenizer=hub", "tokenizer.name=gpt2"], ""),
    ],
)
def test_a_key_that_nothing_reads_is_told_and_no_other(overrides, why, capsys):
    warn_unused([parse_config(compose(overrides))], [text.partition("=")[0] for text in overrides])
    told = capsys.readouterr().err
    assert (
        told.startswith(f"warning: {overrides[0].partition('=')[0]} has no effect with {why}")
        if why
        else not told
    )
    assert told.count("\n") == bool(why)


@pytest.mark.parametrize("protocol", ["paired", "sliding", "nonoverlapping"])
@pytest.mark.parametrize("positions", [[], ["eval.per_position=true"]], ids=["whole", "positions"])
def test_the_keys_that_are_told_are_those_that_scoring_does_not_read(tmp_path, protocol, positions):
    """Plans are the same, whatever the value of a key that is unused, and others for every other key."""
    overrides = [f"eval.protocol={protocol}", *positions, "train.length=16", "train.batch_tokens=64"]
    plain = parse_config(compose([*overrides, "eval.lengths=[64]", "eval.max_length=64", "eval.tokens=4000"]))
    source = replace(plain.data, source="files", path=str(write_corpus(tmp_path / "corpus")))
    data = load_data(source, plain.tokenizer, str(tmp_path / "cache"))
    changes = {"targets": 6, "target_tokens": 4, "stride": 3, "tokens": 900}

    def plans(evaluation):
        return [(plan.length, plan.windows) for plan in make_plans(plain, evaluation, data)]

    unread = {
        key
        for key, value in changes.items()
        if plans(replace(plain.eval, **{key: value})) == plans(plain.eval)
    }
    assert {f"eval.{key}" for key in unread} == unused_keys(plain).keys() & {f"eval.{key}" for key in changes}
