"""Checks of a model before it is trained or scored, and errors in users' own code in one line."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.load import opened_later
from pe_bench.encodings.modules import OUTSIDE_MODULE, public_text
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.system.machine import is_out_of_memory
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.system.terminal import say


@torch.no_grad()
def dry_run_training(model: Decoder, length: int, name: str = "NAME") -> None:
    """Run the model on one window; `name` is what `pe-bench check` calls the encoding.

    Raises `UserError` for a length that the encoding refuses, an error in a user's own code, values that are
    not finite from weights that are, and outputs that follow from later tokens.
    """
    tokens = torch.zeros(1, length, dtype=torch.long)
    before = _saved_names(model.encoding)
    try:
        with user_code_errors(model.encoding):
            ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
            hidden = model.hidden(tokens, ids)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error
    added = _saved_names(model.encoding) - before  # no saved weights would fit
    late = sorted(name.rpartition(".")[2] for name in added)
    message = (
        f"the encoding makes {', '.join(late)} in a hook, where it would never learn: make it in __init__"
    )
    require(not late, message)
    is_finite = hidden.isfinite().all() or not all(weight.isfinite().all() for weight in model.parameters())
    message = f"the encoding gives values that are not finite in a window of {length} tokens: try"
    require(bool(is_finite), f"{message} `pe-bench check {name}`")
    refuse_lookahead(model, length, name)
    for line in uncovered_files(model.encoding):
        say(f"warning: {line}")


def _saved_names(encoding: nn.Module) -> set[str]:
    """Return the names of the tensors that are saved. Raise `UserError` where a parameter is none."""
    state = encoding.state_dict()
    parameters = {name for name, _ in encoding.named_parameters()}
    unsaved = sorted(parameters - state.keys())
    message = f"the encoding does not save {', '.join(unsaved[:3])}, which it learns"
    require(not unsaved, f"{message}: its state_dict must have all parameters, as that of nn.Module has")
    return set(state)


# Refuse a model that reads later tokens: its scores would mean nothing.

# Relative to the largest output. Fast paths may round differently in each row; a leak moves outputs by more.
TOLERANCE = 1e-4
MAX_ENDINGS = 16  # halves of a window with other tokens of the vocabulary
TEXTS = 4  # windows


def refuse_lookahead(model: LanguageModel, length: int, name: str, weights: str = "") -> None:
    """Raise `UserError` when outputs of a random window follow from tokens after them.

    `name` is what `pe-bench check` calls the encoding, and `weights` says with which weights it reads later
    tokens, where these matter.
    """
    with user_code_errors(model.encoding):
        problem = find_lookahead(model, length)
    _refuse(problem, name, weights)


def refuse_lookahead_in_text(model: LanguageModel, texts: Tensor, name: str, weights: str = "") -> None:
    """Raise `UserError` when outputs of windows of text [n, T] follow from tokens after them."""
    with user_code_errors(model.encoding):
        problem = find_lookahead_in_text(model, texts)
    _refuse(problem, name, weights)


def _refuse(problem: str, name: str, weights: str) -> None:
    message = f"{name} reads later tokens{weights and f' {weights}'}, so its scores would mean nothing: "
    require(not problem, f"{message}{problem}; `pe-bench check {name}` says where")


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
            outputs = f"outputs of tokens {first} to {beginning - 1} of {length}"
            return f"{outputs} move by {moved:.2g} when those after them change"
    return ""


@torch.no_grad()
def find_lookahead_in_text(model: LanguageModel, texts: Tensor) -> str:
    """Return how outputs of the first half of windows of text move with the second; empty where none does.

    texts: tokens [n, T]. The second half of each becomes that of the next window. That of the first window
    becomes each token of the vocabulary once, in shuffled order and as many windows as that takes: so a
    rare token that outputs follow from comes after them. Of a large vocabulary, pe-bench's own encodings see
    a part.
    """
    length = texts.shape[1]
    half = length // 2
    shuffled = torch.randperm(model.vocab_size, generator=torch.Generator().manual_seed(0))
    endings = [*shuffled.split(length - half)]
    if not is_users_own(model.encoding):
        endings = endings[:MAX_ENDINGS]
    for row, text in enumerate(texts):
        first_TD = _first_half(model, text)
        following = texts[(row + 1) % len(texts), half:]
        for ending in (following, *endings) if row == 0 else (following,):
            changed = text.clone()
            changed[half : half + len(ending)] = ending
            changed_TD = _first_half(model, changed)
            moved = float((first_TD - changed_TD).abs().max()) if half else 0.0
            if moved > TOLERANCE * max(float(first_TD.abs().max()), float(changed_TD.abs().max())):
                outputs = f"outputs of tokens 0 to {half - 1} of {length} of a text"
                return f"{outputs} move by {moved:.2g} when those after them change"
    return ""


def _first_half(model: LanguageModel, tokens_T: Tensor) -> Tensor:
    """Return the outputs of the first half of a window, [T / 2, D]."""
    hidden_1TD = _hidden_in_scoring(model, tokens_T[None].to(model.device), 0)
    return hidden_1TD[0, : len(tokens_T) // 2]


def _hidden_in_scoring(model: LanguageModel, tokens_1T: Tensor, first: int) -> Tensor:
    was_training = model.training
    generator = torch.Generator().manual_seed(0)  # the same draw for each window
    try:
        ids = model.eval().encoding.ids(tokens_1T, train=False, generator=generator)
        return model.hidden(tokens_1T, ids, first=first)
    finally:
        model.train(was_training)


# Errors in encodings that users wrote: one line that says where, in place of a traceback.


@contextmanager
def user_code_errors(
    *encodings: nn.Module, kind: type[UserError] | type[RunError] = UserError
) -> Iterator[None]:
    """Raise an error of one line, of this kind, for errors in users' code, and let all other errors pass.

    Where one of `encodings` is a user's, errors of pe-bench's code are blamed on what its hooks returned.
    """
    try:
        yield
    except (LengthError, UserError, *INTERRUPTIONS):
        raise
    except BaseException as error:  # also SystemExit, which would end the program as if all was done
        description = describe_user_code_error(error, *encodings)
        if description is None or is_out_of_memory(error):
            raise
        raise kind(description) from error


def describe_user_code_error(error: BaseException, *encodings: nn.Module) -> str | None:
    """Return `FILE:LINE: AttributeError: ...` for an error in a user's code, None for any other.

    Users' code is what was loaded from a file, and the modules of those of `encodings` that are not
    pe-bench's. Where one of these is a user's, errors of pe-bench's code are blamed on what its hooks
    returned, or on their parameters.
    """
    described = f"{type(error).__name__}: {public_text(first_line(error))}"
    modules = [module for name, module in sys.modules.items() if name.startswith(OUTSIDE_MODULE)]
    loaded = [getattr(module, "__file__", None) for module in modules]
    files = _users_files(encodings)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in (*loaded, *files):
            return f"{frame.filename}:{frame.lineno}: {described}"
    if not files or isinstance(error, (UserError, RunError, OSError)):
        return None
    return f"{files[0]}: a hook cannot be used: {described}"


def uncovered_files(encoding: nn.Module) -> list[str]:
    """Return a line for each class of an encoding whose code has opened files that no identity covers."""
    lines = []
    for part_class in dict.fromkeys(type(part) for part in encoding.modules()):
        names = ", ".join(file.name for file in opened_later(part_class))
        if names:
            lines.append(
                f"{part_class.__name__} opens {names} in a hook or its constructor, and the run's name does "
                "not follow from what is in there: open it in the body of the module"
            )
    return lines


def is_users_own(encoding: nn.Module) -> bool:
    """Return whether any part of an encoding is a user's."""
    return bool(_users_files([encoding]))


def _users_files(encodings: Sequence[nn.Module]) -> list[str | None]:
    """Return the files of the classes of encodings that are not pe-bench's own."""
    parts = chain.from_iterable(encoding.modules() for encoding in encodings)
    names = [type(part).__module__ for part in parts if isinstance(part, (LayerEncoding, PositionalEncoding))]
    return [sys.modules[name].__file__ for name in dict.fromkeys(names) if not name.startswith("pe_bench.")]
