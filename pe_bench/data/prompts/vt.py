"""Variable tracking: a number is assigned to a variable, and passed on to another one, four times.

    (a short example of the same form, with its answer)
    The wind is mild. VAR QWERT = 48213. The road is long. ... VAR ASDFG = VAR QWERT. ...
    Question: Which five variables have the value 48213, in the order of their assignment?
    Answer: [QWERT] [ASDFG] [...] [...] [...]

The assignments lie at random places among `size` filler sentences, and keep their order.

Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `vt` with one chain of four hops and a repeated text as
noise, one example before it). The sentences are ours; RULER accepts the answers in any order.
"""

import numpy as np

from pe_bench.data.prompt import Prompt

LEAST = 10  # sentences
SENTENCES_OF_EXAMPLE = 5
VARIABLES, LETTERS = 5, 5
NOISE = (
    "The wind is mild.",
    "The road is long.",
    "The lake is calm.",
    "Birds come by.",
    "Birds leave again.",
)


def prompt(rng: np.random.Generator, size: int) -> Prompt:
    """Return a prompt with `size` sentences around the assignments."""
    example, text = _prompt(rng, SENTENCES_OF_EXAMPLE), _prompt(rng, size)
    return Prompt("\n\n".join([" ".join([example.question, *example.answers]), text.question]), text.answers)


def _prompt(rng: np.random.Generator, size: int) -> Prompt:
    names: list[str] = []
    while len(names) < VARIABLES:
        name = "".join(chr(ord("A") + letter) for letter in rng.integers(26, size=LETTERS))
        names += [name] if name not in names else []
    number = int(rng.integers(10_000, 100_000))
    values = [str(number), *(f"VAR {name}" for name in names)]
    places = np.sort(rng.integers(size + 1, size=VARIABLES)).tolist()
    sentences = [NOISE[place % len(NOISE)] for place in range(size)]
    for place, name, value in reversed([*zip(places, names, values, strict=False)]):
        sentences.insert(place, f"VAR {name} = {value}.")
    question = (
        f"Question: Which five variables have the value {number}, in the order of their assignment?\nAnswer:"
    )
    return Prompt("\n".join([" ".join(sentences), question]), tuple(names))
