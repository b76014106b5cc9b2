"""Checkpoints: a folder of weights, optimizer state and a readable meta.json with checksums.

A folder is written beside its place and renamed into it, the newest two are kept, and the
newest whose checksums hold is the one that is read. Tensors are safetensors: nothing here can
run code. There is no state of a random generator to keep (`pe_bench.seeds`).
"""

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pe_bench.errors import UserError
from pe_bench.files import TEMPORARY, failures_named, flush_to_disk, write_text

FORMAT = 1
KEPT = 2
WEIGHTS, OPTIMIZER, META = "weights.safetensors", "optimizer.safetensors", "meta.json"


@dataclass(frozen=True)
class Meta:
    """What is known of a checkpoint besides its tensors."""

    format: int
    step: int
    train_seconds: float  # spent in training steps, over every process that worked on the run
    loss: float
    checksums: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    meta: Meta


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    train_seconds: float,
    loss: float,
) -> None:
    """Write the checkpoint of `step` into `folder`, then drop all but the newest two."""
    folder.mkdir(exist_ok=True)
    target = folder / f"step-{step:08d}"
    temporary = folder / f"{TEMPORARY}{secrets.token_hex(4)}"
    tensors = {WEIGHTS: model.state_dict(), OPTIMIZER: _optimizer_tensors(model, optimizer)}
    try:
        with failures_named(target):
            temporary.mkdir()
            for name, named in tensors.items():
                save_file(_copies(named), temporary / name)
                flush_to_disk(temporary / name)
            checksums = {name: _checksum(temporary / name) for name in tensors}
            meta = Meta(FORMAT, step, train_seconds, loss, checksums)
            write_text(temporary / META, json.dumps(asdict(meta), indent=1) + "\n")
            os.replace(temporary, target)
            flush_to_disk(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    drop_old_checkpoints(folder)


def drop_damaged_checkpoints(folder: Path) -> None:
    """So that those that are kept, the newest two, are whole."""
    for path in _newest_first(folder):
        if _read_meta(path) is None:
            shutil.rmtree(path)


def drop_old_checkpoints(folder: Path) -> None:
    for old in _newest_first(folder)[KEPT:]:
        shutil.rmtree(old)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole. Raises `UserError` for one of another format."""
    for path in _newest_first(folder):
        meta = _read_meta(path)
        if meta is not None:
            return Checkpoint(path, meta)
    return None


def final_checkpoint(run: Path, steps: int) -> Checkpoint | None:
    """The whole checkpoint of a run's last step."""
    found = latest_checkpoint(run / "checkpoints")
    return found if found is not None and found.meta.step == steps else None


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Raises `UserError` where the weights are not those of such a model, naming what differs."""
    tensors = load_file(checkpoint.path / WEIGHTS)
    misfit = _misfit({name: tensor.shape for name, tensor in tensors.items()}, model)
    if misfit is not None:
        raise UserError(f"the weights in {checkpoint.path} do not fit this model: {misfit}")
    model.load_state_dict(tensors, strict=True)


def _misfit(saved: dict[str, torch.Size], model: nn.Module) -> str | None:
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name in sorted(saved.keys() | wanted.keys()):
        if name not in saved:
            return f"{name} is missing there"
        if name not in wanted:
            return f"{name} is missing here"
        if saved[name] != wanted[name]:
            return f"{name} is {list(saved[name])} there and {list(wanted[name])} here"
    return None


def load_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter its own moments back, by name."""
    tensors = load_file(checkpoint.path / OPTIMIZER)
    for name, parameter in model.named_parameters():
        keys = [key for key in tensors if key.startswith(f"{name}/")]
        state = {key.rpartition("/")[2]: tensors[key] for key in keys}
        # AdamW keeps its moments beside the parameter, and its count of steps there only when fused.
        optimizer.state[parameter] = {
            # A copy, for what was loaded is a view of the file.
            key: value.to(parameter.device if value.dim() or _fused(optimizer) else "cpu", copy=True)
            for key, value in state.items()
        }


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: a parameter that two modules share is written under both names."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _read_meta(path: Path) -> Meta | None:
    """The meta.json of a checkpoint whose files are as they were written, else None."""
    try:
        found = json.loads((path / META).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise UserError(
                f"{path} has checkpoint format {found['format']}, and this pe-bench reads {FORMAT}: "
                "use the version that wrote it, or delete the run and train again"
            )
        meta = Meta(**found)
        whole = all(_checksum(path / name) == meta.checksums[name] for name in (WEIGHTS, OPTIMIZER))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return None
    return meta if whole else None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
