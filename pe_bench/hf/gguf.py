"""A GGUF file as a Hugging Face model: transformers makes a configuration and a tokenizer from its header.

Both are kept in the cache, by the file's hash. The weights stay in the file, and are dequantised to float32
whenever they are loaded.
"""

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import UserError, first_line, how_to_install, require
from pe_bench.hf.library import SAFE_OPTIONS, quiet
from pe_bench.system.files import SET_CACHE_VARIABLE, cache_key, cache_root, cached_digest, cached_folder

GGUF_SUFFIX = ".gguf"
LAYOUT_VERSION = 1  # the version of the layout of the folder in the cache
EXACT_TYPES = ("F32",)  # types of tensors without rounding
# Beginnings of names of tensors with a factor for each frequency, as in Llama 3.1 and Phi 3.
FREQUENCY_FACTORS = ("rope_freqs", "rope_factors")
ORIGINAL_HINT = "give the folder that the file was made from"


@dataclass(frozen=True)
class Weights:
    """The file of GGUF weights, their number, and how they were rounded."""

    file: Path
    rounding: str  # the types to which weights were rounded, the most frequent first; empty for none
    count: int  # the number of weights


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file at a path, or in a folder without config.json; None without such a file.

    Raises `UserError` for a folder with several GGUF files.
    """
    if path.is_file() and path.suffix == GGUF_SUFFIX:
        return path.resolve()
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    names = ", ".join(file.name for file in files[:3])
    message = f"{path} has {len(files)} GGUF files ({names}): name one, as hf:{path}/FILE{GGUF_SUFFIX}"
    require(len(files) < 2, message)
    return files[0].resolve() if files else None


def configuration_of_gguf(file: Path) -> tuple[Path, Weights]:
    """Return a folder with a file's configuration and tokenizer, and the facts of the file's weights.

    Raises `UserError` for a file that transformers cannot read, or would read as another model.
    """
    root = cache_root(None) / "gguf"
    with quiet() as transformers:
        key = cache_key(
            "gguf", LAYOUT_VERSION, transformers.__version__, cached_digest(file, cache_root(None))
        )

        def build(folder: Path) -> dict[str, Any]:
            return _write_description(file, folder, transformers)

        folder, meta = cached_folder(root, key, build, way_out=SET_CACHE_VARIABLE)
    return folder, Weights(file, str(meta["rounding"]), int(meta["count"]))


def _write_description(file: Path, folder: Path, transformers: Any) -> dict[str, Any]:
    """Write a file's configuration and tokenizer to a folder; return `rounding` and `count` of `Weights`.

    Raises `UserError` for a file that transformers cannot read.
    """
    reader = _open_gguf(file)
    architecture = _text_of_key(reader, "general.architecture")
    scaling = _text_of_key(reader, f"{architecture}.rope.scaling.type")
    unread = [tensor.name for tensor in reader.tensors if tensor.name.startswith(FREQUENCY_FACTORS)]
    if scaling not in ("", "none"):
        unread.insert(0, f"the scaling {scaling}")
    if unread:
        raise UserError(
            f"{file} rotates by {unread[0]}, which transformers does not read there: {ORIGINAL_HINT}"
        )
    with tempfile.TemporaryDirectory(prefix="pe-bench-") as name:
        (Path(name) / file.name).symlink_to(file)
        try:
            options = {"gguf_file": file.name, **SAFE_OPTIONS}
            transformers.AutoConfig.from_pretrained(name, **options).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(name, **options).save_pretrained(folder)
        except Exception as error:  # whatever transformers raises for a file that it does not know
            reason = f"transformers {transformers.__version__} cannot read it ({first_line(error)[:200]})"
            raise UserError(f"{file}: {reason}: {ORIGINAL_HINT}") from error
    numbers_by_type: Counter[str] = Counter()
    for tensor in reader.tensors:
        numbers_by_type[tensor.tensor_type.name] += int(tensor.n_elements)
    rounded = [name for name, _ in numbers_by_type.most_common() if name not in EXACT_TYPES]
    return {"rounding": ", ".join(rounded), "count": numbers_by_type.total()}


def _open_gguf(file: Path) -> Any:
    """Return the reader of a GGUF file. Raise `UserError` for missing packages and another format."""
    try:
        import accelerate  # noqa: F401  (transformers needs it for the weights)
        import gguf
    except ImportError as error:
        reason = f"GGUF files need the packages gguf and accelerate ({first_line(error)})"
        raise UserError(f"{reason}: {how_to_install('hf')}") from error
    try:
        return gguf.GGUFReader(file)
    except Exception as error:  # it has no kind of its own for a damaged file
        raise UserError(
            f"{file} cannot be read as GGUF ({first_line(error)[:200]}): download it again"
        ) from error


def _text_of_key(reader: Any, key: str) -> str:
    """Return the text of a key in a file's header; empty without the key."""
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def dequantising_arguments(transformers: Any, file: Path) -> dict[str, Any]:
    """Return the arguments by which transformers loads the weights of a file as float32."""
    load_options: dict[str, Any] = {"gguf_file": file.name}
    # Newer versions keep the blocks of the file, and compute with kernels that they would download.
    if hasattr(transformers, "GgufConfig"):
        load_options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return load_options


def forget_rounding(model: Any) -> None:
    """Remove the mark of a GGUF file from a model, because transformers refuses to write a marked model."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
