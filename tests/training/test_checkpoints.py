"""Checkpoints: which are kept, which are skipped, and which cannot be loaded."""

import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from pe_bench.errors import RunError, UserError
from pe_bench.training import checkpoint
from pe_bench.training.checkpoint import Step
from pe_bench.training.optimizer import Optimizer, ParameterGroup


def state_of(step: int) -> Step:
    return Step(step, 64 * step, 5.5, None, 1e-3, 0.1, 2.5)


def trained(optimizer: str = "adamw", steps: int = 2, width: int = 3) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    if optimizer == "shared":  # one parameter in two modules
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
    rest = [each for each in model.parameters() if optimizer != "muon" or each.dim() == 1]
    groups = [ParameterGroup(betas=(0.9, 0.999), lr=0.001, parameters=rest)]
    if optimizer == "muon":
        groups.append(ParameterGroup(lr=0.01, parameters=[model[0].weight, model[1].weight]))
    take_steps(model, moved := Optimizer(groups), steps)
    return model, moved


def take_steps(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        model(torch.tensor([[1.0, 2.0, -1.0, step]])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        checkpoint.save_checkpoint(folder, *trained(), state_of(step))


def newest(folder: Path) -> checkpoint.Checkpoint:
    latest = checkpoint.latest_checkpoint(folder)
    assert latest is not None
    return latest


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "shared"])
def test_weights_and_moments_come_back_bit_for_bit_and_training_continues_alike(tmp_path, optimizer):
    model, moments = trained(optimizer)
    checkpoint.save_checkpoint(tmp_path, model, moments, state_of(2))
    saved = newest(tmp_path)
    assert (saved.step, saved.loss, saved.train_seconds) == (2, 5.5, 2.5)
    other, fresh = trained(optimizer, steps=0)
    checkpoint.load_weights(saved.path, other)
    checkpoint.load_optimizer(saved, other, fresh)
    # Loaded tensors do not change with the file, which others may read as any new one.
    path = saved.path / "optimizer.safetensors"
    assert path.stat().st_mode == (saved.path / "meta.json").stat().st_mode
    path.write_bytes(b"\0" * path.stat().st_size)
    take_steps(model, moments, 2)
    take_steps(other, fresh, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_weights_and_moments_of_another_model_are_refused_in_one_line_that_names_the_difference(tmp_path):
    save(tmp_path, 1)
    saved = newest(tmp_path)
    wider, one_layer = trained(width=5), nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"0.bias is \[3\] there and \[5\] here$"):
        checkpoint.load_weights(saved.path, wider[0])
    with pytest.raises(UserError, match=r"1.bias is \[2\] there and missing here$"):
        checkpoint.load_weights(saved.path, one_layer)
    with pytest.raises(UserError, match="moments in .* fit this model: 0.weight/exp_avg"):
        checkpoint.load_optimizer(saved, *wider)


def test_the_newest_whole_checkpoint_counts_and_a_damaged_one_is_replaced(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder, 1, 2, 3, 4)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"]
    trained_to = checkpoint.final_checkpoint(tmp_path, 4)
    assert trained_to and trained_to.step == 4 and not checkpoint.final_checkpoint(tmp_path, 5)
    path = folder / "step-00000004" / "weights.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert newest(folder).step == 3 and checkpoint.final_checkpoint(tmp_path, 4) is None
    save(folder, 4)
    assert newest(folder).step == 4
    moments = path.with_name("optimizer.safetensors")
    moments.write_bytes(moments.read_bytes()[:-1] + b"x")
    assert newest(folder).step == 3, "a run does not continue from a damaged checkpoint"


def test_the_bytes_of_a_checkpoint_are_on_the_disk_before_its_name_which_is_then_there_too(tmp_path, writes):
    save(tmp_path, 1)
    weights, moments, meta = ["file"], ["file"], ["file", "rename", "folder"]
    assert writes == [*weights, *moments, *meta, "rename", "folder"]


def test_a_checkpoint_that_may_not_be_read_or_of_another_format_is_not_missing(tmp_path, monkeypatch):
    save(tmp_path / "checkpoints", 2)
    meta = tmp_path / "checkpoints" / "step-00000002" / "meta.json"
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 99'))
    for told in ("another format than 1", r"cannot be read \(no permission\)"):
        with pytest.raises(RunError, match=told):
            checkpoint.final_checkpoint(tmp_path, 2)
        monkeypatch.setattr("os.open", Mock(side_effect=PermissionError))  # root could read it all the same


def test_the_log_comes_back_as_it_was_also_with_a_validation_loss_that_is_infinite(tmp_path):
    path, steps = tmp_path / "train.csv", [state_of(1), Step(2, 128, 5.25, math.inf, 1e-3, 0.1, 3.5)]
    checkpoint.write_log(path, steps)
    assert checkpoint.read_log(path, 2) == steps and checkpoint.read_log(path, 1) == steps[:1]
