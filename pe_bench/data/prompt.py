"""Prompts of a Hugging Face model: text of any size that ends with a question with known answers.

Each kind of prompt is one function at the end. Examples have the largest size that fits a length with the
model's tokenizer. Only answers are scored, with the right earlier answers in the input, so all answers are
right exactly if greedy decoding writes them.
"""

import hashlib
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from pe_bench.data.tasks import Example
from pe_bench.data.tokenizer import Tokenizer
from pe_bench.errors import UserError

PROMPTS_VERSION = 1  # the version of all prompts: raise it when they change for an equal seed
PROMPT_STREAM = 0x7A5E  # a stream of random numbers, different from the streams of tasks


class Prompt(NamedTuple):
    """A question and its answers, which follow the question with a space before each."""

    question: str  # all text up to the first answer
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """One kind of prompt, such as `vt`, tokenised for a Hugging Face model."""

    chance: ClassVar[float] = 0.0  # the accuracy of a guess, to three digits

    name: str
    tokenizer: Tokenizer
    n_first: int  # tokens that the model puts before the text

    @property
    def hash(self) -> str:
        """Return a hash of the prompts; equal hashes and seeds give equal prompts."""
        n_first = self.n_first if self.n_first > 1 else bool(self.n_first)
        parts = repr((PROMPTS_VERSION, self.name, self.tokenizer.identity, n_first))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def examples_at(self, length: int, count: int, seed: int) -> list[Example]:
        """Return the longest prompts that fit `length` inputs, the same at every call.

        Raises `UserError` if the smallest prompt does not fit.
        """
        seeds = [[seed, PROMPT_STREAM, length, number] for number in range(count)]
        return [self._longest_example(length, own_seed) for own_seed in seeds]

    def _longest_example(self, length: int, seed: Sequence[int]) -> Example:
        """Return the example of a seed with the largest size that fits. Raise `UserError` if none does."""
        longest = example = self.shortest(length, seed)
        size = fits = SMALLEST_SIZES[self.name]
        too_large = math.inf
        while True:
            estimate = size * length // (len(example.tokens) - 1)
            larger = max(estimate, fits + 1)
            size = int(min(larger, too_large - 1))
            if size <= fits:
                return longest
            example = self.example(np.random.default_rng(seed), size)
            if len(example.tokens) - 1 <= length:
                longest, fits = example, size
            else:
                too_large = size

    def shortest(self, length: int, seed: Sequence[int] = (0,)) -> Example:
        """Return an example of the smallest size. Raise `UserError` if it does not fit the length."""
        example = self.example(np.random.default_rng(seed), SMALLEST_SIZES[self.name])
        inputs = len(example.tokens) - 1
        if inputs > length:
            raise UserError(
                f"the shortest prompt of {self.name} has {inputs} tokens with this tokenizer, and "
                f"{length} are too few: give longer --lengths"
            )
        return example

    def example(self, rng: np.random.Generator, size: int) -> Example:
        """Return a prompt and its answers as tokens; `number` is 0 in the question, else the answer's."""
        question, answers = PROMPT_KINDS[self.name](rng, size)
        sizes = [len(question), *(1 + len(answer) for answer in answers)]
        ends = np.cumsum(sizes)  # the ends in bytes, because all text is ASCII
        text = " ".join([question, *answers]).encode()
        [encoded] = self.tokenizer.encode_documents([text], with_ends=True)
        assert encoded.byte_ends is not None
        first = [self.tokenizer.end_of_text] * self.n_first  # replaced by the model's own tokens
        byte_ends = [*np.zeros_like(first), *encoded.byte_ends]
        number = np.searchsorted(ends, byte_ends)
        tokens = np.array([*first, *encoded.ids], np.int64)
        return Example(tokens, number > 0, number)


# The sentences of all kinds are pe-bench's own. RULER, unlike pe-bench, accepts answers in any order.


def niah_multikey_3(rng: np.random.Generator, size: int) -> Prompt:
    """Return a needle among needles: pairs of a random key and a random value; it asks for one value.

        The value of 3f1c...-9a is 07be...-41.
        (size such lines)
        What is the value of 88d0...-2c? The value of 88d0...-2c is [5e02...-77]

    Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `niah_multikey_3`): all of the text consists of
    such pairs of UUIDs.
    """
    identifiers = [_random_uuid(rng) for _ in range(2 * size)]
    keys = identifiers[:size]
    values = identifiers[size:]
    pairs = zip(keys, values, strict=True)
    lines = [f"The value of {key} is {value}." for key, value in pairs]
    needle = int(rng.integers(size))
    question = f"What is the value of {keys[needle]}? The value of {keys[needle]} is"
    return Prompt("\n".join([*lines, question]), (values[needle],))


