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


def trained(width: int = 3, steps: int = 2) -> tuple[nn.Module, Optimizers]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    optimizer = Optimizers([torch.optim.AdamW(model.parameters(), fused=True)])
    for _ in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(folder, *trained(), step, 1.0, 2.0)


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


def test_weights_and_moments_come_back_bit_for_bit_and_training_continues_alike(tmp_path):
    model, optimizer = trained()
    save_checkpoint(tmp_path, model, optimizer, 2, 1.0, 2.0)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.meta.step == 2
    other, fresh = trained(steps=0)
    load_weights(found.path, other)
    load_optimizer(found, other, fresh)
    for one, its_optimizer in ((model, optimizer), (other, fresh)):
        one(torch.ones(1, 4)).square().sum().backward()
        its_optimizer.step()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def with_muon(steps: int) -> tuple[nn.Module, Optimizers]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    parts = [Muon([{"params": [model.weight]}], lr=0.01), torch.optim.AdamW([model.bias], fused=True)]
    optimizer = Optimizers(parts)
    take_steps(model, optimizer, steps)
    return model, optimizer


def take_steps(model: nn.Module, optimizer: Optimizers, steps: int) -> None:
    for step in range(steps):
        model(torch.tensor([[1.0, 2.0, -1.0, step]])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_momentum_of_muon_comes_back_bit_for_bit_and_training_continues_alike(tmp_path):
    model, optimizer = with_muon(steps=2)
    save_checkpoint(tmp_path, model, optimizer, 2, 1.0, 2.0)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    other, fresh = with_muon(steps=0)
    load_weights(found.path, other)
    load_optimizer(found, other, fresh)
    take_steps(model, optimizer, 2)
    take_steps(other, fresh, 2)
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)
    without, forgetful = with_muon(steps=0)
    load_weights(found.path, without)
    take_steps(without, forgetful, 2)
    assert not torch.equal(model.weight, without.weight)


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    save_checkpoint(tmp_path, *with_muon(steps=1), 1, 1.0, 2.0)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    model = nn.Linear(4, 4)
    with pytest.raises(UserError, match="weight/exp_avg is missing there"):
        load_optimizer(found, model, Optimizers([torch.optim.AdamW(model.parameters())]))


def test_loaded_tensors_do_not_change_with_the_file(tmp_path):
    save(tmp_path, 1)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    model, optimizer = trained(steps=0)
    load_weights(found.path, model)
    load_optimizer(found, model, optimizer)
    moment = optimizer.state(next(model.parameters()))["exp_avg"]
    before = moment.clone()
    path = found.path / "optimizer.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(moment, before)


def test_a_damaged_checkpoint_is_skipped(tmp_path):
    save(tmp_path, 1, 2)
    damage(tmp_path, 2)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.meta.step == 1
    assert final_checkpoint(tmp_path.parent, 1) is None


def test_damaged_checkpoints_do_not_replace_complete_ones(tmp_path):
    save(tmp_path, 5, 6)
    damage(tmp_path, 5)
    damage(tmp_path, 6)
    delete_damaged_checkpoints(tmp_path)
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]


def test_only_the_checkpoint_of_the_last_step_is_the_final_one(tmp_path):
    save(tmp_path / "checkpoints", 1, 2)
    found = final_checkpoint(tmp_path, 2)
    assert found is not None and found.meta.step == 2
    assert final_checkpoint(tmp_path, 3) is None
    damage(tmp_path / "checkpoints", 2)
    assert final_checkpoint(tmp_path, 2) is None


def test_weights_of_another_shape_are_refused_in_one_line_that_names_the_difference(tmp_path):
    save(tmp_path, 1)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    with pytest.raises(UserError, match=r"0.bias is \[3\] there and \[5\] here") as caught:
        load_weights(found.path, trained(width=5)[0])
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"1.bias is missing here"):
        load_weights(found.path, nn.Sequential(nn.Linear(4, 3)))


def test_a_parameter_that_two_modules_share_is_saved_and_loaded(tmp_path):
    def shared() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        return model

    model = shared()
    optimizer = Optimizers([torch.optim.AdamW(model.parameters())])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, model, optimizer, 1, 1.0, 2.0)
    found, other = latest_checkpoint(tmp_path), shared()
    assert found is not None
    load_weights(found.path, other)
    assert torch.equal(other[1].weight, model[0].weight)


def test_a_full_disk_leaves_existing_checkpoints_and_names_the_file(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from pe_bench.training import checkpoint

    save(tmp_path, 1)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match=r"step-00000002 could not be written: No space left on device"):
        save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001"]


def test_a_checkpoint_that_may_not_be_read_is_neither_missing_nor_damaged(tmp_path, monkeypatch) -> None:
    def refuse(path: Path):
        raise PermissionError(13, "Permission denied", str(path))

    save(tmp_path / "checkpoints", 2)
    monkeypatch.setattr(checkpoint, "open_regular", refuse)  # root could read it all the same
    with pytest.raises(RunError, match=r"weights\.safetensors cannot be read \(no permission\): `chmod"):
        final_checkpoint(tmp_path, 2)
    with pytest.raises(RunError, match="no permission"):
        delete_damaged_checkpoints(tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-00000002"]
