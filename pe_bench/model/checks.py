"""Checks of a model before it is trained or scored, and one-line errors for users' own code."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain

import torch
from torch import Tensor, nn

from pe_bench.config.schema import Config
from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.load import opened_later
from pe_bench.encodings.modules import OUTSIDE_MODULE, public_text
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.system.machine import is_out_of_memory
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.system.terminal import say


@torch.no_grad()
def dry_run_training(model: Decoder, config: Config, spec: EncodingSpec) -> None:
    """Run the model on one window of the training length, as training would, and print warnings.

    config, spec: the run's configuration and the model's encoding, for messages. Raises `UserError` for a
    length that the encoding refuses, an error in a user's own code, an encoding for other sizes than those of
    the model, infinite or NaN outputs of finite weights, and outputs that depend on later tokens.
    """
    length = config.train.length
    tokens = torch.zeros(1, length, dtype=torch.long)
    before = _saved_names(model.encoding)
    try:
        with user_code_errors(model.encoding):
            generator = torch.Generator().manual_seed(0)
            ids = model.encoding.ids(tokens, train=True, generator=generator)
            hidden = model.hidden(tokens, ids)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error
    except (RuntimeError, IndexError) as error:
        misfits = ", ".join(spec.misfits(asdict(config.model)))
        if not misfits or is_out_of_memory(error):
            raise
        message = f"the encoding does not fit the model ({misfits}): leave the option out"
        raise UserError(message) from error
    added = _saved_names(model.encoding) - before  # saved weights would not fit
    late = sorted(name.rpartition(".")[2] for name in added)
    message = (
        f"the encoding makes {', '.join(late)} in a hook, where it would never learn: make it in __init__"
    )
    require(not late, message)
    if not hidden.isfinite().all():
        has_finite_weights = all(weight.isfinite().all() for weight in model.parameters())
        message = f"the encoding gives values that are not finite in a window of {length} tokens: try"
        require(not has_finite_weights, f"{message} `{spec.check_command}`")
    refuse_lookahead(model, length, spec)
    for line in uncovered_file_warnings(model.encoding):
        say(f"warning: {line}")


def check_command(config: Config) -> str:
    """Return the command that checks a configuration's encoding."""
    return EncodingSpec(config.encoding, config.search).check_command


def _saved_names(encoding: nn.Module) -> set[str]:
    """Return the names in an encoding's `state_dict`. Raise `UserError` if a parameter is missing there."""
    state = encoding.state_dict()
    parameters = {name for name, _ in encoding.named_parameters()}
    unsaved = sorted(parameters - state.keys())
    message = f"the encoding does not save {', '.join(unsaved[:3])}, which it learns"
    require(not unsaved, f"{message}: its state_dict must have all parameters, as that of nn.Module has")
    return set(state)


# The scores of a model that reads later tokens would mean nothing: such a model is refused.

# Relative to the largest output. Fast paths may round differently in each row; a leak moves outputs by more.
LEAK_TOLERANCE = 1e-4
MAX_SECOND_HALVES = 16  # second halves of a window, with tokens of the vocabulary
TOKENS_PER_BATCH = 1024  # tokens in a batch of windows, as many as a step of training has by default
WINDOWS_TO_CHECK = 4  # windows


def refuse_lookahead(model: LanguageModel, length: int, spec: EncodingSpec, weights: str = "") -> None:
    """Raise `UserError` if outputs of a random window of this length depend on later tokens.

    spec: the model's encoding; weights: a description of the weights. Both are for the message.
    """
    with user_code_errors(model.encoding):
        problem = find_lookahead(model, length)
    _require_no_lookahead(problem, spec, weights)


def refuse_lookahead_in_text(
    model: LanguageModel, texts: Tensor, spec: EncodingSpec, weights: str = ""
) -> None:
    """Raise `UserError` if outputs of windows of text [n, T] depend on later tokens.

    spec, weights: as in `refuse_lookahead`.
    """
    with user_code_errors(model.encoding):
        problem = find_lookahead_in_text(model, texts)
    _require_no_lookahead(problem, spec, weights)


def _require_no_lookahead(problem: str, spec: EncodingSpec, weights: str) -> None:
    """Raise `UserError` if `problem`, the description of a dependence on later tokens, is not empty."""
    reads = f"{spec.values['name']} reads later tokens{weights and f' {weights}'}"
    message = f"{reads}, so its scores would mean nothing: {problem}"
    require(not problem, f"{message}; `{spec.check_command}` says where")


@torch.no_grad()
def find_lookahead(model: LanguageModel, length: int, first: int = 0) -> str:
    """Describe how outputs of a random window move with later tokens; empty if no output moves.

    Outputs from `first` on are computed as in scoring, with the ids of scoring. First the second half of
    these tokens changes, then the last token alone, which shows leaks within the second half.
    """
    vocabulary = model.vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens_1T = torch.randint(vocabulary, (1, length), generator=generator).to(model.device)
    hidden_1TD = _hidden_in_scoring(model, tokens_1T, first)
    middle = first + (length - first) // 2
    for beginning in sorted({middle, length - 1} - {first}):
        changed_1T = tokens_1T.clone()
        changed_1T[:, beginning:] += 1
        changed_1T %= vocabulary
        other_1TD = _hidden_in_scoring(model, changed_1T, first)
        both_2TD = torch.cat([hidden_1TD, other_1TD])
        before_2TD = both_2TD[:, : beginning - first]
        difference_TD = before_2TD[0] - before_2TD[1]
        moved = float(difference_TD.abs().max())
        if moved > LEAK_TOLERANCE * float(before_2TD.abs().max()):
            outputs = f"outputs of tokens {first} to {beginning - 1} of {length}"
            return f"{outputs} move by {moved:.2g} when those after them change"
    return ""


