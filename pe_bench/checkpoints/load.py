"""A checkpoint as transformers loads it: no code of its folder runs, and nothing of it is left to chance."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pe_bench.checkpoints.source import CONFIG, Source
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.memory import is_out_of_memory
from pe_bench.system.terminal import say

SILENT = 50  # nothing but what ends the program
MAX_LAYERS = 1_000  # a configuration of more would take hours to build
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
MISMATCHED = "ignore_mismatched_sizes"  # the argument that transformers' refusal names
INSTALL = "pip install 'pe-bench[hf]'"


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
    with quiet() as transformers:
        known = source.config.get("model_type")
        try:
            found = transformers.AutoConfig.from_pretrained(
                source.folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # it raises kinds of its own, and those of json
            if source.config.get("auto_map"):
                raise UserError(
                    f"{source.name} (model_type {known!r:.60}) comes with its own code, and pe-bench runs "
                    "none: only architectures that transformers has can be scored"
                ) from error
            raise UserError(
                f"{source.name}: transformers {transformers.__version__} cannot read its configuration "
                f"({first_line(error)[:200]})"
            ) from error
        if type(found) not in transformers.AutoModelForCausalLM._model_mapping:
            raise UserError(
                f"{source.name} (model_type {known!r:.60}) is not a causal language model of transformers"
            )
        if getattr(found, "is_encoder_decoder", False):
            raise UserError(f"{source.name} has an encoder: only models that read one text can be scored")
        _check_layers(source, found)
        return found


def _check_layers(source: Source, config: Any) -> None:
    text = config.get_text_config(decoder=True)
    for name in LAYERS:
        count = getattr(text, name, 1)
        require(
            isinstance(count, int) and 0 < count <= MAX_LAYERS,
            f"{source.folder / CONFIG} has {name}={count!r:.20}, and models have 1 to {MAX_LAYERS:,} layers",
        )


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
            require(
                MISMATCHED not in str(error),
                f"{source.folder}: the sizes in {CONFIG} are not those of its weights: download it again",
            )
            raise UserError(f"{source.name} cannot be loaded ({first_line(error)[:300]})") from error
    missing = sorted(map(str, report.get("missing_keys", [])))
    if missing:
        raise UserError(
            f"{source.folder} lacks weights ({_some(missing)}), which would be random: download it again"
        )
    unused = sorted(map(str, report.get("unexpected_keys", [])))
    if unused:
        say(f"warning: {source.name} has weights that its model does not use ({_some(unused)})")
    return model.eval()


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{', ...' if names[3:] else ''}"


@torch.no_grad()
def find_trunk(source: Source, model: Any) -> Any:
    """Return the part of a model that makes the hidden states: the first model inside it that it runs.

    Raise `UserError` for a model that transformers builds and cannot run.
    """
    with quiet() as transformers:
        parts = [
            part
            for part in model.modules()
            if part is not model and isinstance(part, transformers.PreTrainedModel)
        ]
        run: list[Any] = []
        handles = [part.register_forward_pre_hook(lambda part, _: run.append(part)) for part in parts]
        try:
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
        except Exception as error:  # whatever a model of transformers raises
            if is_out_of_memory(error):
                raise
            raise UserError(
                f"{source.name} cannot be run as its {CONFIG} describes it ({first_line(error)[:200]}): "
                "download it again"
            ) from error
        finally:
            for handle in handles:
                handle.remove()
    return next((part for part in run if part.get_output_embeddings() is None), model.base_model)


def takes_positions(trunk: Any) -> bool:
    """Return whether the model can be given position ids."""
    return "position_ids" in inspect.signature(trunk.forward).parameters
