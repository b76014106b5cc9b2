"""Tokenizers give ids back to the text, and count its bytes exactly."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from pe_bench.config.schema import TokenizerConfig
from pe_bench.data.prompt import PROMPT_KINDS, Prompts, fwe, niah_multikey_3, vt
from pe_bench.data.tokenizer import (
    ByteTokenizer,
    SubwordTokenizer,
    byte_ends,
    load_file,
    train_bpe,
    write_byte_tokenizer,
)
from pe_bench.errors import UserError

TEXTS = [
    b"Hello, world. Hello again, world.\n\n    indented    text \t\r\n",
    "Straße, naïve café, 日本語のテキスト, 𝄞 and 🎼.  \n".encode() * 3,
    b"a literal <|endoftext|> in the text\n",
    b"x",
]


def word_tokenizer(*names: str) -> tokenizers.Tokenizer:
    vocabulary = {name: number for number, name in enumerate(("[UNK]", "hello", "world", *names))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture
def bpe(tmp_path) -> SubwordTokenizer:
    return train_bpe(TEXTS * 5, TokenizerConfig(kind="bpe", vocab_size=300), tmp_path / "tokenizer.json")


def test_a_label_has_the_vocabulary_that_there_is(tmp_path, bpe):
    assert bpe.label == "bpe-300"
    few = train_bpe([b"aab aab"], TokenizerConfig(kind="bpe", vocab_size=9_000), tmp_path / "few.json")
    assert few.label == f"bpe-{few.vocab_size}" and few.vocab_size < 270


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    with pytest.raises(OSError, match="No such file"):
        train_bpe(TEXTS, config, tmp_path / "missing" / "tokenizer.json")


def test_bytes_are_their_own_ids():
    tokenizer = ByteTokenizer()
    for text, encoded in zip(TEXTS, tokenizer.encode_documents(TEXTS, with_ends=True), strict=True):
        assert encoded.ids.tobytes() == text
        assert encoded.byte_ends is not None and encoded.byte_ends.tolist() == list(range(1, len(text) + 1))
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.label) == (257, 256, "bytes")
    assert [tokenizer.vocabulary[token] for token in (46, 10, 256)] == [".", "\n", "<|endoftext|>"]


def test_byte_ends_rise_to_the_length_of_the_text_and_an_end_of_text_in_it_is_text(bpe):
    for text, encoded in zip(TEXTS, bpe.encode_documents(TEXTS, with_ends=True), strict=True):
        assert encoded.byte_ends is not None and len(encoded.byte_ends) == len(encoded.ids)
        assert np.all(np.diff(encoded.byte_ends) >= 0) and encoded.byte_ends[-1] == len(text)
        assert bpe.end_of_text not in encoded.ids
        if text == TEXTS[0]:  # no character is cut
            ends = [0, *encoded.byte_ends.tolist()]
            parts = [text[begin:end].decode() for begin, end in pairwise(ends)]
            assert parts == [bpe.vocabulary[token] for token in encoded.ids]
    assert bpe.end_of_text < bpe.vocab_size and bpe.label == "bpe-300"
    assert byte_ends(b"ab  ", np.array([1, 2])).tolist() == [1, 4], "what no token has is the last one's"


def test_a_hub_tokenizers_own_end_of_text_is_used_and_else_one_is_added():
    own = SubwordTokenizer(word_tokenizer("</s>", "<|endoftext|>"), "hub-words")
    assert (own.end_of_text, own.vocab_size) == (4, 5)
    none = SubwordTokenizer(word_tokenizer(), "hub-words")
    assert (none.end_of_text, none.vocab_size) == (3, 4)
    assert none.vocabulary == ["[UNK]", "hello", "world", "<|endoftext|>"]
    adding = word_tokenizer("[SEP]")
    adding.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    adding.enable_truncation(2)
    [encoded] = SubwordTokenizer(adding, "hub-words").encode_documents([b"hello world hello"])
    assert encoded.ids.tolist() == [1, 2, 1], "nothing is added to a document, or cut off"


def test_what_a_tokenizer_loses_is_counted_and_another_composition_of_characters_is_no_loss(
    tokenizer: SubwordTokenizer,
) -> None:
    assert tokenizer.describe_loss(TEXTS) == ""
    for normalizer, loses in ((normalizers.NFD(), False), (normalizers.StripAccents(), True)):
        changed = tokenizers.Tokenizer.from_str(tokenizer.tokenizer.to_str())
        changed.normalizer = normalizers.Sequence([normalizers.NFD(), normalizer])
        loss = SubwordTokenizer(changed, "changed").describe_loss(TEXTS)
        assert loss.startswith("decoding the tokens does not restore 1 of 4 documents") == loses
    loss = SubwordTokenizer(word_tokenizer(), "words").describe_loss([b"hello world", b"hello you"])
    assert loss.endswith("1 of 2 documents; 1 of 4 tokens are unknown")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="file", name=str(tmp_path / "tokenizer.json"))
    for content, problem in ((None, "there is no file"), ("{}", "is no tokenizer of the tokenizers library")):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=problem):
            load_file(config)


# Prompts of a Hugging Face model: their answers are in them, and they fit a length

BYTES_OF_ONE = {"niah_multikey_3": 92, "vt": 20, "fwe": 7}  # at most, that one more in size adds


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return load_file(TokenizerConfig(kind="file", name=str(folder / "tokenizer.json")))


@pytest.mark.parametrize("size", [2, 30])
def test_the_value_that_is_asked_for_stands_beside_its_key_alone(size: int) -> None:
    question, answers = niah_multikey_3(np.random.default_rng(0), size)
    pairs = re.findall(r"^The value of (\S+) is (\S+)\.$", question, re.M)
    [asked] = re.findall(r"What is the value of (\S+)\?", question)
    assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == size
    assert answers == (dict(pairs)[asked],)
    assert question.endswith(f"The value of {asked} is")


def test_variables_are_those_that_lead_to_the_number() -> None:
    question, answers = vt(np.random.default_rng(0), 40)
    text = question.split("\n\n")[1]
    [number] = re.findall(r"value (\d+),", text)
    values: dict[str, str] = {}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
        values[name] = values.get(value, value)
    assert values == dict.fromkeys(answers, number)
    assert tuple(values) == answers
    assert text.count(". ") + 1 == 40 + len(answers)


@pytest.mark.parametrize("size", [100, 20_000])
def test_frequent_words_are_the_most_frequent_in_their_order(size: int) -> None:
    question, answers = fwe(np.random.default_rng(0), size)
    counts = Counter(question.split("\n")[0].split())
    (dots, most), *words = counts.most_common(5)
    assert (counts.total(), dots) == (size, "...")
    assert most / size == pytest.approx(6 / np.pi**2, abs=0.005)
    assert tuple(word for word, _ in words[:3]) == answers
    assert len({count for _, count in words[:4]}) == 4  # no tie


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("kind", PROMPT_KINDS)
def test_examples_just_fit_their_length_and_their_answers_are_marked(
    kind: str, begins: bool, tokenizer: SubwordTokenizer
) -> None:
    prompts = Prompts(kind, tokenizer, begins)
    examples = prompts.examples_at(2_000, 4, 0)
    for example in examples:
        assert 2_000 - BYTES_OF_ONE[kind] < len(example.tokens) - 1 <= 2_000
        assert (example.tokens[0] == tokenizer.end_of_text) == begins
        text = bytes(example.tokens[begins:].tolist()).decode()
        assert example.number is not None
        parts = [example.tokens[example.number == 1 + number] for number in range(example.number.max())]
        marked = [bytes(part.tolist()).decode() for part in parts]
        assert text.endswith("".join(marked))
        assert all(word[0] == " " and word.strip() for word in marked)
        assert ((example.number > 0) == example.is_answer).all()
    assert len({example.tokens.tobytes() for example in examples}) == 4
    few, other = prompts.examples_at(2_000, 1, 0), prompts.examples_at(2_000, 1, 1)
    assert np.array_equal(few[0].tokens, examples[0].tokens)
    assert not np.array_equal(few[0].tokens, other[0].tokens)


def test_bpe_gives_the_text_back_is_the_same_every_time_and_as_large_as_asked_for(tmp_path: Path) -> None:
    def trained(size: int, name: str) -> SubwordTokenizer:
        config = TokenizerConfig(kind="bpe", vocab_size=size)
        return train_bpe([text.encode() for text in SENTENCES], config, tmp_path / name)

    first, again, larger = trained(270, "first"), trained(270, "again"), trained(280, "larger")
    assert (first.vocab_size, larger.vocab_size) == (270, 280)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()
    assert first.identity == again.identity != larger.identity
    texts = [text.encode() for text in (*SENTENCES, "never seen: žluťoučký 🐎\n")]
    for text, encoded in zip(texts, first.encode_documents(texts), strict=True):
        assert first.tokenizer.decode(encoded.ids.tolist(), skip_special_tokens=False).encode() == text
    with pytest.raises(UserError, match="vocab_size=256 is too small: give 257 "):
        trained(256, "none")
    assert not (tmp_path / "none").exists()


SENTENCES = ("the cat sat on the mat, then on the other mat", "a mat and a cat; then the rat ran away") * 3
