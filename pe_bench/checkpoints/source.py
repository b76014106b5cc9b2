"""Where a checkpoint is, that its files are plain ones, and what identifies it.

Its folder may be a stranger's: only JSON, the tokenizer and safetensors are read, and all of them lie in it.
transformers loads it: no code of its folder runs, and nothing of it is left to chance.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pe_bench.errors import UserError, first_line, require
from pe_bench.system.files import cache_root, cached_digest, check_name, expand_path
from pe_bench.system.terminal import one_line
from pe_bench.values import check_type

PREFIX = "hf:"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OTHER_WEIGHTS = "transformers_weights"  # a key by which a configuration names another file
FETCHED = [CONFIG, TOKENIZER, TOKENIZER_CONFIG, "generation_config.json", INDEX, "model*.safetensors"]
REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")
MAX_JSON_BYTES = 2**27  # a tokenizer's merges are the largest; configurations have a few thousand
SILENT = 50  # nothing but what ends the program
INSTALL = "pip install 'pe-bench[hf]'"
WITHOUT = "download it on a machine with a network, and give its folder: hf:FOLDER"


@dataclass(frozen=True)
class Source:
    """The folder of a checkpoint, as the user named it; `revision` is a Hub's."""

    text: str  # without the prefix and the revision
    folder: Path
    revision: str | None = None
    is_local: bool = True

    @property
    def name(self) -> str:
        """Return the name in tables: the last part of the repository's or the folder's."""
        last = self.folder.name if self.is_local else self.text.rpartition("/")[2]
        return NOT_IN_A_NAME.sub("-", last).strip("-.") or "checkpoint"

    @property
    def address(self) -> str:
        """Return how to name it from any folder, without the revision."""
        return f"{PREFIX}{self.folder if self.is_local else self.text}"

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / CONFIG)

    @property
    def tokenizer(self) -> Path:
        return self.folder / TOKENIZER

    def identity(self, cache_dir: str | None) -> str:
        """Return a hash of all files that scores follow from; digests of weights are kept in the cache."""
        hasher = hashlib.sha256()
        for path in (self.folder / name for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG)):
            hasher.update(hashlib.sha256(path.read_bytes()).digest() if path.exists() else b"none")
        for path in self.weights:
            hasher.update(f"{path.name} {cached_digest(path, cache_root(cache_dir))}".encode())
        return hasher.hexdigest()[:16]

    @cached_property
    def weights(self) -> list[Path]:
        """Return the files of weights. Raise `UserError` where there is none, or one elsewhere."""
        index, names = self.folder / INDEX, [WEIGHTS]
        # transformers takes the one file where there is an index beside it.
        if not (self.folder / WEIGHTS).exists() and index.exists():
            weight_map = read_json(index).get("weight_map")
            names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
        require(bool(names), f"{index} names no weights: its weight_map has to give the file of each")
        for name in names:
            is_plain = name == Path(name).name and name.endswith(".safetensors")
            require(is_plain, f"{index} names {one_line(name)!r}, which is not a file in its folder")
            pickled = ", ".join(sorted(path.name for path in self.folder.glob("*.bin")))
            also = f"; {pickled} would run code when read" if pickled else ""
            message = f"{self.folder} has no {name}{also}: pe-bench reads weights as safetensors alone"
            require((self.folder / name).is_file(), message)
        return [self.folder / name for name in names]


def read_source(text: str) -> Source:
    """Return the checkpoint that `hf:REPO_OR_FOLDER[@revision]` names; a repository is downloaded."""
    named = text.removeprefix(PREFIX)
    require(named != "", f"{text} names no checkpoint: say hf:FOLDER or hf:OWNER/NAME")
    folder = expand_path(named, PREFIX)
    if folder.is_dir():
        check_name(str(folder.resolve()), PREFIX)
        return checked(Source(named, folder.resolve()))
    repository, _, revision = named.partition("@")
    require(
        REPOSITORY.fullmatch(repository) is not None,
        f"{text} is neither a folder nor the name of a repository: say hf:FOLDER or hf:OWNER/NAME[@REVISION]",
    )
    from huggingface_hub import snapshot_download

    from pe_bench.data import hub

    with hub.hub_errors(f"hf:{repository}", WITHOUT):  # from the Hub's cache where it is there
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=FETCHED))
    return checked(Source(repository, folder, revision or None, is_local=False))


