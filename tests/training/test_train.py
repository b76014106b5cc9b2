"""Training: schedules, groups, fairness between encodings, and resuming bit for bit."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from support.commands import only_run, tiny_overrides

from pe_bench.config.compose import compose_config
from pe_bench.config.schema import TrainConfig
from pe_bench.data.packed import load_data
from pe_bench.model.decoder import build_decoder
from pe_bench.training.optimizer import learning_rate
from pe_bench.training.trainer import Trainer

CPU = torch.device("cpu")
LOSS, NORM = 6.102282, 2.21210  # of the first step


def trainer_of(folder, *overrides: str, dtype: torch.dtype = torch.float32) -> Trainer:
    config = compose_config([*tiny_overrides(folder), *overrides])
    data = load_data(config)
    return Trainer(config, build_decoder(config, data.vocabulary), data, CPU, dtype)


def names_of(trainer: Trainer) -> dict[int, str]:
    return {id(parameter): name for name, parameter in trainer.model.named_parameters()}


def log(folder) -> list[dict[str, str]]:
    return list(csv.DictReader((only_run(folder) / "train.csv").read_text().splitlines()))


def kept_steps(folder) -> list[str]:
    return sorted(path.name for path in (only_run(folder) / "checkpoints").iterdir())


def test_the_learning_rate_warms_up_and_ends_at_its_share():
    train = TrainConfig(lr=1.0, warmup_steps=4, steps=104, final_lr=0.1)
    assert [learning_rate(step, train) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate(103, train) == pytest.approx(0.1)
    assert learning_rate(4 + 99 // 2, train) == pytest.approx(0.55, abs=0.02)


@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_gradients_above_the_clip_are_scaled_to_its_norm_and_others_are_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, clip: float
) -> None:
    trainer = trainer_of(folder, "encoding=nope", f"train.clip={clip}")
    norms = []

    def keep_norm() -> None:
        gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    monkeypatch.setattr(trainer.optimizer, "step", keep_norm)
    before = trainer.step(0, 0.0).gradient_norm
    assert before > 0.5 and norms == [pytest.approx(min(clip, before), rel=1e-4)]


@pytest.mark.parametrize(
    ("encoding", "name", "by_class", "by_key"),
    [("t5", "layers.0.table", 10.0, 3.0), ("transformer_xl", "content_bias", 1.0, 0.5)],
)
def test_an_encodings_parameters_learn_at_their_multiple(folder, encoding, name, by_class, by_key):
    common = (f"encoding={encoding}", "train.lr=0.001", "train.warmup_steps=0")
    for multiple, overrides in ((by_class, []), (by_key, [f"train.encoding_lr={by_key}"])):
        trainer = trainer_of(folder, *common, *overrides)
        trainer.step(0, 0.0)
        names, groups = names_of(trainer), trainer.optimizer.groups
        rates = {names[id(parameter)]: group.lr for group in groups for parameter in group.parameters}
        assert rates[f"encoding.base.{name}"] == pytest.approx(0.001 * multiple)
        assert {rate for each, rate in rates.items() if not each.startswith("encoding.")} == {0.001}


@pytest.mark.parametrize("encoding", ["learned", "t5", "shaw", "fox"])
def test_muon_trains_the_decoders_matrices_adamw_the_rest_and_only_matrices_decay(folder, encoding):
    trainer = trainer_of(folder, f"encoding={encoding}", "model.tie_embeddings=false")
    names, by_muon, decaying = names_of(trainer), set[str](), set[str]()
    for group in trainer.optimizer.groups:
        members = {names.pop(id(parameter)) for parameter in group.parameters}
        by_muon |= members if group.betas is None else set()
        assert group.weight_decay in (0.1, 0.0)
        decaying |= members if group.weight_decay else set()
    assert not names, "each has its optimizer"
    parameters = trainer.model.named_parameters()
    blocks = {name for name, value in parameters if name.startswith("blocks") and value.dim() == 2}
    assert by_muon == blocks and decaying == {*blocks, "head.weight"}


def test_every_encoding_starts_from_the_same_decoder_and_sees_the_same_batches_and_a_seed_changes_all(folder):
    def begun(encoding: str, seed: int = 0) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        trainer = trainer_of(folder, f"encoding={encoding}", f"seed={seed}")
        return trainer.model.state_dict(), [trainer.windows.batch(4, seed, n).tokens for n in range(3)]

    decoder, batches = begun("nope")
    for encoding in ("learned", "t5", "randomized", "shaw"):
        weights, seen = begun(encoding)
        assert all(torch.equal(weights[name], value) for name, value in decoder.items())
        assert all(torch.equal(a, b) for a, b in zip(batches, seen, strict=True))
    torch.rand(1)  # weights must not depend on PyTorch's global generator
    (first, seen), (second, others) = begun("shaw"), begun("shaw", seed=1)
    assert all(torch.equal(weights[name], value) for name, value in first.items())
    alike = [name for name, value in first.items() if torch.equal(value, second[name])]
    assert all(name.endswith("norm.weight") for name in alike)
    assert not torch.equal(seen[0], others[0]) and not torch.equal(seen[0], seen[1])


def test_ids_are_drawn_from_seed_and_step_and_no_gradient_outlives_its_step(folder):
    def drawn(seed: int) -> list[torch.Tensor]:
        trainer, drawings = trainer_of(folder, "encoding=randomized", f"seed={seed}"), []
        draw = trainer.model.encoding.ids

        def ids_of(tokens: torch.Tensor, **named) -> torch.Tensor:
            ids = draw(tokens, **named)
            drawings.append(torch.stack([ids, torch.rand(ids.shape)]))  # an encoding may draw inside it too
            return ids

        trainer.model.encoding.ids = ids_of
        for number in range(2):
            trainer.step(number, 0.0)
            gradients = [parameter.grad for parameter in trainer.model.parameters()]
            assert not any(gradient.any() for gradient in gradients if gradient is not None)
        return drawings

    (first, second), again, other = drawn(0), drawn(0)[0], drawn(1)[0]
    assert torch.equal(first, again)
    assert (first != second).any(-1).all() and (first != other).any(-1).all()


def test_one_step_gives_the_pinned_loss_and_micro_batches_the_same_one_up_to_rounding(folder):
    # A change of the loss changes every run that was ever made. If it is intended, raise IDENTITY_VERSION in
    # runs/job.py; otherwise find its cause.
    whole, parts = (trainer_of(folder, "encoding=rope", f"train.micro_batches={n}") for n in (1, 4))
    for number in range(3):
        a, b = whole.step(number, 0.0), parts.step(number, 0.0)
        if number == 0:
            assert (a.loss, a.gradient_norm) == (pytest.approx(LOSS, rel=1e-5), pytest.approx(NORM, rel=1e-4))
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-4)


def test_the_validation_loss_is_of_validation_documents_alone(folder):
    trainer = trainer_of(folder, "encoding=rope")
    config, data = trainer.config, load_data(trainer.config)
    splits = (data, replace(data, train=data.validation), replace(data, validation=data.train))
    losses = [Trainer(config, trainer.model, each, CPU, torch.float32).validation_loss() for each in splits]
    assert losses[0] == losses[1] != losses[2]


def test_bfloat16_trains_near_float32_and_keeps_its_weights_in_float32(folder):
    half = trainer_of(folder, "encoding=rope", dtype=torch.bfloat16)
    assert half.step(0, 0.0).loss == pytest.approx(LOSS, rel=2e-2)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}


def test_the_log_and_checkpoints_are_written_when_they_are_due_and_two_checkpoints_are_kept(train, folder):
    train("encoding=rope", "train.log_every=3", "train.validate_every=4", "train.checkpoint_every=3")
    assert kept_steps(folder) == ["step-00000006", "step-00000008"]
    rows = [(int(row["step"]), int(row["tokens"]), bool(row["validation_loss"])) for row in log(folder)]
    assert rows == [(3, 192, False), (4, 256, True), (6, 384, False), (8, 512, True)]


KEYS = """
length=32 steps=6 batch_tokens=128 micro_batches=2 lr=1e-2 final_lr=0.5 warmup_steps=4 weight_decay=0.5
betas=[0.5,0.9] clip=0.01 validate_every=2 validation_tokens=256 log_every=1
"""
OTHER_KEYS = """
seed=1 precision=bfloat16 model.d_model=32 model.n_layers=1 model.n_heads=4 model.n_kv_heads=1 model.d_head=4
model.d_ff=16 model.tie_embeddings=false data.validation_fraction=0.4 data.max_tokens=2000
"""


@pytest.mark.parametrize("override", [*(f"train.{key}" for key in KEYS.split()), *OTHER_KEYS.split()])
def test_every_key_of_training_changes_what_training_writes(begin, train, folder, override):
    def written() -> list[list[str]]:
        return [[v for k, v in row.items() if k != "seconds"] for row in log(folder)]

    begin("encoding=rope")
    before = written()
    shutil.rmtree(folder / "results")
    result = train("encoding=rope", override)
    assert result.code == 0, result.err
    assert written() != before


def test_a_non_finite_loss_stops_with_its_step_and_keeps_the_last_good_checkpoint(train, folder, monkeypatch):
    monkeypatch.setattr(Trainer, "_backward", Mock(side_effect=[5.0] * 5 + [math.nan]))
    outcome = train("encoding=rope")
    assert outcome.code == 1 and "the loss (nan) is not finite at step 6" in outcome.line
    assert "what was saved is kept: lower train.lr=0.005" in outcome.line
    assert kept_steps(folder) == ["step-00000002", "step-00000004"]


def test_training_may_start_from_a_run_and_what_that_lacks_begins_anew(begin, train, folder):
    begin("encoding=rope")
    source = only_run(folder)
    weights = load_file(source / "checkpoints" / "step-00000008" / "weights.safetensors")

    def start(*arguments: str):
        return train(f"train.from={source.name}", "train.lr=1e-9", "train.steps=1", *arguments)

    for arguments in (["encoding=learned", "train.length=32"], ["encoding=nope", "model.qk_norm=true"]):
        outcome = start(*arguments)
        assert outcome.code == 0, outcome.err
    new = next(path for path in source.parent.iterdir() if path.name.startswith("learned"))
    begun = load_file(new / "checkpoints" / "step-00000001" / "weights.safetensors")
    assert all(torch.allclose(begun[name], value, atol=1e-6) for name, value in weights.items())
    outcome = start("encoding=rope", "model.n_layers=1")
    told = "do not fit this model, which has model.n_layers=1: say model.n_layers=2"
    assert outcome.code == 2 and told in outcome.line
    outcome = start("encoding=rope", "model=small", "model.n_layers=1")
    told = "which has model=small model.n_layers=1: say model=tiny model.n_layers=2"
    assert outcome.code == 2 and told in outcome.line
    outcome = start("encoding=rope", "model.n_heads=1")  # its weights have the same shapes
    assert outcome.code == 2 and "do not fit this model, which has model.n_heads=1" in outcome.line
    assert len(list(source.parent.iterdir())) == 3


def test_the_validation_loss_is_of_the_positions_of_scoring(folder: Path) -> None:
    plain, drawn = (trainer_of(folder, f"encoding={name}", "train.length=16") for name in ("rope", "pose"))
    assert drawn.validation_loss() == pytest.approx(plain.validation_loss(), abs=1e-6)
