"""Training: schedules, groups, fairness between encodings, and resuming bit for bit."""

import csv
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.commands import only_run, tiny_overrides

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import TrainConfig
from pe_bench.data.packed import Data, load_data
from pe_bench.model.decoder import build_decoder
from pe_bench.training.optimizer import Muon, learning_rate
from pe_bench.training.trainer import Trainer

CPU = torch.device("cpu")


def trainer_of(folder, *overrides: str, dtype: torch.dtype = torch.float32) -> Trainer:
    config = parse_config(compose([*tiny_overrides(folder), *overrides]))
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    model = build_decoder(config, data.vocabulary)
    return Trainer(config, model, data, CPU, dtype)


def weights(folder, step: int = 8) -> dict[str, torch.Tensor]:
    found = load_file(only_run(folder) / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")
    # Copies: what was loaded is a view of the file.
    return {name: tensor.clone() for name, tensor in found.items()}


def log(folder) -> list[dict[str, str]]:
    with (only_run(folder) / "train.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_learning_rate_warms_up_and_ends_at_its_share():
    train = TrainConfig(lr=1.0, warmup_steps=4, steps=104, final_lr=0.1)
    assert [learning_rate(step, train) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate(4, train) == 1.0
    assert learning_rate(103, train) == pytest.approx(0.1)
    assert learning_rate(4 + 99 // 2, train) == pytest.approx(0.55, abs=0.02)
    after = [learning_rate(step, train) for step in range(4, 104)]
    assert after == sorted(after, reverse=True)
    shorter = TrainConfig(warmup_steps=25, steps=3)
    assert all(math.isfinite(learning_rate(step, shorter)) for step in range(3))


def rates(trainer: Trainer) -> dict[str, float]:
    """Return the learning rate of each parameter."""
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    groups = trainer.optimizer.param_groups
    return {names[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}


def test_an_encodings_parameters_learn_at_the_multiple_that_is_set_or_that_the_class_declares(folder):
    table, bias = "encoding.base.layers.0.table", "encoding.base.content_bias"
    for encoding, name, overrides, multiple in [
        ("t5", table, [], 10.0),
        ("t5", table, ["train.encoding_lr=3"], 3.0),
        ("transformer_xl", bias, [], 1.0),
        ("transformer_xl", bias, ["train.encoding_lr=0.5"], 0.5),
    ]:
        trainer = trainer_of(
            folder, f"encoding={encoding}", "train.lr=0.001", "train.warmup_steps=0", *overrides
        )
        trainer.step(0, 0.0)
        found = rates(trainer)
        assert found[name] == pytest.approx(0.001 * multiple)
        assert {rate for name, rate in found.items() if not name.startswith("encoding.")} == {0.001}


@pytest.mark.parametrize("encoding", ["learned", "t5", "shaw", "fox"])
def test_muon_trains_the_decoders_matrices_adamw_the_rest_and_only_matrices_decay(folder, encoding):
    trainer = trainer_of(folder, f"encoding={encoding}", "model.tie_embeddings=false")
    muon, adamw = trainer.optimizer.parts
    assert isinstance(muon, Muon) and isinstance(adamw, torch.optim.AdamW)
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    by_muon, decaying = set[str](), set[str]()
    for group in trainer.optimizer.param_groups:
        members = {names.pop(id(parameter)) for parameter in group["params"]}
        by_muon |= members if any(group is each for each in muon.param_groups) else set()
        assert group["weight_decay"] in (0.1, 0.0)
        decaying |= members if group["weight_decay"] else set()
    assert not names, "each has its optimizer"
    blocks = {
        name
        for name, value in trainer.model.named_parameters()
        if name.startswith("blocks") and value.dim() == 2
    }
    assert by_muon == blocks and decaying == {*blocks, "head.weight"}


def test_every_encoding_starts_from_the_same_decoder_and_sees_the_same_batches(folder):
    seen = {}
    for encoding in ("nope", "learned", "t5", "shaw", "randomized"):
        trainer = trainer_of(folder, f"encoding={encoding}")
        decoder = {n: p for n, p in trainer.model.state_dict().items() if not n.startswith("encoding.")}
        seen[encoding] = (decoder, [trainer.windows.batch(4, 0, step).tokens for step in range(3)])
    for decoder, batches in seen.values():
        assert all(torch.equal(value, decoder[name]) for name, value in seen["nope"][0].items())
        assert all(torch.equal(a, b) for a, b in zip(batches, seen["nope"][1], strict=True))


def test_another_seed_changes_weights_encoding_parameters_and_batches(folder):
    one, two = (trainer_of(folder, "encoding=shaw", f"seed={seed}") for seed in (0, 1))
    differ = [
        name
        for (name, a), (_, b) in zip(one.model.named_parameters(), two.model.named_parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    assert any(name.startswith("encoding.") for name in differ) and "embedding.weight" in differ
    assert not torch.equal(one.windows.batch(4, 0, 0).tokens, two.windows.batch(4, 1, 0).tokens)


def test_position_ids_are_drawn_anew_from_seed_and_step_and_no_gradient_outlives_its_step(folder):
    def drawn(seed: int) -> list[torch.Tensor]:
        trainer, ids = trainer_of(folder, "encoding=randomized", f"seed={seed}"), []
        encoding = trainer.model.encoding
        draw = encoding.ids
        encoding.ids = lambda *arguments, **named: ids.append(draw(*arguments, **named)) or ids[-1]
        for number in range(2):
            trainer.step(number, 0.0)
            gradients = [parameter.grad for parameter in trainer.model.parameters()]
            assert not any(gradient.any() for gradient in gradients if gradient is not None)
        return ids

    (first, second), again, (other, _) = drawn(0), drawn(0), drawn(1)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second) and not torch.equal(first, other)


def test_micro_batches_give_the_same_step_up_to_rounding(folder):
    whole, parts = (trainer_of(folder, "encoding=rope", f"train.micro_batches={n}") for n in (1, 4))
    for number in range(3):
        a, b = whole.step(number, 0.0), parts.step(number, 0.0)
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-4)


def test_the_validation_loss_is_of_validation_documents_alone(folder):
    trainer = trainer_of(folder, "encoding=rope")
    config, model = trainer.config, trainer.model
    data = load_data(config.data, config.tokenizer, config.cache_dir)

    def loss(data: Data) -> float | None:
        return Trainer(config, model, data, CPU, torch.float32).validation_loss()

    assert (
        loss(data) == loss(replace(data, train=data.validation)) != loss(replace(data, validation=data.train))
    )


def test_one_step_gives_the_pinned_loss(folder):
    # A change here changes every run that was ever made: raise IDENTITY_VERSION in runs/identity.py when
    # it is meant, and see what moved when it is not.
    state = trainer_of(folder, "encoding=rope").step(0, 0.0)
    assert (state.loss, state.gradient_norm) == (pytest.approx(LOSS, rel=1e-5), pytest.approx(NORM, rel=1e-4))


LOSS, NORM = 6.102282, 2.21210


def test_bfloat16_trains_near_float32_and_keeps_its_weights_in_float32(folder):
    exact, half = (
        trainer_of(folder, "encoding=rope"),
        trainer_of(folder, "encoding=rope", dtype=torch.bfloat16),
    )
    assert half.step(0, 0.0).loss == pytest.approx(exact.step(0, 0.0).loss, rel=2e-2)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}


def test_the_log_and_checkpoints_are_written_when_they_are_due_and_two_checkpoints_are_kept(train, folder):
    train("encoding=rope", "train.log_every=3", "train.validate_every=4", "train.checkpoint_every=3")
    kept = sorted(path.name for path in (only_run(folder) / "checkpoints").iterdir())
    assert kept == ["step-00000006", "step-00000008"]
    rows = log(folder)
    assert [int(row["step"]) for row in rows] == [3, 4, 6, 8]
    assert [bool(row["validation_loss"]) for row in rows] == [False, True, False, True]
    assert [int(row["tokens"]) for row in rows] == [192, 256, 384, 512]


# fmt: off
KEYS = (
    "train.length=32", "train.steps=6", "train.batch_tokens=128", "train.micro_batches=2", "train.lr=1e-2",
    "train.final_lr=0.5", "train.warmup_steps=4", "train.weight_decay=0.5", "train.betas=[0.5,0.9]",
    "train.clip=0.01", "train.validate_every=2", "train.validation_tokens=256", "train.log_every=1", "seed=1",
    "precision=bfloat16", "model.d_model=32", "model.n_layers=1", "model.n_heads=4", "model.n_kv_heads=1",
    "model.d_head=4", "model.d_ff=16", "model.tie_embeddings=false", "data.validation_fraction=0.4",
    "data.max_tokens=2000", "tokenizer=bpe tokenizer.vocab_size=280",
)
# fmt: on


@pytest.mark.parametrize("override", KEYS)
def test_every_key_of_training_changes_what_training_writes(begin, train, folder, override):
    def written() -> list[list[str]]:
        return [[v for k, v in row.items() if k != "seconds"] for row in log(folder)]

    begin("encoding=rope")
    before = written()
    shutil.rmtree(folder / "results")
    result = train("encoding=rope", *override.split())
    assert result.code == 0, result.err
    assert written() != before


def test_a_non_finite_loss_stops_with_its_step_and_keeps_the_last_good_checkpoint(train, folder, monkeypatch):
    backward = Trainer._backward

    calls = []

    def poisoned(self, part, ids, losses, **named):
        calls.append(part)
        return float("nan") if len(calls) == 6 else backward(self, part, ids, losses, **named)

    monkeypatch.setattr(Trainer, "_backward", poisoned)
    outcome = train("encoding=rope")
    assert outcome.code == 1
    assert "the loss (nan) is not finite at step 6" in outcome.line
    assert "what was saved is kept: lower train.lr=0.005" in outcome.line
    kept = sorted(path.name for path in (only_run(folder) / "checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000004"]
    assert all(tensor.isfinite().all() for tensor in weights(folder, 4).values())


def test_a_checkpoint_of_another_format_is_refused_in_one_line(train, folder):
    train("encoding=rope")
    meta = only_run(folder) / "checkpoints" / "step-00000008" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 99}))
    outcome = train("encoding=rope", "eval.lengths=[16,64]")
    assert outcome.code == 2 and "checkpoint format 99" in outcome.line


def test_training_may_start_from_another_run_what_that_lacks_begins_anew_and_all_else_must_fit(train, folder):
    train("encoding=rope")
    source, one_step = only_run(folder), ("train.lr=1e-9", "train.steps=1")
    weights_of_source = weights(folder)

    def start(*arguments: str):
        return train(f"train.from={source.name}", *arguments)

    for arguments in (["encoding=nope"], ["encoding=learned", "train.length=32"]):
        outcome = start(*arguments, *one_step)
        assert outcome.code == 0, outcome.err
    outcome = start("encoding=nope", "model.qk_norm=true", *one_step)
    assert outcome.code == 0, outcome.err
    new = next(path for path in source.parent.iterdir() if path.name.startswith("learned"))
    begun = load_file(new / "checkpoints" / "step-00000001" / "weights.safetensors")
    assert all(torch.allclose(begun[name], weights_of_source[name], atol=1e-6) for name in weights_of_source)
    outcome = start("encoding=rope", "model.n_layers=1")
    assert outcome.code == 2 and "do not fit this model" in outcome.line
    assert len(list(source.parent.iterdir())) == 4