def checked(source: Source) -> Source:
    """Return the source. Raise `UserError` for a folder that is not a whole checkpoint of plain files."""
    folder = source.folder
    for path in folder.iterdir():
        _refuse_outside(path, folder)
    require((folder / CONFIG).is_file(), f"{folder} has no {CONFIG}: it is not a transformers checkpoint")
    require(source.tokenizer.is_file(), f"{folder} has no {TOKENIZER}: save it with a fast tokenizer")
    # transformers would load the weights of the other one, wherever they lie.
    message = f"{folder} is an adapter of another checkpoint: merge the two, and give the merged folder"
    require(not (folder / "adapter_config.json").exists(), message)
    message = (
        f"{folder / CONFIG} takes its weights from {OTHER_WEIGHTS}: name them {WEIGHTS}, without the key"
    )
    require(source.config.get(OTHER_WEIGHTS) is None, message)
    message = f"{source.name} is quantised, and its rounding would be scored with it: give it in bfloat16"
    require(not source.config.get("quantization_config"), message)
    _ = source.weights
    return source


def _refuse_outside(path: Path, folder: Path) -> None:
    """Refuse links that leave the folder; the Hub's cache links to its blobs, beside the snapshots."""
    require(path.is_file() or path.is_dir(), f"{path} is not a regular file: delete it")
    targets = [folder, folder.parent.parent / "blobs"] if path.is_symlink() else [path.parent.resolve()]
    is_inside = any(path.resolve().is_relative_to(target) for target in targets)
    require(is_inside, f"{path} is a symbolic link out of its folder: replace it by the file itself")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON. Raise `UserError` for anything else."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
        require(len(content) <= MAX_JSON_BYTES, f"{path} has more than {MAX_JSON_BYTES:,} bytes")
        return check_type(json.loads(content), dict[str, Any], str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({one_line(str(error))[:200]})") from error


@contextmanager
def quiet() -> Iterator[Any]:
    """Yield transformers, which prints nothing inside. Raise `UserError` where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"checkpoints need transformers ({first_line(error)}): {INSTALL}") from error
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(SILENT)
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_config(source: Source) -> Any:
    """Return the checkpoint's configuration. Raise `UserError` for a model that transformers lacks."""
    kind = f"{source.name} (model_type {source.config.get('model_type')!r:.60})"
    with quiet() as transformers:
        try:
            config = transformers.AutoConfig.from_pretrained(
                source.folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # it raises kinds of its own, and those of json
            reason = f"transformers {transformers.__version__} cannot read its configuration"
            if source.config.get("auto_map"):
                reason = "it comes with its own code, and pe-bench runs none"
            raise UserError(f"{kind}: {reason} ({first_line(error)[:200]})") from error
        is_causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
        is_causal &= not getattr(config, "is_encoder_decoder", False)
    require(is_causal, f"{kind} is not a decoder-only language model of transformers")
    return config


def load_model(source: Source, config: Any, dtype: torch.dtype) -> Any:
    """Return the model with its weights, attending as transformers does. Raise `UserError`."""
    with quiet() as transformers:
        try:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                source.folder,
                config=config,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                attn_implementation="eager",
                dtype=dtype,
                output_loading_info=True,
            )
        except Exception as error:
            raise UserError(f"{source.name} cannot be loaded ({first_line(error)[:300]})") from error
    missing = ", ".join(sorted(map(str, report["missing_keys"]))[:3])
    message = f"{source.folder} lacks weights ({missing}), which would be random: download it again"
    require(not missing, message)
    return model.eval()
