"""`export`: a finished run, or a Hugging Face model with a scaling, as a folder that transformers loads."""

import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from pe_bench.commands.job import load, trusted
from pe_bench.config.schema import Config, TokenizerConfig
from pe_bench.data.packed import cached_tokenizer
from pe_bench.data.tokenizer import load_hub, tokenizer_file, write_byte_tokenizer, write_tokenizer_config
from pe_bench.errors import require
from pe_bench.hf.export import (
    exported_settings,
    require_rescaled,
    rescaled_config,
    write_model,
    write_weights,
)
from pe_bench.hf.load import hf_model_config
from pe_bench.hf.opened import open_hf_model
from pe_bench.hf.source import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Source,
    load_config,
    read_source,
)
from pe_bench.model.decoder import Decoder
from pe_bench.report.build import run_tables
from pe_bench.report.columns import to_markdown
from pe_bench.report.records import BITS
from pe_bench.runs.find import find_run
from pe_bench.runs.folder import RunFolder, read_config
from pe_bench.runs.typed import recorded_commands
from pe_bench.scoring.other_encodings import find_others, read_with
from pe_bench.system.cost import count
from pe_bench.system.files import TEMPORARY_PREFIX, name_write_errors
from pe_bench.system.terminal import say
from pe_bench.training.checkpoint import WEIGHTS, load_weights, require_trained


def export_run(name: str, folder: Path, results_dir: Path) -> None:
    """Write a run's final weights, encoding and tokenizer to a new folder. Raise `UserError`, `RunError`."""
    _require_new_folder(folder)
    run = find_run(name, results_dir)
    # A run may come from a stranger, whose cache folder is not used.
    config = replace(read_config(run), cache_dir=None, threads="auto", device="cpu")
    require(config.hf_model is None, f"{run.name} is a Hugging Face model already")
    require(config.task is None, f"{run.name} is trained on a task, whose tokens no tokenizer makes")
    trained = require_trained(run, config.train.total_steps)
    job, _ = load(trusted(config, ()), run=run)
    model = job.model
    assert isinstance(model, Decoder)
    settings, is_interleaved = exported_settings(config, model, job.data.end_of_text)
    load_weights(trained.path, model)
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{folder.name}")
    with name_write_errors(folder):
        temporary.mkdir(parents=True)
        try:
            difference = write_model(temporary, config, model.eval(), settings, is_interleaved=is_interleaved)
            _write_tokenizer(temporary, config.tokenizer, cached_tokenizer(config))
            card = _model_card(RunFolder(run), config, model.parameter_count, trained.checksums[WEIGHTS])
            (temporary / "README.md").write_text(card, encoding="utf-8")
            for path in temporary.iterdir():  # safetensors hides its files from others
                path.chmod((temporary / "README.md").stat().st_mode)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    say(f"{run.name} is written to {folder}; its logits there are equal to {difference:.1g} of the largest")
    say(f"load it with transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})")


def export_hf_model(text: str, scaling: str, folder: Path, results_dir: Path) -> None:
    """Write a Hugging Face model with a scaling in its configuration to a new folder.

    text: hf:FOLDER or hf:OWNER/NAME. scaling: such as `yarn factor=2`. Raises `UserError`, `RunError`.
    """
    _require_new_folder(folder)
    config = hf_model_config(text, [], {}, {}, results_dir)
    assert config.hf_model is not None
    source = read_source(text)
    length = config.trained_length
    first_ids = config.hf_model.first_token_ids
    opened = open_hf_model(source, load_config(source), length, first_ids, torch.float32, plain=False)
    why = opened.model.why_encoding_stays
    require(not why, f"{source.name} {why}, so --with has nothing to replace")
    config = replace(config, encoding=opened.encoding, model=opened.size)
    others = find_others(read_with([scaling]), source.name, config, force=None)
    way_out = "give a single one with its factor, such as 'yarn factor=2'"
    message = f"--with {scaling} is not one encoding other than that of {source.name}: {way_out}"
    require(len(others) == 1, message)
    spec = others[0].encoding
    has_factor = spec.base.options.get("factor", 1.0) is not None
    require(has_factor, f"--with {scaling} has another factor in each window, and a file has one: {way_out}")
    values = rescaled_config(source, opened, spec, length)
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{folder.name}")
    with name_write_errors(folder):
        temporary.mkdir(parents=True)
        try:
            if source.gguf is None:
                _copy_files(source, temporary)
                config_text = json.dumps(values, indent=2)
                (temporary / CONFIG).write_text(f"{config_text}\n", encoding="utf-8")
            else:
                write_weights(temporary, source, opened.model.causal, values)
            written = Source(f"hf:{temporary}", temporary)
            difference = require_rescaled(written, opened, spec, length)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    equal = f"its logits there are equal to {difference:.1g} of the largest"
    say(f"{source.name} with {others[0].label} is written to {folder}; {equal}")


