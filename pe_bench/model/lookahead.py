"""Refuse a model that reads later tokens: its scores would mean nothing."""

import torch

from pe_bench.errors import UserError
from pe_bench.model.decoder import Decoder
from pe_bench.model.user_code import user_code_errors

# Relative to the largest output. Fast paths round differently in the two rows; a leak moves outputs by more.
TOLERANCE = 1e-3


@torch.no_grad()
def refuse_lookahead(model: Decoder, length: int, name: str, weights: str = "") -> None:
    """Raise `UserError` when outputs of the first half of a window follow from tokens of its second half.

    Two windows with the same first half and other tokens after it pass through the model, with the ids that
    scoring gives them. `name` is what `pe-bench check` calls the encoding, and `weights` says with which
    weights it reads later tokens, where these matter.
    """
    half = length // 2
    generator = torch.Generator().manual_seed(0)
    tokens_2T = torch.randint(model.embedding.num_embeddings, (2, length), generator=generator)
    tokens_2T[1, :half] = tokens_2T[0, :half]
    tokens_2T = tokens_2T.to(model.embedding.weight.device)
    with user_code_errors(model.encoding):
        ids = model.encoding.ids(tokens_2T, train=False, generator=generator)
        hidden_2TD = model.hidden(tokens_2T, ids)[:, :half]
    moved = float((hidden_2TD[0] - hidden_2TD[1]).abs().max()) if half else 0.0
    if moved > TOLERANCE * float(hidden_2TD.abs().max()):
        raise UserError(
            f"{name} reads later tokens{weights and f' {weights}'}, so its scores would mean nothing: "
            f"the outputs of the first {half} tokens move by {moved:.2g} when the {length - half} tokens "
            f"after them change; `pe-bench check {name}` says where"
        )
