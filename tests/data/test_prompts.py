"""Prompts of a checkpoint: their answers are in them, and they fit a length."""

import re
from collections import Counter

import numpy as np
import pytest

from pe_bench.config.schema import TokenizerConfig
from pe_bench.data.prompt import KINDS, Prompts, fwe, niah_multikey_3, vt
from pe_bench.data.tokenizer import SubwordTokenizer, load_file, write_byte_tokenizer
from pe_bench.errors import UserError

BYTES_OF_ONE = {"niah_multikey_3": 92, "vt": 20, "fwe": 7}  # at most, that one more in size adds


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SubwordTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return load_file(TokenizerConfig(kind="file", name=str(folder / "tokenizer.json")))


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("size", [2, 30])
def test_the_value_that_is_asked_for_stands_beside_its_key_alone(size: int) -> None:
    question, answers = niah_multikey_3(generator(), size)
    pairs = re.findall(r"^The value of (\S+) is (\S+)\.$", question, re.M)
    [asked] = re.findall(r"What is the value of (\S+)\?", question)
    assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == size
    assert answers == (dict(pairs)[asked],)
    assert question.endswith(f"The value of {asked} is")


@pytest.mark.parametrize("seed", range(5))
def test_variables_are_those_that_lead_to_the_number(seed: int) -> None:
    question, answers = vt(generator(seed), 40)
    text, [number] = question.split("\n\n")[1], re.findall(r"value (\d+),", question.split("\n\n")[1])
    values: dict[str, str] = {}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
        values[name] = values.get(value, value)
    assert values == dict.fromkeys(answers, number)
    assert tuple(values) == answers
    assert text.count(". ") + 1 == 40 + len(answers)


@pytest.mark.parametrize("size", [100, 1_000, 20_000])
def test_frequent_words_are_the_most_frequent_in_their_order(size: int) -> None:
    question, answers = fwe(generator(), size)
    counts = Counter(question.split("\n")[0].split())
    (dots, most), *words = counts.most_common(5)
    assert counts.total() == size
    assert dots == "..."
    assert most / size == pytest.approx(6 / np.pi**2, abs=0.005)
    assert tuple(word for word, _ in words[:3]) == answers
    assert len({count for _, count in words[:4]}) == 4  # no tie


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("kind", KINDS)
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
        marked = [
            bytes(example.tokens[example.number == number].tolist()).decode()
            for number in range(1, example.number.max() + 1)
        ]
        assert text.endswith("".join(marked))
        assert all(word[0] == " " and word.strip() for word in marked)
        assert ((example.number > 0) == example.is_answer).all()
    assert len({example.tokens.tobytes() for example in examples}) == 4


def test_fewer_examples_are_the_first_of_more(tokenizer: SubwordTokenizer) -> None:
    prompts = Prompts("vt", tokenizer, begins=False)
    few, many = prompts.examples_at(1_000, 2, 3), prompts.examples_at(1_000, 4, 3)
    assert all((one.tokens == other.tokens).all() for one, other in zip(few, many, strict=False))
    other_seed = prompts.examples_at(1_000, 1, 4)
    assert not np.array_equal(few[0].tokens, other_seed[0].tokens)


def test_a_length_without_room_for_a_prompt_is_refused(tokenizer: SubwordTokenizer) -> None:
    with pytest.raises(UserError, match=r"niah_multikey_3 has \d+ tokens .* and 200 are too few"):
        Prompts("niah_multikey_3", tokenizer, begins=False).examples_at(200, 1, 0)


def test_a_kind_that_there_is_not_is_refused(tokenizer: SubwordTokenizer) -> None:
    with pytest.raises(UserError, match="unknown --task 'vtx': did you mean 'vt'"):
        Prompts("vtx", tokenizer, begins=False)