def _random_uuid(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


NOISE_SENTENCES = (
    *("The wind is mild.", "The road is long.", "The lake is calm.", "Birds come by.", "Birds leave again."),
)
VARIABLES, SENTENCES_OF_EXAMPLE = 5, 5


def vt(rng: np.random.Generator, size: int) -> Prompt:
    """Return variable tracking: a number is assigned to a variable, and passed on to another, four times.

        (a short example of the same form, with its answer)
        The wind is mild. VAR QWERT = 48213. The road is long. ... VAR ASDFG = VAR QWERT. ...
        Question: Which five variables have the value 48213, in the order of their assignment?
        Answer: [QWERT] [ASDFG] [...] [...] [...]

    The assignments lie at random among `size` filler sentences, and keep their order.

    Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `vt` with one chain of four hops and a repeated text
    as noise, one example before it).
    """
    example = _variable_tracking(rng, SENTENCES_OF_EXAMPLE)
    answered = " ".join([example.question, *example.answers])
    text = _variable_tracking(rng, size)
    return Prompt(f"{answered}\n\n{text.question}", text.answers)


def _variable_tracking(rng: np.random.Generator, size: int) -> Prompt:
    """Return the prompt of `vt` without the example before it, with `size` filler sentences."""
    names = _random_words(rng, VARIABLES, 5, "A")
    number = int(rng.integers(10_000, 100_000))
    values = [str(number), *(f"VAR {name}" for name in names)]
    places = rng.integers(size + 1, size=VARIABLES)
    indices = np.sort(places).tolist()
    sentences = [NOISE_SENTENCES[index % len(NOISE_SENTENCES)] for index in range(size)]
    assignments = [*zip(indices, names, values, strict=False)]
    for index, name, value in reversed(assignments):
        sentences.insert(index, f"VAR {name} = {value}.")
    question = f"Question: Which five variables have the value {number}, in the order of their assignment?"
    text = " ".join(sentences)
    return Prompt(f"{text}\n{question}\nAnswer:", tuple(names))


FWE_VOCABULARY = 2_000


def fwe(rng: np.random.Generator, size: int) -> Prompt:
    """Return frequent words: random words with power-law frequencies; it asks for the three most frequent.

        kdjwqa ... bxtzze kdjwqa ... ... pomnfd (size words)
        Question: Which three words are the most frequent, the most frequent first? Leave out the dots.
        Answer: [kdjwqa] [bxtzze] [pomnfd]

    The frequency of the word of rank r is proportional to r ** -2. The first rank is dots, with 61 % of the
    text; the three words have 15, 7 and 4 %.

    Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `fwe` with an exponent of 2, words of six letters and
    a vocabulary of 2,000).
    """
    zeta = math.pi**2 / 6  # the sum of all r ** -2
    ranks = np.arange(1.0, FWE_VOCABULARY + 1)
    expected = np.round(size / (zeta * ranks**2)).astype(int)
    counts = [count for count in expected if count]
    missing = size - sum(counts)
    counts += [1] * max(0, missing)
    others = len(counts) - 1
    words = ["...", *_random_words(rng, others, 6, "a")]
    text = np.repeat(words, counts)[:size]
    rng.shuffle(text)
    question = (
        "Question: Which three words are the most frequent, the most frequent first? Leave out the dots."
    )
    return Prompt(f"{' '.join(text)}\n{question}\nAnswer:", tuple(words[1:4]))


def _random_words(rng: np.random.Generator, count: int, letters: int, first: str) -> list[str]:
    """Return `count` different words of random letters: `first` or one of the 25 characters after `first`."""
    words: dict[str, None] = {}
    while len(words) < count:
        numbers = ord(first) + rng.integers(26, size=letters)
        words["".join(map(chr, numbers))] = None
    return [*words]


# The smallest sizes. Of 100 words, the three most frequent have 15, 7 and 4, the next has 2.
SMALLEST_SIZES = {"niah_multikey_3": 2, "vt": 10, "fwe": 100}  # lines, sentences or words
PROMPT_KINDS = {"niah_multikey_3": niah_multikey_3, "vt": vt, "fwe": fwe}
