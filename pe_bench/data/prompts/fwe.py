"""Frequent words: random words with power-law frequencies; the question asks for the three most frequent.

    kdjwqa ... bxtzze kdjwqa ... ... pomnfd (size words)
    Question: Which three words are the most frequent, the most frequent first? Leave out the dots.
    Answer: [kdjwqa] [bxtzze] [pomnfd]

The frequency of the word of rank r is proportional to r ** -2. The first rank is dots, with 61 % of the text;
the three words have 15, 7 and 4 %.

Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `fwe` with an exponent of 2, words of six letters and a
vocabulary of 2,000). The sentences are ours; RULER accepts the answers in any order.
"""

import math

import numpy as np

from pe_bench.data.prompt import Prompt

LEAST = 100  # words: the three have 15, 7 and 4, and the next has 2
VOCABULARY, LETTERS, EXPONENT = 2_000, 6, 2
DOTS = "..."
ASKED = 3
ZETA = math.pi**2 / 6  # of the exponent


def prompt(rng: np.random.Generator, size: int) -> Prompt:
    """Return a prompt with `size` words, dots included."""
    counts = [*np.round(size / (ZETA * np.arange(1.0, VOCABULARY + 1) ** EXPONENT)).astype(int)]
    counts = [count for count in counts if count]
    counts += [1] * max(0, size - sum(counts))
    words = [DOTS, *_words(rng, len(counts) - 1)]
    text = np.repeat(words, counts)[:size]
    rng.shuffle(text)
    question = (
        "Question: Which three words are the most frequent, the most frequent first? Leave out the dots.\n"
        "Answer:"
    )
    return Prompt("\n".join([" ".join(text), question]), tuple(words[1 : 1 + ASKED]))


def _words(rng: np.random.Generator, count: int) -> list[str]:
    """Return so many different words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chr(ord("a") + letter) for letter in rng.integers(26, size=LETTERS))] = None
    return [*found]
