"""Checkpoints: which are kept, which are skipped, and which cannot be loaded."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pe_bench.errors import RunError, UserError
from pe_bench.training import checkpoint
from pe_bench.training.checkpoint import (
    delete_damaged_checkpoints,
    final_checkpoint,
    latest_checkpoint,
    load_optimizer,
    load_weights,
    save_checkpoint,
)
from pe_bench.training.optimizer import Muon, Optimizers


def trained(optimizer: str = "adamw", steps: int = 2, width: int = 3) -> tuple[nn.Module, Optimizers]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    if optimizer == "shared":  # one parameter in two modules
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if parameter.dim() == 2 and optimizer == "muon"]
    rest = [parameter for parameter in parameters if parameter.dim() == 1 or optimizer != "muon"]
    muon = [Muon([{"params": matrices}], lr=0.01)] if matrices else []
    optimizers = Optimizers([*muon, torch.optim.AdamW(rest, fused=True)])
    take_steps(model, optimizers, steps)
    return model, optimizers


def take_steps(model: nn.Module, optimizer: Optimizers, steps: int) -> None:
    for step in range(steps):
        model(torch.tensor([[1.0, 2.0, -1.0, step]])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(folder, *trained(), step, 1.0, 2.0)


def newest(folder: Path) -> checkpoint.Checkpoint:
    found = latest_checkpoint(folder)
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(folder: Path, step: int) -> None:
    path = folder / f"step-{step:08d}" / "weights.safetensors"
    path.write_bytes(path.read_bytes() + b"x")


def test_others_may_read_tensors_as_they_may_read_any_new_file(tmp_path) -> None:
    save(tmp_path, 2)
    (tmp_path / "usual").touch()
    files = [*(tmp_path / "step-00000002").iterdir(), tmp_path / "usual"]
    assert len({file.stat().st_mode for file in files}) == 1


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "shared"])
def test_weights_and_moments_come_back_bit_for_bit_and_training_continues_alike(tmp_path, optimizer):
    model, moments = trained(optimizer)
    save_checkpoint(tmp_path, model, moments, 2, 1.0, 2.0)
    saved = newest(tmp_path)
    assert saved.step == 2
    (other, fresh), (forgetful, without) = (trained(optimizer, steps=0) for _ in range(2))
    load_weights(saved.path, other)
    load_weights(saved.path, forgetful)
    load_optimizer(saved, other, fresh)
    # Loaded tensors do not change with the file.
    path = saved.path / "optimizer.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    for one, its_optimizer in ((model, moments), (other, fresh), (forgetful, without)):
        take_steps(one, its_optimizer, 2)
    expected, loaded, forgot = (list(each.parameters()) for each in (model, other, forgetful))
    assert all(torch.equal(a, b) for a, b in zip(expected, loaded, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(expected, forgot, strict=True))


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    save_checkpoint(tmp_path, *trained("muon"), 1, 1.0, 2.0)
    with pytest.raises(
        UserError, match="the moments in .* fit this model: 0.weight/exp_avg is missing there"
    ):
        load_optimizer(newest(tmp_path), *trained())


def test_a_damaged_checkpoint_is_skipped_and_replaces_no_whole_one(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder, 1, 2)
    trained_to = final_checkpoint(tmp_path, 2)
    assert trained_to is not None and trained_to.step == 2 and final_checkpoint(tmp_path, 3) is None
    damage(folder, 2)
    assert newest(folder).step == 1 and final_checkpoint(tmp_path, 2) is None
    damage(folder, 1)
    delete_damaged_checkpoints(folder)
    save(folder, 1)
    assert names(folder) == ["step-00000001"]


def test_weights_of_another_shape_are_refused_in_one_line_that_names_the_difference(tmp_path):
    save(tmp_path, 1)
    saved = newest(tmp_path)
    with pytest.raises(UserError, match=r"0.bias is \[3\] there and \[5\] here") as caught:
        load_weights(saved.path, trained(width=5)[0])
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"1.bias is missing here"):
        load_weights(saved.path, nn.Sequential(nn.Linear(4, 3)))


def test_a_checkpoint_that_may_not_be_read_is_neither_missing_nor_damaged(tmp_path, monkeypatch) -> None:
    def refuse(path: Path, flags: int):
        raise PermissionError(13, "Permission denied", str(path))

    save(tmp_path / "checkpoints", 2)
    monkeypatch.setattr("os.open", refuse)  # root could read it all the same
    with pytest.raises(RunError, match=r"cannot be read \(no permission\): `chmod"):
        final_checkpoint(tmp_path, 2)
    with pytest.raises(RunError, match="no permission"):
        delete_damaged_checkpoints(tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-00000002"]
