"""The definition of the `paired` protocol, tested through whole commands; other tests cover its parts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.commands import Command, only_run
from support.scoring import BLOCK, DATA, EVAL, scored, trained_model

from pe_bench.config.schema import DataConfig, EvalConfig, TokenizerConfig
from pe_bench.data.packed import load_data
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.scoring.plans import make_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import target_blocks

TINY = {"max_length": 64, "target_tokens": 16, "count": 6}  # of the runs of `conftest`


def rows_of(run: Path) -> list[Row]:
    return read_rows(run / "eval.csv")


def test_a_block_is_as_long_as_the_training_length_in_powers_of_two_and_at_most_128_tokens() -> None:
    assert (EvalConfig().protocol, EvalConfig().targets) == ("paired", 128)
    for train_length, tokens in [(2, 2), (8, 8), (64, 64), (100, 64), (127, 64), (128, 128), (4096, 128)]:
        assert EvalConfig().resolved_target_tokens(train_length) == tokens
        assert EvalConfig(target_tokens=3).resolved_target_tokens(train_length) == 3


def test_every_row_has_the_protocols_name_and_the_hash_of_the_targets(train: Command, folder: Path) -> None:
    assert train("encoding=rope", "eval.controls=all").code == 0
    source = DataConfig(name="files", source="files", path=str(folder / "corpus"))
    data = load_data(source, TokenizerConfig(), str(folder / "cache"))
    wanted = target_blocks(data.validation, seed=0, data_hash=data.hash, **TINY)
    rows = rows_of(only_run(folder))
    assert {(row.length, row.control) for row in rows} == {
        *((16, "none"), (32, "none"), (32, "window"), (32, "swap"))
    }
    assert {(row.protocol, row.target_hash) for row in rows} == {("paired", wanted.hash)}
    assert {row.targets for row in rows} == {len(wanted.end) * wanted.target_tokens}
    assert {row.target_tokens for row in rows} == {16}
    # An eighth of the length is scored at once: 4 tokens, which see 28 to 31.
    assert {row.context_mean for row in rows if row.length == 32} == {(28 + 31) / 2}


def plan_at(lengths: Sequence[int], trained: Job, length: int = 12) -> Plan:
    evaluation = replace(EVAL, lengths=[*lengths])
    plans = make_plans(trained.config, evaluation, trained.data)
    return next(plan for plan in plans if plan.length == length)


def test_the_targets_of_a_length_do_not_depend_on_the_other_lengths(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run")
    assert plan_at([12], trained) == plan_at([12, 24], trained) == plan_at([8, 9, 12, 20], trained)
    assert plan_at([12], trained) != plan_at([13], trained, 13)


@pytest.mark.parametrize(("length", "part"), [(8, 1), (12, 1), (24, 2)])
def test_the_model_gets_exactly_the_length_tokens_that_end_with_each_part_of_a_block(
    tmp_path: Path, length: int, part: int
) -> None:
    trained = trained_model(tmp_path / "run")
    given: list[torch.Tensor] = []
    trained.model.embedding.register_forward_pre_hook(lambda _, tokens: given.append(tokens[0].clone()))
    scored(trained, replace(EVAL, lengths=[length]))
    blocks = target_blocks(DATA.validation, 24, BLOCK, EVAL.targets, EVAL.seed, DATA.hash)
    wanted = [
        DATA.validation.document(int(document))[end - length : end].tolist()
        for document, last in zip(blocks.document, blocks.end, strict=True)
        for end in range(last - BLOCK + part, last + 1, part)
    ]
    fed = [row for batch in given if batch.shape[1] == length for row in batch.tolist()]
    assert fed == wanted, "no token stands before them, such as one for the beginning of a text"


def test_a_length_without_a_token_to_see_is_refused_before_anything_is_scored(
    train: Command, command: Command, folder: Path
) -> None:
    train("encoding=rope")
    before = rows_of(only_run(folder))
    arguments = ["eval", "--results-dir", str(folder / "results"), "--lengths"]
    outcome = command(*arguments, "1")
    assert outcome.code == 2
    assert "length 1 is too short for eval.protocol=paired: choose 2 tokens or more" in outcome.line
    assert rows_of(only_run(folder)) == before
    assert command(*arguments, "2").code == 0
    assert {row.context_mean for row in rows_of(only_run(folder)) if row.length == 2} == {1}