def _copy_files(source: Source, folder: Path) -> None:
    """Copy the weights and the tokenizer of a Hugging Face model to a folder."""
    names = [TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG]
    if source.is_indexed:
        names.append(INDEX)
    files = [source.folder / name for name in names]
    for path in [*filter(Path.is_file, files), *source.weights]:
        shutil.copyfile(path, folder / path.name)


def _require_new_folder(folder: Path) -> None:
    """Raise `UserError` for a path that is neither free for a new folder nor an empty folder."""
    message = f"--hf {folder} is no name of a new folder: say --hf {folder}/NAME"
    require(folder.name not in ("", ".."), message)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    is_new = is_empty or not folder.exists()
    require(is_new, f"--hf {folder} exists and is not empty: name a new folder")


CARD_TEMPLATE = """---
{front}---

# {name}

A decoder of {parameters:,} parameters with the positional encoding `{label}`, trained by pe-bench on
{data} ({data_hash}) at {length:,} tokens for {steps}, to measure what happens past that length.
It is not meant for other uses.

{scores}
Made by `{command}`; run {name}, weights SHA-256 {weights}.
"""


def _model_card(run: RunFolder, config: Config, parameters: int, weights: str) -> str:
    """Return the model card: front matter for programs, and facts of the training and scores for people.

    parameters: their number. weights: the SHA-256 of the file of weights.
    """
    trained = [row for row in run.rows if row.scored_with == row.encoding]
    rows = [row for row in trained if row.protocol == "paired"]
    whole = [row for row in rows if not row.half]
    tables = run_tables(whole, run.path, config.report.margin)
    metrics = []
    if tables and tables[0].measure is BITS:
        for record in tables[0].records:
            if record.level is not None:
                name = f"bits per byte at {record.length} tokens"
                metrics.append({"type": "bits_per_byte", "name": name, "value": record.level})
    is_of_hub = config.data.source == "hub"  # and not a folder of this machine
    text = {"type": config.data.path if is_of_hub else config.data.name, "name": config.data.name}
    results = [{"task": {"type": "text-generation"}, "dataset": text, "metrics": metrics}]
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["pe-bench", "positional-encoding", str(config.encoding["name"])],
        "model-index": [{"name": run.path.name, "results": results}],
    }
    label = config.encoding["name"]
    data_hash = ""
    if rows:
        label = rows[0].encoding
        data_hash = rows[0].data_hash
    command = next(iter(recorded_commands(run.path)), "pe-bench train")
    return CARD_TEMPLATE.format(
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
        name=run.path.name,
        label=label,
        parameters=parameters,
        data=config.data.name,
        data_hash=data_hash,
        length=config.train.length,
        steps=count(config.train.total_steps, "step"),
        scores=to_markdown(tables[:1], details=True),
        command=command,
        weights=weights,
    )


def _write_tokenizer(folder: Path, config: TokenizerConfig, cached: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers reads them.

    cached: the file of the trained tokenizer, for the kind `bpe`.
    """
    if config.kind == "bytes":
        write_byte_tokenizer(folder)
        return
    path = folder / "tokenizer.json"
    if config.kind == "hub":
        load_hub(config).tokenizer.save(str(path))
    elif config.kind == "file":
        shutil.copyfile(tokenizer_file(config), path)
    else:
        shutil.copyfile(cached, path)
    write_tokenizer_config(folder)
