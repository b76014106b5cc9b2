"""Refuse a model that reads later tokens: its scores would mean nothing."""

import torch
from torch import Tensor

from pe_bench.errors import UserError
from pe_bench.model.language_model import LanguageModel
from pe_bench.model.user_code import user_code_errors

# Relative to the largest output. Fast paths may round differently in each row; a leak moves outputs by more.
TOLERANCE = 1e-4


def refuse_lookahead(model: LanguageModel, length: int, name: str, weights: str = "") -> None:
    """Raise `UserError` when outputs of a window follow from tokens after them.

    `name` is what `pe-bench check` calls the encoding, and `weights` says with which weights it reads later
    tokens, where these matter.
    """
    with user_code_errors(model.encoding):
        problem = find_lookahead(model, length)
    if problem:
        raise UserError(
            f"{name} reads later tokens{weights and f' {weights}'}, so its scores would mean nothing: "
            f"{problem}; `pe-bench check {name}` says where"
        )


@torch.no_grad()
def find_lookahead(model: LanguageModel, length: int, first: int = 0) -> str:
    """Return how outputs of a window of this length move with tokens after them; empty where none does.

    Windows with the same beginning and other tokens after it pass through the model as scoring has it: with
    the ids that scoring gives them, and for the outputs from `first` on. Half of what is scored changes, and
    then its last token alone, which shows what is read in the second half.
    """
    vocabulary, device = model.vocab_size, model.device
    tokens_1T = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0)).to(device)
    hidden_1TD = _hidden_in_scoring(model, tokens_1T, first)
    for beginning in sorted({first + (length - first) // 2, length - 1} - {first}):
        changed_1T = tokens_1T.clone()
        changed_1T[:, beginning:] = (tokens_1T[:, beginning:] + 1) % vocabulary
        other_1TD = _hidden_in_scoring(model, changed_1T, first)
        before_2TD = torch.cat([hidden_1TD, other_1TD])[:, : beginning - first]
        moved = float((before_2TD[0] - before_2TD[1]).abs().max())
        if moved > TOLERANCE * float(before_2TD.abs().max()):
            return _describe(first, beginning, length, moved)
    return ""


def _hidden_in_scoring(model: LanguageModel, tokens_1T: Tensor, first: int) -> Tensor:
    was_training = model.training
    generator = torch.Generator().manual_seed(0)  # the same draw for each window
    try:
        ids = model.eval().encoding.ids(tokens_1T, train=False, generator=generator)
        return model.hidden(tokens_1T, ids, first=first)
    finally:
        model.train(was_training)


def _describe(first: int, beginning: int, length: int, moved: float) -> str:
    outputs = (
        f"the outputs of the first {beginning} tokens" if not first else f"outputs from token {first} on"
    )
    changed = length - beginning
    cause = f"the {changed} tokens after them change" if changed > 1 else "the token after them changes"
    return f"{outputs} move by {moved:.2g} when {cause}"
