"""The files of a Hugging Face model: finding and checking them, their identity, and loading them.

A model's folder may be a stranger's: only JSON, the tokenizer and safetensors are read, and only from this
folder. transformers loads the model from a folder that has only the files of the identity: no other file can
change a score, whatever a configuration names. No code of a model runs, and no weight is left to chance.
"""

import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pe_bench.config.schema import HF_IDENTITY_VERSION
from pe_bench.data.tokenizer import library_errors
from pe_bench.errors import UserError, first_line, require
from pe_bench.hf.gguf import (
    ORIGINAL_HINT,
    Weights,
    configuration_of_gguf,
    dequantising_arguments,
    find_gguf,
    forget_rounding,
)
from pe_bench.hf.library import SAFE_OPTIONS, quiet
from pe_bench.runs.find import HF_PREFIX
from pe_bench.system.files import cache_root, cached_digest
from pe_bench.system.terminal import one_line
from pe_bench.values import check_type, expand_user

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Keys of a configuration, or of a part of it, by which transformers would load other files than those below.
KEYS_OF_OTHER_FILES = {
    "configuration_files": f"takes its configuration from other files: keep one, named {CONFIG}",
    "transformers_weights": f"takes its weights from another file: name it {WEIGHTS}",
    "fusion_config": "asks transformers for other layers",
}
QUANTISED_KEY = "quantization_config"
TOKENIZERS_KEY = "fast_tokenizer_files"  # a key by which tokenizer_config.json names other files
FETCHED_FILES = [CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG, INDEX, "model*.safetensors"]
REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")
REPLACED_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
OFFLINE_HINT = "download it on a machine with a network, and give its folder: hf:FOLDER"


