"""Our byte tokenizer as a tokenizer.json, so that transformers reads a model of bytes."""

import json
from pathlib import Path

from pe_bench.data.tokenizer import END_OF_TEXT, ByteTokenizer
from pe_bench.system.files import write_text

PRINTED = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def characters_of_bytes() -> list[str]:
    """Return the character that byte-level tokenizers write for each byte: itself, or one from 256 on."""
    others = iter(range(256, 512))
    return [chr(byte if byte in PRINTED else next(others)) for byte in range(256)]


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, whose ids are those of `ByteTokenizer`."""
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
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "add_bos_token": False}
    write_text(folder / "tokenizer_config.json", json.dumps(about, indent=1) + "\n")