@torch.no_grad()
def find_lookahead_in_text(model: LanguageModel, texts: Tensor) -> str:
    """Describe how outputs in the first halves of texts move with the second halves; empty if none moves.

    texts: windows of tokens [n, T]. Each window gets the second half of the next window. The first window
    also gets second halves with every token of the vocabulary, shuffled: an output may depend on a rare
    token. For pe-bench's own encodings, a part of a large vocabulary is enough.
    """
    length = texts.shape[1]
    half = length // 2
    shuffled = torch.randperm(model.vocab_size, generator=torch.Generator().manual_seed(0))
    endings = [*shuffled.split(length - half)]
    at_once = 1  # windows in a batch; one, because a user's encoding may mix them
    if not is_users_own(model.encoding):
        endings = endings[:MAX_SECOND_HALVES]
        at_once = max(1, TOKENS_PER_BATCH // length)
    rows: list[int] = []
    windows: list[Tensor] = []
    for row, text in enumerate(texts):
        next_text = texts[(row + 1) % len(texts)]
        own_endings = [next_text[half:]]
        if row == 0:
            own_endings += endings
        for ending in own_endings:
            changed = text.clone()
            changed[half : half + len(ending)] = ending
            rows.append(row)
            windows.append(changed)
    first_nTD = torch.cat([_first_halves(model, some) for some in texts.split(at_once)])
    batches = zip(torch.tensor(rows).split(at_once), torch.stack(windows).split(at_once), strict=True)
    for some_rows, some_windows in batches:
        before_mTD = first_nTD[some_rows.to(first_nTD.device)]
        after_mTD = _first_halves(model, some_windows)
        moved_m = (before_mTD - after_mTD).flatten(1).abs().amax(1)
        largest_m = torch.cat([before_mTD, after_mTD], dim=1).flatten(1).abs().amax(1)
        for moved, largest in zip(moved_m.tolist(), largest_m.tolist(), strict=True):
            if moved > LEAK_TOLERANCE * largest:
                outputs = f"outputs of tokens 0 to {half - 1} of {length} of a text"
                return f"{outputs} move by {moved:.2g} when those after them change"
    return ""


def _first_halves(model: LanguageModel, tokens_nT: Tensor) -> Tensor:
    """Return the outputs [n, T / 2, D] of the first halves of windows."""
    hidden_nTD = _hidden_in_scoring(model, tokens_nT.to(model.device), 0)
    return hidden_nTD[:, : tokens_nT.shape[1] // 2]


def _hidden_in_scoring(model: LanguageModel, tokens_nT: Tensor, first: int) -> Tensor:
    """Return the outputs of windows from `first` on, [n, T - first, D], as in scoring."""
    was_training = model.training
    generator = torch.Generator().manual_seed(0)  # the same draw for each batch
    try:
        ids = model.eval().encoding.ids(tokens_nT, train=False, generator=generator)
        return model.hidden(tokens_nT, ids, first=first)
    finally:
        model.train(was_training)


# Errors in users' own encodings are one line with the place of the error, without a traceback.


@contextmanager
def user_code_errors(
    *encodings: nn.Module, kind: type[UserError] | type[RunError] = UserError
) -> Iterator[None]:
    """Turn errors in users' code into a one-line error of this kind, and let all other errors pass.

    If one of `encodings` is a user's, errors in pe-bench's code are blamed on the results of its hooks.
    """
    try:
        yield
    except (LengthError, UserError, *INTERRUPTIONS):
        raise
    except BaseException as error:  # also SystemExit, which would end the program as if it had succeeded
        description = describe_user_code_error(error, *encodings)
        if description is None or is_out_of_memory(error):
            raise
        raise kind(description) from error


def describe_user_code_error(error: BaseException, *encodings: nn.Module) -> str | None:
    """Return `FILE:LINE: AttributeError: ...` for an error in a user's code, None for any other.

    Users' code is all code loaded from a custom encoding's file, and the modules of `encodings` outside
    pe-bench. If one of `encodings` is a user's, errors in pe-bench's code are blamed on the results or the
    parameters of its hooks.
    """
    described = f"{type(error).__name__}: {public_text(first_line(error))}"
    names = [name for name in sys.modules if name.startswith(OUTSIDE_MODULE)]
    loaded = [getattr(sys.modules[name], "__file__", None) for name in names]
    files = _users_files(encodings)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in (*loaded, *files):
            return f"{frame.filename}:{frame.lineno}: {described}"
    if not files or isinstance(error, (UserError, RunError, OSError)):
        return None
    return f"{files[0]}: a hook cannot be used: {described}"


def uncovered_file_warnings(encoding: nn.Module) -> list[str]:
    """Return a warning for each class of an encoding that has opened files which a run's identity omits."""
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
    """Return true if any part of an encoding is a user's own code."""
    return bool(_users_files([encoding]))


def _users_files(encodings: Sequence[nn.Module]) -> list[str | None]:
    """Return the files of the modules outside pe-bench that have classes of the encodings; None: no file."""
    parts = chain.from_iterable(encoding.modules() for encoding in encodings)
    encoding_parts = [part for part in parts if isinstance(part, (LayerEncoding, PositionalEncoding))]
    names = dict.fromkeys(type(part).__module__ for part in encoding_parts)
    outside = [sys.modules[name] for name in names if not name.startswith("pe_bench.")]
    return [getattr(module, "__file__", None) for module in outside]  # a notebook's module has no file
