"""Data are packed once, opened from the cache, and a broken cache is never used."""

import errno
import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pe_bench.config.schema import DataConfig, TokenizerConfig
from pe_bench.data import packed
from pe_bench.data.packed import load_data
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


@pytest.fixture
def builds(monkeypatch) -> list[Path]:
    """The folders that were packed."""
    done, pack = [], packed._pack
    monkeypatch.setattr(packed, "_pack", lambda folder, *rest: done.append(folder) or pack(folder, *rest))
    return done


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def test_a_document_is_its_files_bytes(corpus, root):
    data = load_data(corpus, TokenizerConfig(), str(root))
    assert len(data.train.lengths) == 16 and len(data.validation.lengths) == 4
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
    first = load_data(corpus, TokenizerConfig(), str(root))
    bpe = load_data(corpus, TokenizerConfig(kind="bpe", vocab_size=280), str(root))
    folder = Path(str(corpus.path))
    moved = folder.rename(folder.with_name("moved"))
    again = load_data(DataConfig(name="other", source="files", path=str(moved)), TokenizerConfig(), str(root))
    assert again.hash == first.hash != bpe.hash and again.name == "other" and len(first.hash) == 16
    (moved / "00.txt").write_text("something else")
    changed = load_data(DataConfig(source="files", path=str(moved)), TokenizerConfig(), str(root))
    assert changed.hash != first.hash


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, and neither its size nor its time."""
    content, times = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train-tokens.npy", "missing"),
        ("validation-byte_ends.npy", "cut"),
        ("tokenizer.json", "flipped"),
        ("meta.json", "flipped"),
    ],
)
def test_a_damaged_entry_is_built_again_and_a_line_says_so(
    corpus, root, builds, monkeypatch, capsys, name, damage
):
    config = TokenizerConfig(kind="bpe", vocab_size=280)
    first = load_data(corpus, config, str(root))
    assert (first.tokenizer, first.vocab_size) == ("bpe-280", 280)
    tokens, starts = np.array(first.train.tokens), np.array(first.train.starts)
    (entry,) = entries(root)
    path = entry / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        flip(path)
    monkeypatch.setattr(files, "_compared", set())  # as in another process
    capsys.readouterr()
    second = load_data(corpus, config, str(root))
    assert len(builds) == 2 and second.hash == first.hash and second.vocabulary == first.vocabulary
    assert np.array_equal(second.train.tokens, tokens) and np.array_equal(second.train.starts, starts)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {entry} is damaged and is built again")
    load_data(corpus, config, str(root))
    assert len(builds) == 2 and capsys.readouterr().err == ""


def test_a_tokenizer_is_what_it_makes_of_a_text_wherever_its_file_lies(corpus, root, tmp_path):
    def load(folder: str, change: Callable[[dict], object] = lambda values: None) -> packed.Data:
        values = json.loads(json.dumps(original))
        change(values)
        path = tmp_path / folder / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values))
        return load_data(corpus, TokenizerConfig(kind="file", name=str(path)), str(root))

    load_data(corpus, TokenizerConfig(kind="bpe", vocab_size=280), str(root))
    original = json.loads((entries(root)[0] / "tokenizer.json").read_text())
    first, second = load("a"), load("b")
    assert first.hash == second.hash and (first.tokenizer, second.tokenizer) == ("a", "b")
    assert load("c", lambda values: values.update(version="1.0", truncation=None)).hash == first.hash
    changes = [
        lambda values: values["model"]["merges"].reverse(),
        lambda values: values["pre_tokenizer"].update(add_prefix_space=True),
        lambda values: values.update(normalizer={"type": "Lowercase"}),
        lambda values: values["model"].update(ignore_merges=True),
    ]
    hashes = {load("a", change).hash for change in changes}
    assert len(hashes) == len(changes) and first.hash not in hashes


def test_a_killed_build_is_not_mistaken_for_a_finished_one_and_is_cleaned_up(corpus, root):
    load_data(corpus, TokenizerConfig(), str(root))
    (entry,) = entries(root)
    entry.rename(root / f"{files.TEMPORARY}{entry.name}-killed")
    load_data(corpus, TokenizerConfig(), str(root))
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
    assert {each.result() for each in done} == {root / "key"} and len(built) == 1


def test_a_build_that_fails_leaves_nothing_and_a_full_disk_is_one_line(root):
    for error, expected in (
        (UserError("no"), "no"),
        (OSError(errno.ENOSPC, "full"), r"\(full\): set another cache_dir"),
    ):

        def build(folder: Path, error: Exception = error) -> dict:
            (folder / "half").write_text("half")
            raise error

        with pytest.raises((UserError, RunError), match=expected):
            cached_folder(root, "key", build)
        assert entries(root) == []
