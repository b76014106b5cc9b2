"""Checkpoints: which are kept, which are skipped, and which cannot be loaded."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from pe_bench.errors import RunError, UserError
from pe_bench.training import checkpoint
from pe_bench.training.checkpoint import (
    Step,
    final_checkpoint,
    latest_checkpoint,
    load_optimizer,
    load_weights,
    read_log,
    save_checkpoint,
    tidy_checkpoints,
    write_log,
)
from pe_bench.training.optimizer import Muon, Optimizers


def trained(optimizer: str = "adamw", steps: int = 2, width: int = 3) -> tuple[nn.Module, Optimizers]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    if optimizer == "shared":  # one parameter in two modules
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
    is_muon = {parameter: optimizer == "muon" and parameter.dim() == 2 for parameter in model.parameters()}
    matrices, rest = ([p for p, by_muon in is_muon.items() if by_muon is kind] for kind in (True, False))
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
    latest = latest_checkpoint(folder)
    assert latest is not None
    return latest


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


def test_weights_and_moments_of_another_model_are_refused_in_one_line_that_names_the_difference(tmp_path):
    save_checkpoint(tmp_path, *trained("muon"), 1, 1.0, 2.0)
    saved = newest(tmp_path)
    for load, told in [
        (lambda: load_weights(saved.path, trained(width=5)[0]), r"0.bias is \[3\] there and \[5\] here$"),
        (lambda: load_weights(saved.path, nn.Sequential(nn.Linear(4, 3))), "1.bias is missing here$"),
        (
            lambda: load_optimizer(saved, *trained()),
            "moments in .* fit this model: 0.weight/exp_avg is missing",
        ),
    ]:
        with pytest.raises(UserError, match=told):
            load()


def test_a_damaged_checkpoint_is_skipped_and_deleted_and_the_newest_two_whole_ones_are_kept(tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    save(folder, 1, 2, 3)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    trained_to = final_checkpoint(tmp_path, 3)
    assert trained_to is not None and trained_to.step == 3 and final_checkpoint(tmp_path, 4) is None
    path = folder / "step-00000003" / "weights.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert newest(folder).step == 2 and final_checkpoint(tmp_path, 3) is None
    tidy_checkpoints(folder)
    assert capsys.readouterr().err == f"warning: {path.parent} is damaged and was deleted\n"
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]


def test_a_checkpoint_that_may_not_be_read_or_of_another_format_is_neither_missing_nor_damaged(
    tmp_path, monkeypatch
) -> None:
    def refuse(path: Path, flags: int):
        raise PermissionError(13, "Permission denied", str(path))

    folder = tmp_path / "checkpoints"
    save(folder, 2)
    meta = folder / "step-00000002" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 99}))
    for told in (r"checkpoint format 99, and this pe-bench reads 1", r"cannot be read \(no permission\)"):
        with pytest.raises(RunError, match=told):
            final_checkpoint(tmp_path, 2)
        with pytest.raises(RunError, match=told):
            tidy_checkpoints(folder)
        monkeypatch.setattr("os.open", refuse)  # root could read it all the same
    assert meta.exists()


def test_the_log_comes_back_as_it_was_also_with_a_validation_loss_that_is_infinite(tmp_path):
    steps = [Step(1, 64, 5.5, None, 1e-3, 0.1, 2.5), Step(2, 128, 5.25, math.inf, 1e-3, 0.1, 3.5)]
    write_log(tmp_path / "train.csv", steps)
    assert read_log(tmp_path / "train.csv", 2) == steps and read_log(tmp_path / "train.csv", 1) == steps[:1]
