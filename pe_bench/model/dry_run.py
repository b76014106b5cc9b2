"""Run one window through a new model, so that an encoding that fails does so before anything is written."""

import torch

from pe_bench.encodings import LengthError
from pe_bench.errors import UserError
from pe_bench.model.decoder import Decoder
from pe_bench.model.lookahead import refuse_lookahead
from pe_bench.model.non_finite import watched_hooks
from pe_bench.model.user_code import user_code_errors


def dry_run_training(model: Decoder, length: int, name: str = "NAME") -> None:
    """Run `dry_run` at the training length; a length that the encoding refuses is a `UserError`."""
    try:
        dry_run(model, length, name)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error
    refuse_lookahead(model, length, name)


@torch.no_grad()
def dry_run(model: Decoder, length: int, name: str = "NAME") -> None:
    """Run the model on one window; `name` is what `pe-bench check` calls the encoding.

    Raises `LengthError` where the encoding is undefined at this length, and `UserError` for an error in a
    user's own code and for values that are not finite from weights that are.
    """
    tokens = torch.zeros(1, length, dtype=torch.long)
    with user_code_errors(model.encoding):
        before = set(model.encoding.state_dict())
        ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
        hidden = model.hidden(tokens, ids)
        _refuse_late_parameters(set(model.encoding.state_dict()) - before)
    if not hidden.isfinite().all() and all(weight.isfinite().all() for weight in model.parameters()):
        with watched_hooks(model.encoding) as culprit:
            model.hidden(tokens, ids)
        raise UserError(
            f"{culprit() or 'the encoding'} gives values that are not finite in a window of {length} tokens: "
            f"try `pe-bench check {name}`"
        )


def _refuse_late_parameters(names: set[str]) -> None:
    """Raise `UserError` for parameters that a hook has made: no saved weights would fit."""
    for name in sorted(names):
        raise UserError(
            f"the encoding makes {name.rpartition('.')[2]} in a hook, where it would never learn: "
            "make it in __init__"
        )
