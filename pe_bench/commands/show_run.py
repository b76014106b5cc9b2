"""`show RUN`: what a trained model looks like, and what it writes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pe_bench.commands.evaluate import Evaluation, prepare
from pe_bench.commands.job import load_trained
from pe_bench.data.packed import Data
from pe_bench.errors import RunError, require
from pe_bench.inspection.trained import attention_by_layer, draw_trained, trained_encoding
from pe_bench.model.decoder import Decoder, derive_seed
from pe_bench.render.paper import save_picture
from pe_bench.runs.find import find_run
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.job import Job
from pe_bench.runs.rows import has_number
from pe_bench.scoring.scorer import flush_denormals
from pe_bench.system.terminal import printable, progress_bar

CHARACTERS = 200  # that are written after a prompt
SHOWN = 60  # characters of the prompt
MAX_WINDOW = 1_024  # tokens whose attention is drawn


def load_run(name: str, results_dir: Path, code: Sequence[Path] = ()) -> Job:
    """Return a finished run with its weights, on the CPU. Raise `UserError`, `RunError`.

    code: files that are trusted, as the code of the run's encoding.
    """
    run = find_run(name, results_dir)
    config = prepare(run, Evaluation(code=tuple(code), results_dir=results_dir, device="cpu")).config
    message = f"{run.name} is a checkpoint of transformers: show takes runs that pe-bench trained"
    require(config.checkpoint is None, message)
    require(
        config.task is None, f"{run.name} answers a task, and show writes and draws text: name another run"
    )
    return load_trained(run, config)


def draw_run(job: Job, picture: Path) -> None:
    """Draw what the encoding of a trained model looks like, and its attention in one window by layer."""
    model = job.model
    assert isinstance(model, Decoder)
    length = min(job.config.train.length, MAX_WINDOW)
    document = _document(job.data, length)
    tokens_BT = _batch(document[:length])
    attention = attention_by_layer(model, tokens_BT, _ids(job, tokens_BT))
    subject = trained_encoding(job.config, model.encoding)
    config = job.config
    trained = f"trained on {config.train.total_steps * config.train.batch_tokens:,} tokens"
    title = f"{job.folder.name}: {subject.label}, {trained} at {config.train.length:,}"
    save_picture(lambda: draw_trained(title, subject, attention), picture)


def text_written(job: Job) -> str:
    """Return the text that a trained model writes after its training length and the longest scored length.

    Each next token is the likeliest one after as many tokens as the prompt has, so that the model reads
    texts of one length throughout.
    """
    trained = job.config.train.length
    rows = [row for row in RunFolder(job.folder).rows if row.scored_with == row.encoding and has_number(row)]
    longest = max([trained, *(row.length for row in rows if row.control == "none")])
    document = _document(job.data, longest)
    prompt = document[:longest]
    follows = document[longest : longest + CHARACTERS]
    named = {trained: "the training length"}
    if longest > trained:
        named[longest] = "the longest scored length"
    parts = [
        ("the end of the prompt", _text(job.data, prompt)[-SHOWN:]),
        ("the text goes on", _text(job.data, follows)[:CHARACTERS]),
    ]
    for length, what in named.items():
        written = _write(job, prompt[-length:])
        parts.append((f"written after {length:,} tokens, {what}", written))
    return "\n\n".join(f"{heading}:\n{_indented(text)}" for heading, text in parts) + "\n"


def _document(data: Data, length: int) -> np.ndarray:
    """Return a document of the validation text that has more tokens than `length`, with the most to spare.

    Raise `RunError` where there is none.
    """
    split = data.validation
    number = int(split.lengths.argmax())
    message = f"no document of the validation text has more than {length:,} tokens"
    if split.lengths[number] <= length:
        raise RunError(f"{message}: score the run on longer texts, or at shorter lengths")
    return split.document(number)


def _batch(tokens: np.ndarray) -> Tensor:
    return torch.from_numpy(tokens.astype(np.int64))[None]


def _ids(job: Job, tokens_BT: Tensor) -> Tensor:
    """Return the position ids of a text, as it is scored."""
    seed = derive_seed(job.config.eval.seed, "ids", tokens_BT.shape[1])
    return job.model.encoding.ids(tokens_BT, train=False, generator=torch.Generator().manual_seed(seed))


def _write(job: Job, prompt: np.ndarray) -> str:
    """Return the characters that a model writes greedily, each after as many tokens as the prompt has."""
    length = len(prompt)
    tokens = prompt
    with torch.no_grad(), flush_denormals(), progress_bar(f"after {length:,} tokens", CHARACTERS) as bar:
        while True:
            written = _text(job.data, tokens[length:])
            if len(written) >= CHARACTERS or len(tokens) - length >= CHARACTERS:
                return written[:CHARACTERS]
            bar.show(len(written), f"{len(written)} of {CHARACTERS} characters")
            tokens_BT = _batch(tokens[-length:])
            hidden_BTD = job.model.hidden(tokens_BT, _ids(job, tokens_BT), None, length - 1)
            tokens = np.append(tokens, job.model.likeliest(hidden_BTD[:, -1]).numpy())


def _text(data: Data, tokens: np.ndarray) -> str:
    """Return the text of tokens; what is no UTF-8 has a sign in its place."""
    if data.tokenizer == "bytes":
        return bytes(token for token in tokens.tolist() if token < 256).decode(errors="replace")
    return "".join(data.vocabulary[token] for token in tokens.tolist())


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in printable(text).split("\n"))
