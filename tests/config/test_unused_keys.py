"""Keys without effect are told."""

from dataclasses import replace

import pytest
from support.commands import write_corpus

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, unused_keys, warn_unused
from pe_bench.data.packed import load_data
from pe_bench.scoring.plans import make_plans

# After the arrow: why the first key has no effect, or nothing if no warning is printed.
COMMANDS = """
data.text_column=x -> data.source=stdlib: it is for files or hub
data.subset=x data=files data.path=y -> data.source=files: it is for hub
data.validation_path=x data=pg19 -> data.source=hub: it is for files
data.max_tokens=9 task=copy -> data.source=task: it is for stdlib or files or hub
tokenizer.vocab_size=300 -> tokenizer.kind=bytes: it is for bpe
tokenizer=bpe task=copy -> data.source=task: it is for stdlib or files or hub
tokenizer.revision=x tokenizer=bpe -> tokenizer.kind=bpe: it is for hub
train.tokens=9 train.steps=3 -> train.steps=3
data.validation_fraction=0.5 data=files data.path=x data.validation_path=y -> data.validation_path
eval.controls=all eval.protocol=sliding -> eval.protocol=sliding: it is for paired
data.validation_path=y data=files data.path=x data.text_column=z ->
data.subset=x data=pg19 data.revision=v1 data.text_column=z ->
data.validation_fraction=0.5 data.max_tokens=9 tokenizer.vocab_size=300 tokenizer=bpe ->
"""


@pytest.mark.parametrize("case", COMMANDS.strip().splitlines())
def test_a_key_that_nothing_reads_is_told_and_no_other(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, why = case.split(" ->")[0].split(), case.partition(" -> ")[2]
    keys = [text.partition("=")[0] for text in overrides]
    warn_unused([parse_config(compose(overrides))], keys)
    assert capsys.readouterr().err == (f"warning: {keys[0]} has no effect with {why}\n" if why else "")


@pytest.mark.parametrize("protocol", ["paired", "sliding", "nonoverlapping"])
@pytest.mark.parametrize("positions", [[], ["eval.per_position=true"]], ids=["whole", "positions"])
def test_the_keys_that_are_told_are_those_that_scoring_does_not_read(tmp_path, protocol, positions) -> None:
    """Plans are the same, whatever the value of a key that is unused, and others for every other key."""
    overrides = [f"eval.protocol={protocol}", *positions, "train.length=16", "train.batch_tokens=64"]
    plain = parse_config(compose([*overrides, "eval.lengths=[64]", "eval.max_length=64", "eval.tokens=4000"]))
    source = replace(plain.data, source="files", path=str(write_corpus(tmp_path / "corpus")))
    data = load_data(source, plain.tokenizer, str(tmp_path / "cache"))

    def plans(**changes: int):
        evaluation = replace(plain.eval, **changes)
        return [(plan.length, plan.windows) for plan in make_plans(plain, evaluation, data)]

    changes = {"targets": 6, "target_tokens": 4, "stride": 3, "tokens": 900}
    unread = {f"eval.{key}" for key, value in changes.items() if plans(**{key: value}) == plans()}
    assert unread == unused_keys(plain).keys() & {f"eval.{key}" for key in changes}
