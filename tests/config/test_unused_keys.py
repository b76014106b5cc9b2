"""Keys without effect: those of the text and its tokens are refused, those of scoring are told."""

from dataclasses import replace

import pytest
from support.commands import write_corpus

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.data.packed import load_data
from pe_bench.errors import UserError
from pe_bench.scoring.plans import make_plans


def test_a_key_of_the_text_that_nothing_would_use_is_refused_and_elsewhere_taken():
    for overrides, kinds in [
        (["data.path=x"], "data.source=files or hub"),
        (["data.subset=x", "data=files", "data.path=y"], "data.source=hub"),
        (["data.validation_path=x", "data=pg19"], "data.source=files"),
        (["data.max_tokens=9", "task=copy"], "data.source=stdlib or files or hub"),
        (["tokenizer.vocab_size=300"], "tokenizer.kind=bpe"),
        (["tokenizer.revision=x", "tokenizer=bpe"], "tokenizer.kind=hub"),
    ]:
        with pytest.raises(UserError) as error:
            parse_config(compose(overrides))
        assert f"{overrides[0]} has no effect with " in str(error.value)
        assert str(error.value).endswith(f": remove it, or choose what has {kinds}")
    for overrides in [
        ["data=files", "data.path=x", "data.validation_path=y", "data.text_column=z"],
        ["data=pg19", "data.revision=v1", "data.subset=x", "data.text_column=z"],
        ["data.validation_fraction=0.5", "data.max_tokens=9"],
        ["tokenizer=bpe", "tokenizer.vocab_size=300"],
        ["tokenizer=hub", "tokenizer.name=gpt2", "tokenizer.revision=v1"],
    ]:
        parse_config(compose(overrides))


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
    assert unread == plain.eval.unused.keys()
