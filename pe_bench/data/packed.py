"""Token ids of all documents in a flat, memory-mapped array for each split, packed once and cached."""

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.config.schema import LOSES_TEXT, Config, DataConfig, TokenizerConfig
from pe_bench.data import hub
from pe_bench.data import tokenizer as tokenizers
from pe_bench.data.prompt import Prompts
from pe_bench.data.sources import Document, read_files, read_stdlib, within_budget
from pe_bench.data.split import describe_split, split_corpus
from pe_bench.data.tasks import Task, build_task
from pe_bench.data.tokenizer import Tokenizer
from pe_bench.system.cost import count
from pe_bench.system.files import cache_key, cache_root, cached_folder
from pe_bench.system.terminal import say

DATA_HASH_VERSION = 1  # the version of the data's hash: raise it when the hash changes its meaning
CACHE_LAYOUT_VERSION = 3  # the version of the layout of files in the cache
TOKENIZER_FILE = "tokenizer.json"
_described: set[Path] = set()  # folders of data with a note on cut documents, which is printed once
BYTES_PER_TOKEN = 4  # an estimate for subwords, for `data.max_tokens`; text is read before it is tokenised


@dataclass(frozen=True)
class Split:
    """The training or the validation documents: document d is `tokens[starts[d]:starts[d + 1]]`."""

    tokens: np.ndarray  # [tokens]
    starts: np.ndarray  # [documents + 1]
    byte_ends: np.ndarray | None = None  # [tokens], bytes of a document up to a token's end; None: training
    loses_text: bool = False  # tokens miss parts of the text, so bits per byte would be too low

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each document, int64 [documents]."""
        return np.diff(self.starts)

    def document(self, index: int) -> np.ndarray:
        """Return the token ids of one document, without a copy."""
        start = self.starts[index]
        stop = self.starts[index + 1]
        return self.tokens[start:stop]


@dataclass(frozen=True)
class Data:
    """The training and the validation text as tokens, or a task, or prompts.

    Equal hashes give equal batches and equal targets.
    """

    name: str
    hash: str
    tokenizer: str  # the label of the tokenizer
    vocabulary: tuple[str, ...]  # the text of every id
    end_of_text: int  # the id of the token at the end of a text
    train: Split
    validation: Split
    task: Task | None = None  # a task, with examples in place of text
    prompts: Prompts | None = None  # the prompts of a Hugging Face model, in place of text

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)


NO_DOCUMENTS = Split(tokens=np.empty(0, np.uint16), starts=np.zeros(1, np.int64))


def load_data(config: Config) -> Data:
    """Return the data of a configuration: packed text, a task, or a Hugging Face model's prompts.

    Text that was packed before comes from the cache. Raises `UserError` for a source, tokenizer or cache
    folder that cannot be used, `RunError` for a full disk.
    """
    if config.task is None:
        folder, meta = _packed_folder(config)
        train, validation = (_open_split(folder, name) for name in ("train", "validation"))
        if meta["loss"]:
            say(f"{meta['tokenizer']}: {meta['loss']}; scores are nats per token, without bits per byte")
            validation = replace(validation, loses_text=True)
        if meta.get("split") and folder not in _described:
            _described.add(folder)
            name = config.data.path or config.data.name
            say(f"{name}: {meta['split']}")
        vocabulary = tuple(meta["vocabulary"])
        label = meta["tokenizer"]
        if config.tokenizer.kind == "bpe":  # older caches have a label with `tokenizer.vocab_size`
            label = tokenizers.bpe_label(len(vocabulary))
        about = meta["hash"], label, vocabulary, meta["end_of_text"]
        return Data(config.data.name, *about, train, validation)
    if config.hf_model is None:
        return task_data(build_task(config.task))
    tokenizer = tokenizers.load_file(config.tokenizer)
    name = str(config.task["name"])
    prompts = Prompts(name, tokenizer, n_first=len(config.hf_model.first_token_ids))
    about = prompts.name, prompts.hash, tokenizer.label, tuple(tokenizer.vocabulary), tokenizer.end_of_text
    return Data(*about, NO_DOCUMENTS, NO_DOCUMENTS, prompts=prompts)


def task_data(task: Task) -> Data:
    """Return the data of a task: its vocabulary, and no text."""
    return Data(
        task.name, task.hash, "symbols", task.vocabulary, task.padding, NO_DOCUMENTS, NO_DOCUMENTS, task
    )


def cached_tokenizer(config: Config) -> Path:
    """Return the file of a tokenizer that was trained on a run's data, which only the kind `bpe` has."""
    return _packed_folder(config)[0] / TOKENIZER_FILE


def _packed_folder(config: Config) -> tuple[Path, dict[str, Any]]:
    """Return the cache's folder with a run's packed text, built if needed, and the facts in its meta.json."""
    data, tokenizer = config.data, config.tokenizer
    per_token = 1 if tokenizer.kind == "bytes" else BYTES_PER_TOKEN
    byte_budget = data.max_tokens and data.max_tokens * per_token
    # Data of the Hub is identified by its name, so it is not fetched again.
    corpus = None if data.source == "hub" else read_corpus(data, byte_budget)
    hashed_values: Any = asdict(data) | {"name": None}
    del hashed_values["validation_documents"]  # data of the Hub is not cut
    if corpus is not None:
        hashed_values = []
        for split in corpus:
            hashed_values.append(split and [(document.name, document.sha256) for document in split])
        hashed_values.append(data.validation_fraction)
        if data.validation_documents > 1:
            hashed_values.append(data.validation_documents)

    def build_packed_text(folder: Path) -> dict[str, Any]:
        documents, validation = corpus or read_corpus(data, byte_budget)
        least = 1 if data.source == "hub" else data.validation_documents
        splits = split_corpus(documents, validation, data.validation_fraction, least)
        facts = _pack_splits(folder, *splits, tokenizer)
        note = describe_split(documents, *splits) if validation is None else ""
        return {**facts, "split": note}

    tokenized_with = asdict(tokenizer)
    if tokenizer.kind == "file":  # identified by content, not by place
        path = tokenizers.tokenizer_file(tokenizer)
        tokenized_with["name"] = hashlib.sha256(path.read_bytes()).hexdigest()
        tokenized_with["label"] = path.resolve().parent.name
    key = cache_key((DATA_HASH_VERSION, CACHE_LAYOUT_VERSION), hashed_values, tokenized_with)
    return cached_folder(cache_root(config.cache_dir), key, build_packed_text)


