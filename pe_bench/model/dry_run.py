"""One window through a new model before anything is written."""

import torch

from pe_bench.encodings import LengthError
from pe_bench.errors import UserError
from pe_bench.model.decoder import Decoder
from pe_bench.model.lookahead import refuse_lookahead
from pe_bench.model.user_code import outside_code_told


def try_one_window(model: Decoder, length: int, name: str = "NAME") -> None:
    """Raises `UserError` for a length that the encoding refuses, and for what `run_one_window` does."""
    try:
        run_one_window(model, length, name)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error
    refuse_lookahead(model, length, name)


@torch.no_grad()
def run_one_window(model: Decoder, length: int, name: str = "NAME") -> None:
    """Raises `LengthError` of an encoding that has no meaning there.

    `UserError` for what fails in code from outside, and for finite weights that give what is not finite;
    `name` is what `check` calls the encoding.
    """
    tokens = torch.zeros(1, length, dtype=torch.long)
    with outside_code_told(model.encoding):
        ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
        hidden = model.hidden(tokens, ids)
    if not hidden.isfinite().all() and all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(
            f"the encoding gives values that are not finite in a window of {length} tokens: "
            f"try `pe-bench check {name}`"
        )
