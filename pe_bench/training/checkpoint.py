"""What a training leaves on the disk: its checkpoints, and train.csv with the facts of its steps.

A checkpoint is a folder of weights, optimizer state and a readable meta.json with checksums. It is written
beside its place and renamed into it, the newest two are kept, and the newest whose checksums hold is the one
that is read. Tensors are safetensors: nothing here can run code. There is no state of a random generator to
keep (`pe_bench.model.decoder`).

The weights are one file. Where a run is sharded, each process writes its rows of the optimizer's state to a
file of its own, and any number of processes goes on from these.
"""

import csv
import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.untrusted import open_regular, read_json, read_regular
from pe_bench.system.files import TEMPORARY, flush_to_disk, name_write_errors, write_text
from pe_bench.system.terminal import say
from pe_bench.training.group import Group
from pe_bench.training.optimizer import Optimizers
from pe_bench.training.sharding import distributed, gathered, is_sharded, own_part, own_rows
from pe_bench.values import check_type, shown

FORMAT = 1
KEPT = 2
WEIGHTS, OPTIMIZER, META = "weights.safetensors", "optimizer.safetensors", "meta.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: all but its path stands in its meta.json."""

    path: Path
    step: int
    train_seconds: float  # spent in training steps, over every process that worked on the run
    loss: float
    checksums: dict[str, str]


_KINDS = {name: kind for name, kind in get_type_hints(Checkpoint).items() if name != "path"}


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizers,
    step: int,
    train_seconds: float,
    loss: float,
    group: Group | None = None,
) -> None:
    """Write the checkpoint of `step` into `folder`, then drop all but the newest two.

    Each process of a `group` that the model is sharded over calls this.
    """
    group = group or Group()
    target = folder / _name(step)
    temporary = folder / group.broadcast(f"{TEMPORARY}{secrets.token_hex(4)}")
    try:
        with name_write_errors(target):
            if group.is_first:
                temporary.mkdir(parents=True)
            group.wait()
            state = model.state_dict().items()
            weights = {name: _copy(gathered(own_part(tensor), tensor)) for name, tensor in state}
            if group.is_first:
                _save_tensors(weights, temporary / WEIGHTS)
            part = f"optimizer-{group.rank + 1:05}-of-{group.count:05}.safetensors"
            moments = {
                f"{name}/{key}": _copy(own_part(value))
                for name, parameter in model.named_parameters()
                for key, value in optimizer.state(parameter).items()
                if is_sharded(value) or group.is_first
            }
            _save_tensors(moments, temporary / (OPTIMIZER if group.count == 1 else part))
            group.wait()
            if group.is_first:
                checksums = {path.name: _checksum(path) for path in sorted(temporary.iterdir(), reverse=True)}
                facts = {"format": FORMAT, "step": step, "train_seconds": train_seconds, "loss": loss}
                write_text(temporary / META, json.dumps({**facts, "checksums": checksums}, indent=1) + "\n")
                os.replace(temporary, target)
                flush_to_disk(folder)
    finally:
        if group.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
    if group.is_first:
        _delete_old(folder)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path)
    path.chmod(mode)  # of any new file: safetensors hides it from others
    flush_to_disk(path)


def _copy(tensor: Tensor) -> Tensor:
    """Copy to the CPU: a parameter that two modules share is written under both names."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def tidy_checkpoints(folder: Path) -> None:
    """Delete damaged checkpoints, with a warning, and all but the newest two of the others."""
    for path in _newest_first(folder):
        if read_checkpoint(path) is None:
            say(f"warning: {path} is damaged and was deleted")
            shutil.rmtree(path)
    _delete_old(folder)


def _delete_old(folder: Path) -> None:
    for old in _newest_first(folder)[KEPT:]:
        shutil.rmtree(old)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest undamaged checkpoint. Raise `RunError` for another format."""
    return next(filter(None, map(read_checkpoint, _newest_first(folder))), None)


def final_checkpoint(run: Path, steps: int) -> Checkpoint | None:
    """Return the checkpoint of a run's last step where its weights are whole: scoring needs nothing else."""
    checkpoint = read_checkpoint(run / "checkpoints" / _name(steps), (WEIGHTS,))
    return checkpoint if checkpoint is not None and checkpoint.step == steps else None


