"""The import of transformers, without its messages and without code of a model's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pe_bench.errors import UserError, first_line, how_to_install

SILENT_LEVEL = 50  # a logging level: only errors that end the program
SAFE_OPTIONS = {"trust_remote_code": False, "local_files_only": True}


@contextmanager
def quiet() -> Iterator[Any]:
    """Yield transformers, which prints nothing within the context. Raise `UserError` without transformers."""
    try:
        import transformers
    except ImportError as error:
        reason = f"Hugging Face models need transformers ({first_line(error)})"
        raise UserError(f"{reason}: {how_to_install('hf')}") from error
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(SILENT_LEVEL)
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