def read_corpus(
    config: DataConfig, byte_budget: int | None = None
) -> tuple[list[Document], list[Document] | None]:
    """Return training documents, and the source's validation documents or None.

    Each list has at most `byte_budget` bytes. Raises `UserError` for a source that cannot be read.
    """
    if config.source == "hub":
        return hub.read(config, byte_budget)
    if config.source == "stdlib":
        return list(within_budget(read_stdlib(config), byte_budget)), None
    documents = read_files(config.path or ".", config, "data.path")
    train = list(within_budget(documents, byte_budget))
    if config.validation_path is None:
        return train, None
    validation = read_files(config.validation_path, config, "data.validation_path")
    return train, list(within_budget(validation, byte_budget))


def _pack_splits(
    folder: Path, train: list[Document], validation: list[Document], config: TokenizerConfig
) -> dict[str, Any]:
    """Write the tokens of both splits into `folder`; return the facts of meta.json that `load_data` reads."""
    tokenizer = _make_tokenizer(config, train, folder)
    loss = ""
    if config.kind in ("file", "hub"):  # not trained on this text
        assert isinstance(tokenizer, tokenizers.SubwordTokenizer)
        loss = tokenizer.describe_loss([document.text for document in validation])
    _pack_split(folder, "train", train, tokenizer, with_ends=False)
    _pack_split(folder, "validation", validation, tokenizer, with_ends=True)
    train_hashes = [document.sha256 for document in train]
    validation_hashes = [document.sha256 for document in validation]
    content = repr((DATA_HASH_VERSION, [train_hashes, validation_hashes], tokenizer.identity)).encode()
    data_hash = hashlib.sha256(content).hexdigest()[:16]
    return {
        "hash": data_hash,
        "tokenizer": tokenizer.label + LOSES_TEXT if loss else tokenizer.label,
        "loss": loss,
        "vocabulary": tokenizer.vocabulary,
        "end_of_text": tokenizer.end_of_text,
    }


def _make_tokenizer(config: TokenizerConfig, train: list[Document], folder: Path) -> Tokenizer:
    """Return the tokenizer; one of the kind `bpe` is trained on `train`, and written into `folder`."""
    if config.kind == "bytes":
        return tokenizers.ByteTokenizer()
    if config.kind == "file":
        return tokenizers.load_file(config)
    if config.kind == "hub":
        return tokenizers.load_hub(config)
    return tokenizers.train_bpe((document.text for document in train), config, folder / TOKENIZER_FILE)


def _pack_split(
    folder: Path, name: str, documents: list[Document], tokenizer: Tokenizer, with_ends: bool
) -> None:
    """Write the arrays of a `Split` into `folder`, in files whose names begin with `name`.

    with_ends: write `byte_ends` too.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    texts = (document.text for document in documents)
    ids = [np.empty(0, dtype)]
    ends = []
    for encoded in tokenizer.encode_documents(texts, with_ends):
        ids.append(encoded.ids.astype(dtype))
        if encoded.byte_ends is not None:
            ends.append(encoded.byte_ends)
    starts = np.cumsum([*map(len, ids)], dtype=np.int64)  # the first is 0, of the empty array
    np.save(folder / f"{name}-tokens.npy", np.concatenate(ids))
    np.save(folder / f"{name}-starts.npy", starts)
    if with_ends:
        byte_ends = np.concatenate(ends).astype(np.uint32)
        np.save(folder / f"{name}-byte_ends.npy", byte_ends)


def _open_split(folder: Path, name: str) -> Split:
    """Return the split that `_pack_split` wrote into `folder`. name: train or validation."""
    array_names = ["tokens", "starts"]
    if name == "validation":
        array_names.append("byte_ends")
    arrays: dict[str, np.ndarray] = {}
    for array_name in array_names:
        file = folder / f"{name}-{array_name}.npy"
        arrays[array_name] = np.load(file, mmap_mode="r", allow_pickle=False)
    starts = np.array(arrays["starts"])
    return Split(arrays["tokens"], starts, arrays.get("byte_ends"))


def summary(data: Data, length: int) -> str:
    """Describe the amounts of training and validation text, or a task's examples in windows of `length`."""
    if (task := data.task) is not None:
        sizes = f"sizes {task.smallest_size} to {task.size_at(length)}"
        chance = f"{task.chance:.3g} right by guessing"
        return f"{task.name}: examples of {sizes} at {length} tokens, {chance}"
    splits = {"for training": data.train, "for validation": data.validation}
    amounts = []
    for purpose, split in splits.items():
        documents = len(split.lengths)
        if documents:
            tokens = _short_count(len(split.tokens))
            amounts.append(f"{count(documents, 'document')} of {tokens} tokens {purpose}")
    return f"{data.name}: {', '.join(amounts)}"


def _short_count(tokens: int) -> str:
    if tokens < 100_000:
        return f"{tokens:,}"
    return f"{tokens / 1e6:.2f}M"
