"""Tokenizers: text to token ids, with the end of each token in bytes of the text."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pe_bench.config.schema import TokenizerConfig
from pe_bench.data import hub
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.files import write_json, write_text
from pe_bench.system.terminal import printable
from pe_bench.values import expand_user

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]", "<|eot_id|>")
DEFAULT_VOCABULARY = 4_096
# Ranges of the bytes that byte-level tokenizers write as the character of the same number.
PRINTED_RANGES = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
PARALLEL_DOCUMENTS = 64  # documents encoded at a time


class Encoded(NamedTuple):
    """The tokens of a document, and where each token ends in the text."""

    ids: np.ndarray  # [tokens]
    byte_ends: np.ndarray | None  # [tokens], bytes up to the end of each token; None: not asked for


class ByteTokenizer:
    """A tokenizer with bytes as ids, so that a length means the same for everyone."""

    label = identity = "bytes"
    vocab_size = 257
    end_of_text = 256

    @property
    def vocabulary(self) -> list[str]:
        """Return the text of every id, also of end-of-text, which no document contains."""
        texts = [bytes([byte]).decode(errors="replace") for byte in range(256)]
        return [*texts, END_OF_TEXT]

    def encode_documents(self, texts: Iterable[bytes], with_ends: bool = False) -> Iterator[Encoded]:
        """Yield the bytes of each text as ids; with `with_ends`, also the ends of tokens."""
        for text in texts:
            ends = np.arange(1, len(text) + 1) if with_ends else None
            yield Encoded(np.frombuffer(text, np.uint8), ends)


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn exceptions of the tokenizers library, panics of its Rust code too, into a `UserError`."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        raise UserError(f"{problem}: {first_line(error)[:200]}") from error


class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library, set up to add no token to a document."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", label: str) -> None:
        self.tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.post_processor = None  # it would add special tokens and trim spaces off the offsets
        tokenizer.encode_special_tokens = True  # a special token that occurs in the text is text
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values()) + 1
        named = [vocabulary[name] for name in END_OF_TEXT_NAMES if name in vocabulary]
        self.end_of_text = [*named, size][0]
        self.vocab_size = max(size, self.end_of_text + 1)
        self.label = label

    @property
    def identity(self) -> str:
        """Return a hash of the tokenizer's whole description: vocabulary, merges, normaliser and all else."""
        meaning = json.dumps(json.loads(self.tokenizer.to_str()), sort_keys=True)
        return hashlib.sha256(meaning.encode()).hexdigest()

    @property
    def vocabulary(self) -> list[str]:
        ids = [[token] for token in range(self.vocab_size)]
        texts = self.tokenizer.decode_batch(ids, skip_special_tokens=False)
        texts[self.end_of_text] = texts[self.end_of_text] or END_OF_TEXT
        return texts

    @property
    def unknown(self) -> int | None:
        """Return the id of the token for text that the vocabulary lacks; None without such a token."""
        model = json.loads(self.tokenizer.to_str())["model"]
        name = model.get("unk_token")
        return self.tokenizer.token_to_id(name) if isinstance(name, str) else model.get("unk_id")

    def describe_loss(self, texts: Sequence[bytes]) -> str:
        """Return a text with the number of documents that decoding does not restore, and of unknown tokens.

        The text is empty if decoding restores all documents.

        Texts are compared in Unicode's normal form, with a leading space of some decoders ignored.
        """
        lost = n_tokens = n_unknown = 0
        unknown = self.unknown
        for text, encoded in zip(texts, self.encode_documents(texts), strict=True):
            decoded = self.tokenizer.decode(encoded.ids.tolist(), skip_special_tokens=False)
            original = unicodedata.normalize("NFC", text.decode())
            decoded = unicodedata.normalize("NFC", decoded)
            lost += decoded not in (original, f" {original}")
            n_tokens += len(encoded.ids)
            n_unknown += int(np.count_nonzero(encoded.ids == unknown))
        if not lost:
            return ""
        documents = f"{lost:,} of {len(texts):,} documents"
        tokens = f"{n_unknown:,} of {n_tokens:,} tokens"
        return f"decoding the tokens does not restore {documents}; {tokens} are unknown"

    def encode_documents(self, texts: Iterable[bytes], with_ends: bool = False) -> Iterator[Encoded]:
        """Yield the ids of each text; with `with_ends`, also the ends of tokens in bytes."""
        rest = iter(texts)
        while some := list(islice(rest, PARALLEL_DOCUMENTS)):
            with library_errors(f"the tokenizer {self.label} cannot read the text"):
                decoded = [text.decode() for text in some]
                encodings = self.tokenizer.encode_batch(decoded, add_special_tokens=False)
            for text, encoding in zip(some, encodings, strict=True):
                offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
                ends = byte_ends(text, offsets[:, 1]) if with_ends else None
                yield Encoded(np.array(encoding.ids, np.int64), ends)


