"""The files of a training: its checkpoints, and train.csv with the facts of its steps.

A checkpoint is a folder of weights, optimizer state and a readable meta.json with checksums. It is written
under a temporary name and then renamed; the newest two are kept, and the newest with correct checksums is
read. Tensors are safetensors: no file here can run code. Random generators have no state to keep
(`pe_bench.model.decoder`).

The weights are one file. In a sharded run, each process writes its rows of the optimizer's state to a file of
its own, and any number of processes can continue from these files.
"""

import csv
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from pe_bench.errors import RunError, UserError, require
from pe_bench.runs.untrusted import open_regular, read_json, read_regular
from pe_bench.system.files import TEMPORARY_PREFIX, flush_to_disk, name_write_errors, write_json, write_text
from pe_bench.training.group import SINGLE_PROCESS, Group
from pe_bench.training.optimizer import Optimizer
from pe_bench.training.sharding import distributed, gathered, is_sharded, own_part, own_rows

CHECKPOINT_FORMAT = 1
KEPT_CHECKPOINTS = 2
WEIGHTS, META = "weights.safetensors", "meta.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")  # the state of optimizers for a parameter


@dataclass(frozen=True)
class Checkpoint:
    """A snapshot of a training on disk; its meta.json has all fields but the path."""

    path: Path
    step: int
    train_seconds: float  # spent in training steps, over every process that worked on the run
    loss: float  # the last training loss, in nats per token
    checksums: dict[str, str]  # keys: the names of the files


@dataclass(frozen=True)
class Step:
    """The facts of one step; train.csv has a row for one step in `train.log_every`."""

    step: int  # the number of steps taken
    tokens: int  # the number of tokens trained on in all these steps
    loss: float  # nats per token, of this step's batch
    validation_loss: float | None  # nats per token; None for a step without validation
    lr: float
    gradient_norm: float  # the norm of the gradient before it is clipped
    seconds: float  # spent in steps, since the start of the run


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: Optimizer, state: Step, group: Group = SINGLE_PROCESS
) -> None:
    """Write a checkpoint into `folder`, and delete all earlier ones but the newest.

    state: the facts of the last step taken. With a sharded model, each process of the `group` calls this.
    """
    target = folder / _checkpoint_name(state.step)
    temporary_name = f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"
    temporary = folder / group.broadcast(temporary_name)
    number = group.rank + 1
    part = f"-{number:05}-of-{group.count:05}" if group.count > 1 else ""
    try:
        with name_write_errors(target):
            if group.is_first:
                temporary.mkdir(parents=True)
            group.wait()
            tensors = model.state_dict().items()
            weights = {name: _copy_to_cpu(gathered(own_part(tensor), tensor)) for name, tensor in tensors}
            if group.is_first:
                _save_tensors(weights, temporary / WEIGHTS)
            moments: dict[str, Tensor] = {}
            for name, parameter in model.named_parameters():
                for key, value in optimizer.state[parameter].items():
                    if is_sharded(value) or group.is_first:
                        moments[f"{name}/{key}"] = _copy_to_cpu(own_part(value))
            _save_tensors(moments, temporary / f"optimizer{part}.safetensors")
            group.wait()
            if group.is_first:
                checksums = {path.name: _checksum(path) for path in sorted(temporary.iterdir(), reverse=True)}
                facts = {
                    "format": CHECKPOINT_FORMAT,
                    "step": state.step,
                    "train_seconds": state.seconds,
                    "loss": state.loss,
                }
                write_json(temporary / META, {**facts, "checksums": checksums})
                before = [path for path in _newest_first(folder) if path < target]
                # Newer checkpoints, or one of this step, were damaged: the run continued from an older one.
                for path in {*_newest_first(folder)} - {*before[: KEPT_CHECKPOINTS - 1]}:
                    shutil.rmtree(path)
                os.replace(temporary, target)
                flush_to_disk(folder)
    finally:
        if group.is_first:
            shutil.rmtree(temporary, ignore_errors=True)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    path.write_bytes(save(tensors))  # with the mode of any new file, which safetensors' own writer changes
    flush_to_disk(path)


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    """Copy to the CPU, so that a parameter of two modules can be written under both names."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest undamaged checkpoint in a folder, or None. Raise `RunError` for another format."""
    return next(filter(None, map(read_checkpoint, _newest_first(folder))), None)


def final_checkpoint(run: Path, steps: int) -> Checkpoint | None:
    """Return the checkpoint of a run's last step; None if its weights are missing or damaged."""
    return read_checkpoint(run / "checkpoints" / _checkpoint_name(steps), (WEIGHTS,))


def require_trained(run: Path, steps: int) -> Checkpoint:
    """Return the checkpoint of a run's last step. Raise `UserError` if it is missing or damaged."""
    trained = final_checkpoint(run, steps)
    if trained is None:
        missing = f"{run / 'checkpoints'} has no whole checkpoint of step {steps}"
        raise UserError(f"{missing}: repeat the command that trained the run")
    return trained


