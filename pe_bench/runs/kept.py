"""Runs without their weights: the files of a run from which rows, verdicts and pictures can be made.

The folder of such a run has its configuration, environment, result and rows, the steps of train.csv that
have a validation loss, and `means.safetensors` with the means by cluster (a document or a part of one) of
all targets and of the recall targets, in float32. Code that reads runs reads these too.
"""

import csv
import io
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from pe_bench.config.schema import HF_SECTION
from pe_bench.errors import RunError
from pe_bench.runs.find import anchor_key, read_anchors
from pe_bench.runs.folder import RunFolder, read_config, read_result, write_config
from pe_bench.runs.rows import ALL, TASK, Row, has_number, read_rows, write_rows
from pe_bench.runs.scores import MEANS_FILE, RECALL, read_tensors, score_file, score_name, write_tensors
from pe_bench.runs.untrusted import read_regular
from pe_bench.system.files import replace_folder, write_json, write_text

ENVIRONMENT, RESULT, LOG = "environment.json", "result.json", "train.csv"


def copy_run(run: Path, rows: Sequence[Row], destination: Path) -> None:
    """Copy a finished run without weights to the folder `destination`: its facts, these rows and their means.

    Other rows that `destination` has already stay. Raises `RunError` if the run is not finished, or lacks the
    means of a row.
    """
    result = read_result(run)
    if result is None:
        raise RunError(f"{run} is not finished")
    with replace_folder(destination) as temporary:
        _copy_config(run, temporary)
        shutil.copyfile(run / ENVIRONMENT, temporary / ENVIRONMENT)
        if HF_SECTION in result:
            result[HF_SECTION] = _without_folders(str(result[HF_SECTION]))
        write_json(temporary / RESULT, result)
        _copy_validation_losses(run, temporary)
        _copy_scores(run, rows, temporary)
        _add_earlier(destination, temporary)


def copy_anchors(anchors: Path, rows: Sequence[Row], destination: Path) -> None:
    """Copy the rows of anchors with which `rows` of runs are compared, to a folder for each anchor.

    anchors: the folder of the anchors. destination: the folder that gets the folders."""
    stored = read_anchors(anchors)
    keys = {anchor_key(row) for row in rows}
    rows_of: dict[str, list[Row]] = {}
    for (_, *key), row in stored.rows.items():
        if tuple(key) in keys:
            rows_of.setdefault(row.run, []).append(row)
    for name, anchor_rows in rows_of.items():
        kept = RunFolder(destination / name).rows
        new = {row.key for row in anchor_rows}
        if not new <= {row.key for row in kept}:
            with replace_folder(destination / name) as temporary:
                _copy_scores(stored.folders[name].path, anchor_rows, temporary)
                _add_earlier(destination / name, temporary)


def _copy_config(run: Path, destination: Path) -> None:
    """Write a run's configuration without the folders of the machine that made it."""
    config = read_config(run)
    if config.hf_model is not None:
        path = Path(config.tokenizer.name or "")
        tokenizer = replace(config.tokenizer, name=path.name)
        about = replace(config.hf_model, source=_without_folders(config.hf_model.source))
        config = replace(config, hf_model=about, tokenizer=tokenizer)
    folder_names: dict[str, str] = {}
    for key in ("path", "validation_path"):
        path = getattr(config.data, key)
        if path:
            folder_names[key] = Path(path).name
    data = replace(config.data, **folder_names)
    kept = replace(config, results_dir="results", cache_dir=None, data=data)
    write_config(destination, kept, resolves=False)


def _copy_validation_losses(run: Path, destination: Path) -> None:
    """Write the steps of a run's train.csv that have a validation loss; nothing without train.csv."""
    if not (run / LOG).exists():
        return
    logged = csv.DictReader(io.StringIO(read_regular(run / LOG)))
    text = io.StringIO()
    writer = csv.DictWriter(text, logged.fieldnames or (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(step for step in logged if step.get("validation_loss"))
    write_text(destination / LOG, text.getvalue())


def _without_folders(address: str) -> str:
    """Return the address of a Hugging Face model, `hf:PATH`, with only the last name of its path."""
    kind, _, path = address.partition(":")
    return f"{kind}:{Path(path).name}"


def _add_earlier(destination: Path, temporary: Path) -> None:
    """Add to `temporary` the rows and means in `destination`, which another piece of the study may need."""
    earlier = RunFolder(destination).rows
    if not earlier:
        return
    write_rows(temporary / "eval.csv", [*earlier, *read_rows(temporary / "eval.csv")])
    if (destination / MEANS_FILE).is_file():
        kept, about = read_tensors(destination / MEANS_FILE)
        new, new_facts = read_tensors(temporary / MEANS_FILE)
        facts = {"means": about["means"] | new_facts["means"], "judges": {}}
        write_tensors(temporary / MEANS_FILE, kept | new, facts)
    for scores in (destination / "scores").glob("*"):
        if not (temporary / "scores" / scores.name).exists():
            shutil.copyfile(scores, temporary / "scores" / scores.name)


def _copy_scores(run: Path, rows: Sequence[Row], destination: Path) -> None:
    """Write the rows, and their means or a task's answers. Raises `RunError` for missing means."""
    write_rows(destination / "eval.csv", rows)
    scored = [row for row in rows if has_number(row)]
    if any(row.protocol == TASK for row in scored):
        _copy_answers(run, scored, destination)
        return
    means = RunFolder(run).means
    for row in scored:
        if means.of(row) is None:
            raise RunError(f"{run} has no means by document of {score_name(row)}: pe-bench eval makes them")
    tensors, facts = read_tensors(run / MEANS_FILE)
    wanted = [f"{score_name(row)} {part}" for row, part in product(scored, (ALL, RECALL))]
    names = [name for name in wanted if name in facts["means"]]
    kept = {name: tensors[name].astype(np.float32) for name in names}
    means = {name: facts["means"][name] for name in names}
    write_tensors(destination / MEANS_FILE, kept, {"means": means, "judges": {}})


def _copy_answers(run: Path, rows: Sequence[Row], destination: Path) -> None:
    """Copy the score files of a task: its verdicts need the answer to each question, and not only means."""
    for row in rows:
        kept = score_file(destination, row)
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(score_file(run, row), kept)
