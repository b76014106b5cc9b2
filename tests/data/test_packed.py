"""Data are packed once, opened from the cache, and a broken cache is never used."""

import errno
import json
import os
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pe_bench.config.schema import Config, DataConfig, TokenizerConfig
from pe_bench.data.packed import Data, load_data
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.errors import RunError, UserError
from pe_bench.system import files
from pe_bench.system.files import cached_folder


@pytest.fixture
def corpus(tmp_path) -> DataConfig:
    folder = tmp_path / "corpus"
    folder.mkdir()
    generator = random.Random(0)
    for number in range(20):
        words = ["".join(generator.choices("abcdefghé", k=5)) for _ in range(10 + 10 * number)]
        (folder / f"{number:02}.txt").write_text(" ".join(words), encoding="utf-8")
    return DataConfig(name="files", source="files", path=str(folder))


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "cache"


def packed(data: DataConfig, root: Path, **tokenizer: Any) -> Data:
    return load_data(Config({}, data=data, tokenizer=TokenizerConfig(**tokenizer), cache_dir=str(root)))


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def test_a_document_is_its_files_bytes(corpus, root):
    data = packed(corpus, root)
    assert (len(data.train.lengths), len(data.validation.lengths)) == (16, 4)
    texts = []
    for split in (data.train, data.validation):
        texts += [split.document(d).astype(np.uint8).tobytes() for d in range(len(split.lengths))]
        assert split.lengths.sum() == split.starts[-1] == len(split.tokens)
    assert sorted(texts) == sorted(path.read_bytes() for path in Path(str(corpus.path)).iterdir())
    assert (data.name, data.tokenizer, data.vocab_size, data.end_of_text) == ("files", "bytes", 257, 256)
    assert isinstance(data.train.tokens, np.memmap) and data.train.tokens.dtype == np.uint16
    assert data.train.byte_ends is None and isinstance(data.validation.byte_ends, np.memmap)
    assert data.vocabulary == tuple(ByteTokenizer().vocabulary)


def test_the_hash_follows_the_text_and_the_tokenizer_but_no_names(corpus, root):
    first = packed(corpus, root)
    bpe = packed(corpus, root, kind="bpe", vocab_size=280)
    moved = Path(str(corpus.path)).rename(root.with_name("moved"))
    again = packed(DataConfig(name="other", source="files", path=str(moved)), root)
    assert again.hash == first.hash != bpe.hash and again.name == "other" and len(first.hash) == 16
    (moved / "00.txt").write_text("something else")
    assert packed(DataConfig(source="files", path=str(moved)), root).hash != first.hash


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, and neither its size nor its time."""
    content, times = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("train-tokens.npy", Path.unlink), ("validation-byte_ends.npy", cut), ("meta.json", flip)],
)
def test_a_damaged_entry_is_built_again_and_a_line_says_so(corpus, root, monkeypatch, capsys, name, damage):
    first = packed(corpus, root, kind="bpe", vocab_size=280)
    tokens = np.array(first.train.tokens)
    (entry,) = entries(root)
    damage(entry / name)
    monkeypatch.setattr(files, "_compared", set())  # as in another process
    capsys.readouterr()
    second = packed(corpus, root, kind="bpe", vocab_size=280)
    assert second.hash == first.hash and second.vocabulary == first.vocabulary
    assert np.array_equal(second.train.tokens, tokens)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {entry} is damaged and is built again")
    built = entry.stat().st_ino
    packed(corpus, root, kind="bpe", vocab_size=280)
    assert entry.stat().st_ino == built and capsys.readouterr().err == ""


def test_a_tokenizer_is_what_it_makes_of_a_text_wherever_its_file_lies(corpus, root, tmp_path):
    def load(folder: str, change: Callable[[dict], object] = lambda values: None) -> Data:
        values = json.loads(original)
        change(values)
        path = tmp_path / folder / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values))
        return packed(corpus, root, kind="file", name=str(path))

    packed(corpus, root, kind="bpe", vocab_size=280)
    original = (entries(root)[0] / "tokenizer.json").read_text()
    first, second = load("a"), load("b", lambda values: values.update(version="1.0", truncation=None))
    assert first.hash == second.hash and (first.tokenizer, second.tokenizer) == ("a", "b")
    hashes = {
        load("a", lambda values: values["model"]["merges"].reverse()).hash,
        load("a", lambda values: values.update(normalizer={"type": "Lowercase"})).hash,
    }
    assert len(hashes) == 2 and first.hash not in hashes


def test_a_killed_build_is_not_mistaken_for_a_finished_one_and_is_cleaned_up(corpus, root):
    packed(corpus, root)
    (entry,) = entries(root)
    entry.rename(root / f"{files.TEMPORARY_PREFIX}{entry.name}-killed")
    packed(corpus, root)
    assert entries(root) == [entry]


def test_an_entry_is_built_once_by_all_who_wait_for_it(root):
    built = []

    def build(folder: Path) -> dict:
        time.sleep(0.05)
        (folder / "file").write_text("content")
        built.append(folder)
        return {}

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(cached_folder, root, "key", build) for _ in range(3)]
    assert {each.result()[0] for each in done} == {root / "key"} and len(built) == 1


def test_a_build_that_fails_leaves_nothing_and_a_full_disk_is_one_line(root):
    def build(folder: Path) -> dict:
        (folder / "half").write_text("half")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises((UserError, RunError), match=r"\(full\): set another cache_dir"):
        cached_folder(root, "key", build)
    assert entries(root) == []


def test_a_cache_of_before_is_labelled_by_the_vocabulary_that_there_is(corpus, root):
    label = packed(corpus, root, kind="bpe", vocab_size=5_000).tokenizer
    (entry,) = entries(root)
    meta = json.loads((entry / files.META).read_text())
    del meta[files.CHECKSUM_KEY]
    meta["tokenizer"] = "bpe-5000"
    (entry / files.META).write_text(json.dumps({**meta, files.CHECKSUM_KEY: files.cache_key(meta)}))
    again = packed(corpus, root, kind="bpe", vocab_size=5_000)
    assert again.tokenizer == label == f"bpe-{again.vocab_size}" and again.vocab_size < 5_000


def test_a_cache_folder_that_cannot_be_made_is_one_line_with_the_way_out(corpus, tmp_path):
    (tmp_path / "file").touch()
    place = re.escape(str(tmp_path / "file/cache"))
    with pytest.raises(
        RunError, match=f"^the cache folder {place} cannot be written .*: set another cache_dir$"
    ):
        packed(corpus, tmp_path / "file/cache")
