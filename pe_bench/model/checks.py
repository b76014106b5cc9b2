"""Checks of a model before it is trained or scored, and errors in users' own code in one line."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor, nn

from pe_bench.encodings import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import RunError, UserError, first_line, text_of
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.system.files import same_working_folder
from pe_bench.system.machine import is_out_of_memory
from pe_bench.system.signals import INTERRUPTIONS


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
        raise UserError(
            f"the encoding gives values that are not finite in a window of {length} tokens: "
            f"try `pe-bench check {name}`"
        )


def _refuse_late_parameters(names: set[str]) -> None:
    """Raise `UserError` for parameters that a hook has made: no saved weights would fit."""
    for name in sorted(names):
        raise UserError(
            f"the encoding makes {name.rpartition('.')[2]} in a hook, where it would never learn: "
            "make it in __init__"
        )


# Refuse a model that reads later tokens: its scores would mean nothing.

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
            return _describe_lookahead(first, beginning, length, moved)
    return ""


def _hidden_in_scoring(model: LanguageModel, tokens_1T: Tensor, first: int) -> Tensor:
    was_training = model.training
    generator = torch.Generator().manual_seed(0)  # the same draw for each window
    try:
        ids = model.eval().encoding.ids(tokens_1T, train=False, generator=generator)
        return model.hidden(tokens_1T, ids, first=first)
    finally:
        model.train(was_training)


def _describe_lookahead(first: int, beginning: int, length: int, moved: float) -> str:
    outputs = (
        f"the outputs of the first {beginning} tokens" if not first else f"outputs from token {first} on"
    )
    changed = length - beginning
    cause = f"the {changed} tokens after them change" if changed > 1 else "the token after them changes"
    return f"{outputs} move by {moved:.2g} when {cause}"


# Errors in encodings that users wrote: one line that says where, in place of a traceback.


@contextmanager
def user_code_errors(
    *encodings: nn.Module, kind: type[UserError] | type[RunError] = UserError
) -> Iterator[None]:
    """Raise an error of one line, of this kind, for errors in users' code, and let all other errors pass.

    Where one of `encodings` is a user's, errors of pe-bench's code are blamed on what its hooks returned.
    """
    try:
        with same_working_folder():
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

    Where one of `encodings` is a user's, errors of pe-bench's code are blamed on what its hooks returned.
    """
    where = user_code_line(error, *encodings)
    if where is None:
        return _describe_bad_values(error, encodings)
    return f"{where}: {type(error).__name__}: {first_line(error)}"


def user_code_line(error: BaseException, *encodings: nn.Module) -> str | None:
    """Return the innermost line of users' code in the traceback, or else the function that the error names.

    Users' code is what was loaded from a file, and the modules of those of `encodings` that are not
    pe-bench's. A function called with the wrong arguments is never entered: none of its lines is there.
    """
    files = [module for name, module in sys.modules.items() if name.startswith(OUTSIDE_MODULE)]
    modules = [*files, *_users_modules(encodings)]
    names = {module.__file__ for module in modules}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in names:
            return f"{frame.filename}:{frame.lineno}"
    # Where several modules have such a function, the one that was loaded last is meant.
    return next((line for module in reversed(modules) if (line := _find_named_function(error, module))), None)


def _describe_bad_values(error: BaseException, encodings: Sequence[nn.Module]) -> str | None:
    if isinstance(error, (UserError, RunError, OSError)):
        return None
    file = next((module.__file__ for module in _users_modules(encodings)), None)
    return file and f"{file}: what a hook returns cannot be used: {type(error).__name__}: {first_line(error)}"


def is_users_own(encoding: nn.Module) -> bool:
    """Return whether any part of an encoding is a user's."""
    return bool(_users_modules([encoding]))


def _users_modules(encodings: Sequence[nn.Module]) -> list[ModuleType]:
    """Return the modules of the classes of encodings that are not pe-bench's own."""
    parts = [type(part) for encoding in encodings for part in encoding.modules()]
    names = [part.__module__ for part in parts if issubclass(part, (LayerEncoding, PositionalEncoding))]
    return [sys.modules[name] for name in dict.fromkeys(names) if name.partition(".")[0] != "pe_bench"]


def _find_named_function(error: BaseException, module: ModuleType) -> str | None:
    """Find the user function named at the start of the error message; return where it begins."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    for function in filter(inspect.isfunction, (value for kind in classes for value in vars(kind).values())):
        code = function.__code__
        if code.co_filename == module.__file__ and text_of(error).startswith(f"{function.__qualname__}()"):
            return f"{code.co_filename}:{code.co_firstlineno}"
    return None
