"""A needle among needles: pairs of a random key and a random value; the question asks for one value.

    The value of 3f1c...-9a is 07be...-41.
    (size such lines)
    What is the value of 88d0...-2c? The value of 88d0...-2c is [5e02...-77]

Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER, `niah_multikey_3`): all of the text consists of
such pairs of UUIDs. The sentences are ours.
"""

import uuid

import numpy as np

from pe_bench.data.prompt import Prompt

LEAST = 2  # pairs


def prompt(rng: np.random.Generator, size: int) -> Prompt:
    """Return a prompt with `size` pairs."""
    keys, values = ([_identifier(rng) for _ in range(size)] for _ in range(2))
    lines = [f"The value of {key} is {value}." for key, value in zip(keys, values, strict=True)]
    asked = int(rng.integers(size))
    question = f"What is the value of {keys[asked]}? The value of {keys[asked]} is"
    return Prompt("\n".join([*lines, question]), (values[asked],))


def _identifier(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))