@dataclass(frozen=True)
class Source:
    """A Hugging Face model on this disk: its address, its folder of files, and the weights of a GGUF file."""

    address: str  # hf:FOLDER with an absolute path, or hf:OWNER/NAME without a revision
    # The folder of the model's files; for a GGUF file, of the files that transformers makes from it.
    folder: Path
    revision: str | None = None  # the revision on the Hub
    gguf: Weights | None = None  # the weights of a GGUF file

    @property
    def name(self) -> str:
        """Return the name in tables: the last part of the repository's or the folder's name."""
        last = self.address.rpartition("/")[2]
        return REPLACED_IN_NAMES.sub("-", last).strip("-.") or "model"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the values of config.json."""
        return read_json(self.folder / CONFIG)

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """Return the settings of the tokenizer; empty without their file."""
        path = self.folder / TOKENIZER_CONFIG
        return read_json(path) if path.is_file() else {}

    def identity(self, cache_dir: str | None) -> str:
        """Return a hash of all files on which scores depend; digests of weights are kept in the cache."""
        hasher = hashlib.sha256(f"version {HF_IDENTITY_VERSION}".encode())
        for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG):
            path = self.folder / name
            part = b"none"
            if path.exists():
                part = hashlib.sha256(path.read_bytes()).digest()
            hasher.update(part)
        for path in self.weights:
            digest = cached_digest(path, cache_root(cache_dir))
            hasher.update(f"{path.name} {digest}".encode())
        return hasher.hexdigest()[:16]

    @property
    def is_indexed(self) -> bool:
        """Return whether an index names the files of weights; transformers prefers a single file."""
        has_single_file = self.gguf is not None or (self.folder / WEIGHTS).exists()
        return not has_single_file and (self.folder / INDEX).exists()

    @cached_property
    def weights(self) -> list[Path]:
        """Return the files of weights. Raise `UserError` for a missing file, or one outside the folder."""
        if self.gguf is not None:
            return [self.gguf.file]
        index = self.folder / INDEX
        names = [WEIGHTS]
        if self.is_indexed:
            files = check_type(read_json(index).get("weight_map"), dict[str, Any], f"weight_map of {index}")
            names = sorted({str(name) for name in files.values()})
        for name in names:
            is_plain = name == Path(name).name and name.endswith(".safetensors")
            require(is_plain, f"{index} names {one_line(name)!r}, which is not a file in its folder")
            message = f"{self.folder} has no {name}: safetensors alone are read, for others may run code"
            require((self.folder / name).is_file(), message)
        return [self.folder / name for name in names]


def read_source(text: str) -> Source:
    """Find the model of an address: a folder, a GGUF file, or a repository, which is downloaded.

    text: hf:FOLDER, hf:FILE or hf:OWNER/NAME[@REVISION]. Raises `UserError`.
    """
    named = text.removeprefix(HF_PREFIX)
    folder = Path(expand_user(named, HF_PREFIX))
    file = find_gguf(folder) if named else None
    if file is not None:
        made, weights = configuration_of_gguf(file)
        return require_whole(Source(f"{HF_PREFIX}{folder.resolve()}", made, gguf=weights))
    if named and folder.is_dir():
        return require_whole(Source(f"{HF_PREFIX}{folder.resolve()}", folder.resolve()))
    repository, _, revision = named.partition("@")
    message = f"{text} is neither a folder nor a repository: say hf:FOLDER or hf:OWNER/NAME[@REVISION]"
    require(REPOSITORY.fullmatch(repository) is not None, f"{message}, or a file as hf:FILE.gguf")
    from huggingface_hub import snapshot_download

    from pe_bench.data import hub

    address = f"{HF_PREFIX}{repository}"
    with hub.hub_errors(address, OFFLINE_HINT):  # from the Hub's cache where it is there
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=FETCHED_FILES))
    return require_whole(Source(address, folder, revision or None))


def require_whole(source: Source) -> Source:
    """Return the source itself. Raise `UserError` unless its folder has a whole model in plain files."""
    folder = source.folder
    config = folder / CONFIG
    for path in folder.iterdir():
        require(path.is_file() or path.is_dir(), f"{path} is not a regular file: delete it")
        # The snapshots in the Hub's cache have links to its blobs.
        targets = [folder, folder.parent.parent / "blobs"]
        is_inside = any(path.resolve().is_relative_to(target) for target in targets)
        message = f"{path} is a symbolic link out of its folder: replace it by the file itself"
        require(is_inside or not path.is_symlink(), message)
    # transformers would load the weights of the other one, wherever they lie.
    message = f"{folder} is an adapter of another model: merge the two, and give the merged folder"
    require(not (folder / "adapter_config.json").exists(), message)
    keys = _keys_with_values(source.config)
    for key, problem in KEYS_OF_OTHER_FILES.items():
        require(key not in keys, f"{config} {problem}, and leave out the key {key}")
    message = f"{source.name} is quantised, and its rounding would be scored with it: give it in bfloat16"
    require(QUANTISED_KEY not in keys, message)
    settings = source.tokenizer_config
    message = f"{folder / TOKENIZER_CONFIG} takes the tokenizer from other files: keep one, named {TOKENIZER}"
    require(not settings.get(TOKENIZERS_KEY), f"{message}, and leave out the key {TOKENIZERS_KEY}")
    require(bool(source.weights), f"{folder} has no weights")
    return source


def _keys_with_values(config: Any) -> set[str]:
    """Return the keys with a value in a configuration and its parts.

    A part, such as `text_config`, is a configuration of its own to transformers.
    """
    if isinstance(config, list):
        return set().union(*map(_keys_with_values, config))
    if not isinstance(config, dict):
        return set()
    own = {key for key, value in config.items() if value}
    return own.union(*map(_keys_with_values, config.values()))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raise `UserError` if the file has no object."""
    try:
        return check_type(json.loads(path.read_bytes()), dict[str, Any], str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({one_line(str(error))[:200]})") from error


def begin_of_text(source: Source) -> list[int]:
    """Return the special tokens that the model's tokenizer puts before a text: usually one or none."""
    import tokenizers

    path = source.folder / TOKENIZER
    with library_errors(f"{path} cannot be read: save it with a fast tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # A saved tokenizer may pad and truncate; padding puts tokens before a text too.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        encoded = tokenizer.encode("a")
    is_special = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
    before = [token for token, _ in takewhile(lambda each: each[1], is_special)]
    about = source.tokenizer_config
    if before or not about.get("add_bos_token"):
        return before
    named = about.get("bos_token")
    name = named.get("content") if isinstance(named, dict) else named
    token = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return [] if token is None else [token]


@contextmanager
def files_alone(source: Source) -> Iterator[Path]:
    """Yield a temporary folder with the model's configuration and weights, and no other file."""
    with tempfile.TemporaryDirectory(prefix="pe-bench-") as name:
        folder = Path(name)
        shutil.copyfile(source.folder / CONFIG, folder / CONFIG)
        if source.is_indexed:
            shutil.copyfile(source.folder / INDEX, folder / INDEX)
        for path in source.weights:
            (folder / path.name).symlink_to(path.resolve())
        yield folder


def load_config(source: Source) -> Any:
    """Return transformers' configuration of the model. Raise `UserError` for an unknown architecture."""
    with quiet() as transformers, files_alone(source) as folder:
        try:
            return transformers.AutoConfig.from_pretrained(folder, **SAFE_OPTIONS)
        except Exception as error:  # it raises kinds of its own, and those of json
            reason = f"transformers {transformers.__version__} cannot read its configuration"
            if source.config.get("auto_map"):
                reason = "it comes with its own code, and pe-bench runs none"
            kind = f"{source.name} (model_type {source.config.get('model_type')!r:.60})"
            raise UserError(f"{kind}: {reason} ({first_line(error)[:200]})") from error


def load_model(source: Source, config: Any) -> Any:
    """Load the model with float32 weights and transformers' attention. Raises `UserError`."""
    options: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True}
    with quiet() as transformers, files_alone(source) as folder:
        load = transformers.AutoModelForCausalLM.from_pretrained
        if source.gguf is None:
            options["use_safetensors"] = True
        else:
            options |= dequantising_arguments(transformers, source.gguf.file)
        try:
            if source.is_indexed:
                _require_indexed(source)
            # The reader of GGUF files has a progress bar of its own.
            with redirect_stderr(io.StringIO()) if source.gguf is not None else nullcontext():
                model, report = load(folder, config=config, dtype=torch.float32, **options, **SAFE_OPTIONS)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{source.name} cannot be loaded ({first_line(error)[:300]})") from error
    missing, unused = (_first_names(report[kind]) for kind in ("missing_keys", "unexpected_keys"))
    message = f"{source.folder} lacks weights ({missing}), which would be random: download it again"
    require(not missing, message)
    message = f"{source.folder} has weights that a model as in {CONFIG} does not use ({unused})"
    require(not unused, f"{message}: its model_type or another key is not that of the weights")
    if source.gguf is not None:
        tensors = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
        here = sum(tensors.values())
        there = source.gguf.count
        numbers = f"{source.name} has {there:,} weights, of which transformers' model has {here:,}"
        require(here == there, f"{numbers}: {ORIGINAL_HINT}")
        forget_rounding(model)
    return model.eval()


def _first_names(names: Iterable[str]) -> str:
    """Return the first three of the sorted names of weights, as text."""
    return ", ".join(one_line(str(name)) for name in sorted(names)[:3])


def _require_indexed(source: Source) -> None:
    """Raise `UserError` for a file of weights with tensors that the index does not expect there.

    transformers loads all tensors of each file; of two tensors with one name, the last.
    """
    weight_map = read_json(source.folder / INDEX)["weight_map"]
    for path in source.weights:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        unexpected = _first_names(name for name in names if weight_map.get(name) != path.name)
        message = f"{path} has weights that {INDEX} does not expect there ({unexpected}): download both again"
        require(not unexpected, message)