Tokenizer = ByteTokenizer | SubwordTokenizer


def byte_ends(text: bytes, character_ends: np.ndarray) -> np.ndarray:
    """Convert ends of tokens in characters [tokens] to rising ends in bytes [tokens].

    The last end is the end of the text. Of several tokens of one character, the first has all its bytes.
    """
    values = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(values & 0xC0 != 0x80)  # the first bytes of characters in UTF-8
    ends = np.append(starts, len(text))[character_ends]
    ends[-1:] = len(text)
    return np.maximum.accumulate(ends)


def train_bpe(texts: Iterable[bytes], config: TokenizerConfig, path: Path) -> SubwordTokenizer:
    """Train a byte-level BPE on the training documents; write it to `path` as the library's JSON.

    Raises `UserError` for a vocabulary that is too small.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    size = config.vocab_size or DEFAULT_VOCABULARY
    message = f"tokenizer.vocab_size={size} is too small: give 257 (the bytes and end-of-text) or more"
    require(size >= ByteTokenizer.vocab_size, message)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.decode() for text in texts), trainer)
    path.write_bytes(tokenizer.to_str(pretty=True).encode())  # `save` would raise no OSError for a full disk
    return SubwordTokenizer(tokenizer, bpe_label(tokenizer.get_vocab_size(with_added_tokens=True)))


def bpe_label(vocabulary: int) -> str:
    """Return the label of a trained BPE by its size, which may be below `tokenizer.vocab_size`."""
    return f"bpe-{vocabulary}"


def tokenizer_file(config: TokenizerConfig) -> Path:
    """Return the file of `tokenizer.name`. Raises `UserError` if it is missing."""
    named = Path(expand_user(str(config.name), "tokenizer.name="))
    path = named / "tokenizer.json" if named.is_dir() else named
    require(path.is_file(), f"tokenizer.name={config.name}: there is no file {path}")
    return path


def load_file(config: TokenizerConfig) -> SubwordTokenizer:
    """Return the tokenizer in a file of the `tokenizers` library."""
    import tokenizers

    path = tokenizer_file(config)
    label = printable(path.resolve().parent.name) or "file"
    with library_errors(f"{path} is no tokenizer of the tokenizers library"):
        return SubwordTokenizer(tokenizers.Tokenizer.from_file(str(path)), label)


def load_hub(config: TokenizerConfig) -> SubwordTokenizer:
    """Return the tokenizer `config.name` of the Hub. Raises `UserError` if it cannot be loaded."""
    import tokenizers

    with hub.hub_errors(f"tokenizer.name={config.name}", "use tokenizer=bytes or tokenizer=bpe"):
        tokenizer = tokenizers.Tokenizer.from_pretrained(str(config.name), config.revision or "main")
    return SubwordTokenizer(tokenizer, f"hub-{config.name}")


def characters_of_bytes() -> list[str]:
    """Return the characters that byte-level tokenizers write for the 256 bytes.

    A printed byte is the character of its number; the others are characters from number 256 on.
    """
    printed_bytes: set[int] = set()
    for first, last in PRINTED_RANGES:
        printed_bytes.update(range(ord(first), ord(last) + 1))
    substitutes = iter(range(256, 512))
    numbers = [byte if byte in printed_bytes else next(substitutes) for byte in range(256)]
    return [chr(number) for number in numbers]


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json with the ids of `ByteTokenizer`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(characters_of_bytes())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    assert tokenizer.token_to_id(END_OF_TEXT) == ByteTokenizer.end_of_text
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    write_tokenizer_config(folder)


def write_tokenizer_config(folder: Path) -> None:
    """Write the tokenizer_config.json of transformers for a tokenizer of pe-bench."""
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "add_bos_token": False}
    write_json(folder / "tokenizer_config.json", about)
