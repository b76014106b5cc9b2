"""`show RUN`: the picture of a trained model, and a text that it writes."""

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
from pe_bench.runs.rows import has_number, is_as_trained
from pe_bench.scoring.scorer import flush_denormals
from pe_bench.system.terminal import printable, progress_bar

WRITTEN_CHARACTERS = 200  # the most characters to write after a prompt
PROMPT_CHARACTERS = 60  # the most characters of the prompt to print
MAX_WINDOW_TOKENS = 1_024  # tokens of the drawn attention


def load_run(name: str, results_dir: Path, code: Sequence[Path] = ()) -> Job:
    """Load a finished run with its weights, on the CPU. Raises `UserError`, `RunError`.

    code: files that the user trusts as the code of the run's encoding.
    """
    run = find_run(name, results_dir)
    request = Evaluation(code=tuple(code), results_dir=results_dir, device="cpu")
    config = prepare(run, request).config
    message = f"{run.name} is a Hugging Face model: show takes runs that pe-bench trained"
    require(config.hf_model is None, message)
    require(
        config.task is None, f"{run.name} answers a task, and show writes and draws text: name another run"
    )
    return load_trained(run, config)


def draw_run(job: Job, picture: Path) -> None:
    """Draw the encoding of a trained model by distance, and its attention in one window, by layer."""
    model = job.model
    assert isinstance(model, Decoder)
    length = min(job.config.train.length, MAX_WINDOW_TOKENS)
    document = _longest_document(job.data, length)
    tokens_BT = _one_text_batch(document[:length])
    attention = attention_by_layer(model, tokens_BT, _position_ids(job, tokens_BT))
    subject = trained_encoding(job.config, model.encoding)
    train = job.config.train
    count = train.total_steps * train.batch_tokens
    trained = f"trained on {count:,} tokens at {train.length:,}"
    title = f"{job.folder.name}: {subject.label}, {trained}"
    save_picture(lambda: draw_trained(title, subject, attention), picture)


def text_written(job: Job) -> str:
    """Return a prompt's end and continuation, and the texts that a trained model writes after the prompt.

    A text is written after as many tokens as the training length, and after the longest scored length. Each
    next token is the likeliest token after the latest tokens, as many as the prompt has, so that the model
    always reads texts of one length.
    """
    trained = job.config.train.length
    scored = [row.length for row in RunFolder(job.folder).rows if is_as_trained(row) and has_number(row)]
    longest = max([trained, *scored])
    document = _longest_document(job.data, longest)
    prompt = document[:longest]
    follows = document[longest : longest + WRITTEN_CHARACTERS]
    named = {trained: "the training length"}
    if longest > trained:
        named[longest] = "the longest scored length"
    parts = {
        "the end of the prompt": _decoded_text(job.data, prompt)[-PROMPT_CHARACTERS:],
        "the text goes on": _decoded_text(job.data, follows)[:WRITTEN_CHARACTERS],
    }
    for length, what in named.items():
        written = _write_greedily(job, prompt[-length:])
        parts[f"written after {length:,} tokens, {what}"] = written
    texts = [f"{heading}:\n{_indented(text)}" for heading, text in parts.items()]
    return "\n\n".join(texts) + "\n"


def _longest_document(data: Data, length: int) -> np.ndarray:
    """Return the longest document of the validation text.

    Raises `RunError` if it has no more than `length` tokens.
    """
    split = data.validation
    number = int(split.lengths.argmax())
    message = f"no document of the validation text has more than {length:,} tokens"
    if split.lengths[number] <= length:
        raise RunError(f"{message}: score the run on longer texts, or at shorter lengths")
    return split.document(number)


def _one_text_batch(tokens: np.ndarray) -> Tensor:
    """Return tokens [T] as a batch of one text, int64 [1, T]."""
    return torch.from_numpy(tokens.astype(np.int64))[None]


def _position_ids(job: Job, tokens_BT: Tensor) -> Tensor:
    """Return the position ids that scoring gives a text."""
    seed = derive_seed(job.config.eval.seed, "ids", tokens_BT.shape[1])
    generator = torch.Generator().manual_seed(seed)
    return job.model.encoding.ids(tokens_BT, train=False, generator=generator)


def _write_greedily(job: Job, prompt: np.ndarray) -> str:
    """Return the characters that a model writes greedily, with a context of the prompt's length."""
    length = len(prompt)
    tokens = prompt
    with (
        torch.no_grad(),
        flush_denormals(),
        progress_bar(f"after {length:,} tokens", WRITTEN_CHARACTERS) as bar,
    ):
        while True:
            written = _decoded_text(job.data, tokens[length:])
            if len(written) >= WRITTEN_CHARACTERS or len(tokens) - length >= WRITTEN_CHARACTERS:
                return written[:WRITTEN_CHARACTERS]
            bar.show(len(written), f"{len(written)} of {WRITTEN_CHARACTERS} characters")
            tokens_BT = _one_text_batch(tokens[-length:])
            hidden_BTD = job.model.hidden(tokens_BT, _position_ids(job, tokens_BT), None, length - 1)
            tokens = np.append(tokens, job.model.likeliest(hidden_BTD[:, -1]).numpy())


def _decoded_text(data: Data, tokens: np.ndarray) -> str:
    """Return the text of tokens; bytes that are no UTF-8 are replaced by a sign."""
    if data.tokenizer == "bytes":
        characters = bytes(token for token in tokens.tolist() if token < 256)
        return characters.decode(errors="replace")
    return "".join(data.vocabulary[token] for token in tokens.tolist())


def _indented(text: str) -> str:
    lines = printable(text).split("\n")
    return "\n".join(f"  | {line}" for line in lines)