def read_checkpoint(path: Path, files: Sequence[str] = ()) -> Checkpoint | None:
    """Return a checkpoint; None if one of `files` (by default all) is missing or has another checksum.

    Raise `RunError` for files without permission to read, and for another format.
    """
    try:
        content = read_json(path / META)
        if content["format"] != CHECKPOINT_FORMAT:
            raise RunError(
                f"{path} has another format than {CHECKPOINT_FORMAT}: use the version that wrote it"
            )
        checksums = dict(content["checksums"])
        facts = int(content["step"]), float(content["train_seconds"]), float(content["loss"])
        is_whole = all(
            Path(name).name == name and _checksum(path / name) == checksums[name]
            for name in files or (WEIGHTS, *checksums)
        )
    except (OSError, KeyError, ValueError, TypeError):
        return None
    return Checkpoint(path, *facts, checksums) if is_whole else None


def _checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class MisfitError(UserError):
    """A tensor of a checkpoint does not fit the model."""


def load_weights(checkpoint: Path, model: nn.Module, *, is_start: bool = False) -> None:
    """Load a checkpoint's weights into a model.

    Raises `MisfitError` for a tensor that does not fit the model, and `UserError` for an unreadable file or
    an encoding that loads its weights wrongly. checkpoint: its folder.

    is_start: the weights are of the parent run. They may lack parameters of the encoding, and norms of
    queries and keys; parameters of the parent's own encoding are left out.
    """
    with _open_safetensors(checkpoint / WEIGHTS) as file:
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    here = model.state_dict()
    for name in sorted(saved.keys() | here.keys()):
        theirs = _shape_or_missing(saved, name)
        ours = _shape_or_missing(here, name)
        may_begin = name.startswith("encoding.") or name.endswith(("query_norm.weight", "key_norm.weight"))
        may_lack = is_start and may_begin and "missing" in (theirs, ours)
        if theirs != ours and not may_lack:
            misfit = f"{name} is {theirs} there and {ours} here"
            raise MisfitError(f"the weights in {checkpoint} do not fit this model: {misfit}")
    shared = {name: saved[name] for name in here if name in saved}
    model.load_state_dict(shared, strict=not is_start)
    loaded = model.state_dict()
    for name in [name for name in shared if name.startswith("encoding.")]:
        message = f"the encoding did not load {name} from {checkpoint}"
        mine = loaded[name].cpu()
        theirs = shared[name].to(loaded[name].dtype)
        is_loaded = torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
        require(is_loaded, f"{message}: leave loading to nn.Module")


def _shape_or_missing(tensors: Mapping[str, Tensor], name: str) -> list[int] | str:
    return list(tensors[name].shape) if name in tensors else "missing"


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}): delete {path.parent}") from error


def load_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Load the moments of every parameter into an optimizer, by the names of the model's parameters.

    Parameters without moments had no gradient yet.

    Raise `UserError` for moments of another shape: the fused kernel would write past their end.
    """
    paths = [checkpoint.path / name for name in sorted(checkpoint.checksums) if name != WEIGHTS]
    with ExitStack() as stack:
        files = [stack.enter_context(_open_safetensors(path)) for path in paths]
        for name, parameter in model.named_parameters():
            for key in MOMENTS:
                entry = f"{name}/{key}"
                parts = [file.get_tensor(entry) for file in files if entry in file.keys()]  # noqa: SIM118
                if not parts:
                    continue
                value = torch.cat(parts) if parts[0].dim() else parts[0]
                message = f"the moments in {checkpoint.path} do not fit this model: {entry}"
                require(value.shape == (() if key == "step" else parameter.shape), message)
                part = value[own_rows(parameter)] if value.dim() else value
                # A copy, because a loaded tensor may be a view of the file.
                part = part.to(parameter.device, torch.float32, copy=True)
                optimizer.state[parameter][key] = distributed(part, parameter) if part.dim() else part


# train.csv


def read_log(path: Path, last_step: int) -> list[Step]:
    """Return the rows of train.csv up to a step, [] without the file; later steps will be repeated."""
    if last_step == 0 or not path.exists():
        return []
    rows = []
    lines = csv.reader(io.StringIO(read_regular(path)))
    next(lines, None)  # the heading
    for step, tokens, *texts in lines:
        numbers: list[Any] = [float(text) if text else None for text in texts]
        rows.append(Step(int(step), int(tokens), *numbers))
    return [row for row in rows if row.step <= last_step]


def write_log(path: Path, log: list[Step]) -> None:
    """Write train.csv: a row for each logged step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Step))
    writer.writerows(astuple(step) for step in log)
    write_text(path, text.getvalue())