def read_checkpoint(path: Path, files: Sequence[str] = ()) -> Checkpoint | None:
    """Return a checkpoint whose `files` (none: all) are as they were written, else None.

    Raise `RunError` for files without permission to read, and for another format.
    """
    try:
        content = read_json(path / META)
        if content["format"] != FORMAT:
            reads = f"checkpoint format {shown(content['format'])}, and this pe-bench reads {FORMAT}"
            raise RunError(f"{path} has {reads}: use the version that wrote it, or delete the run")
        facts: Any = {name: check_type(content[name], kind, name) for name, kind in _KINDS.items()}
        checkpoint = Checkpoint(path, **facts)
        names = files or (WEIGHTS, *checkpoint.checksums)
        is_whole = all(
            Path(name).name == name and _checksum(path / name) == checkpoint.checksums[name] for name in names
        )
    except (OSError, KeyError, ValueError):
        return None
    return checkpoint if is_whole and checkpoint.step > 0 and checkpoint.train_seconds > 0 else None


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(checkpoint: Path, model: nn.Module, *, is_start: bool = False) -> None:
    """Load the weights. Raise `UserError` where they are not those of such a model, naming what differs.

    is_start: of another run, whose model may lack what begins here: parameters of the encoding, and norms of
    queries and keys. Its own encoding's are left out.
    """
    path = checkpoint / WEIGHTS
    saved = _shapes(path)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if is_start:
        shapes = {name: shape for name, shape in shapes.items() if name in saved or not _may_begin(name)}
        saved = {name: shape for name, shape in saved.items() if name in shapes or not _may_begin(name)}
    _require_fit(f"the weights in {checkpoint}", saved, shapes)
    tensors = load_file(path)
    model.load_state_dict({name: tensors[name] for name in shapes}, strict=not is_start)


def _may_begin(name: str) -> bool:
    return name.startswith("encoding.") or name.endswith(("query_norm.weight", "key_norm.weight"))


def _shapes(*paths: Path) -> dict[str, torch.Size]:
    """Return the shapes of tensors from the headers of files; each may have only some rows of a tensor."""
    shapes: dict[str, torch.Size] = {}
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                read = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} cannot be read as safetensors ({error}): delete {path.parent}"
            ) from error
        for name, shape in read.items():
            rows = shapes[name][0] if name in shapes and shape else 0
            shapes[name] = torch.Size([rows + shape[0], *shape[1:]] if shape else [])
    return shapes


def _require_fit(what: str, saved: dict[str, torch.Size], expected: dict[str, torch.Size]) -> None:
    for name in sorted(saved.keys() | expected.keys()):
        there, here = saved.get(name), expected.get(name)
        if there == here:
            continue
        misfit = f"{name} is {list(there or ())} there and {list(here or ())} here"
        if there is None or here is None:
            misfit = f"{name} is missing {'there' if there is None else 'here'}"
        raise UserError(f"{what} do not fit this model: {misfit}")


def load_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizers) -> None:
    """Give every parameter its moments back, by name.

    Raise `UserError` for other shapes than theirs: the fused kernel would write past them.
    """
    paths = [checkpoint.path / name for name in sorted(checkpoint.checksums) if name != WEIGHTS]
    saved = _shapes(*paths)
    begun = {key.rpartition("/")[0] for key in saved}  # others had no gradient yet
    kept = [(name, parameter) for name, parameter in model.named_parameters() if name in begun]
    expected = {
        f"{name}/{key}": torch.Size() if key == "step" else parameter.shape
        for name, parameter in kept
        for key in optimizer.state_keys(parameter)
    }
    _require_fit(f"the moments in {checkpoint.path}", saved, expected)
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, "pt")) for path in paths]
        for name, parameter in kept:
            for key in optimizer.state_keys(parameter):
                part = _read_rows(files, f"{name}/{key}", own_rows(parameter))
                # A copy, because what was loaded may be a view of the file.
                part = part.to(parameter.device, torch.float32, copy=True)
                value = distributed(part, parameter) if part.dim() else part
                optimizer.state(parameter)[key] = value


def _read_rows(files: Iterable[Any], name: str, rows: slice) -> Tensor:
    """Return some rows of a tensor, of which each file has a part or none; all of one that has no rows."""
    parts, first = [], 0
    for file in files:
        if name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            if not part.get_shape():
                return file.get_tensor(name)
            end = first + part.get_shape()[0]
            parts.append(part[max(rows.start, first) - first : max(min(rows.stop, end) - first, 0)])
            first = end
    return torch.cat(parts)


# train.csv


@dataclass(frozen=True)
class Step:
    """The facts of one step; one in `train.log_every` is a row of train.csv."""

    step: int
    tokens: int
    loss: float  # nats per token, of this step's batch
    validation_loss: float | None
    lr: float
    gradient_norm: float
    seconds: float  # spent in steps, since the start of the run


def read_log(path: Path, last_step: int) -> list[Step]:
    """Return the rows up to a step; later steps are taken again."""
    if last_step == 0 or not path.exists():
        return []
    kinds: dict[str, Any] = {"step": int, "tokens": int}  # the rest may be infinite, which JSON cannot say

    def parse(name: str, text: str) -> Any:
        return kinds.get(name, float)(text) if text else None

    try:
        records = csv.DictReader(io.StringIO(read_regular(path), newline=""))
        rows = [Step(**{name: parse(name, text) for name, text in record.items()}) for record in records]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        way_out = "delete it and repeat the command"
        raise RunError(f"{path} is damaged ({first_line(error)}): {way_out}") from error
    return [row for row in rows if row.step <= last_step]


def write_log(path: Path, log: list[Step]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Step)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(step) for step in log)
    write_text(path, text.getvalue())
