"""Documents come from the sources as they stand, and a bad source is told in one line."""

import bz2
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import datasets
import numpy as np
import pytest
import yaml

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config, DataConfig
from pe_bench.data import split
from pe_bench.data.packed import load_data, read_corpus, summary
from pe_bench.data.sources import Document, within_budget
from pe_bench.data.split import describe_split, split_corpus, without_overlap
from pe_bench.errors import UserError


def files(path: Path, **options) -> DataConfig:
    return DataConfig(name="files", source="files", path=str(path), **options)


def refusal(config: DataConfig) -> str:
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        read_corpus(config)
    return str(caught.value)


def write_rows(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_standard_library_is_real_text_in_a_fixed_order_without_tests_and_tables():
    documents, _ = read_corpus(DataConfig())
    names = [document.name for document in documents]
    assert names == sorted({*names}) and 5e6 < sum(len(document.text) for document in documents) < 20e6
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    parts = {part for name in names for part in name.split("/")}
    assert parts.isdisjoint({"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages"})
    assert "keyword.py" not in names and not any(name.startswith("_sysconfigdata") for name in names)


def test_a_folder_is_read_in_the_order_of_names_without_hidden_and_empty_files(tmp_path):
    texts = {"b/x.txt": "tief\n", "c.md": "é", "a.py": "x = 1", ".hidden": "h", ".git/y.txt": "y", "e": ""}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    documents, _ = read_corpus(files(tmp_path))
    expected = [Document(name, texts[name].encode()) for name in ("a.py", "b/x.txt", "c.md")]
    assert documents == expected
    sides = read_corpus(files(tmp_path / "a.py", validation_path=str(tmp_path / "c.md")))
    assert sides == (expected[:1], expected[2:])


def test_a_linked_folder_is_read_once_and_links_may_form_a_loop(tmp_path: Path) -> None:
    for folder in ("texts/sub", "other/deep", "third"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("texts/z.txt", "texts/sub/a.txt", "other/b.txt", "other/deep/c.txt", "third/d.txt"):
        (tmp_path / name).write_text(name)
    texts = tmp_path / "texts"
    (texts / "linked").symlink_to(tmp_path / "other")
    (texts / "again").symlink_to(texts / "sub")
    (texts / "sub" / "up").symlink_to(texts)
    (tmp_path / "other" / "back").symlink_to(texts)
    (tmp_path / "other" / "more").symlink_to(tmp_path / "third")
    (texts / ".hidden").symlink_to(tmp_path / "third")
    documents, _ = read_corpus(files(texts))
    names = ["linked/b.txt", "linked/deep/c.txt", "linked/more/d.txt", "sub/a.txt", "z.txt"]
    assert [document.name for document in documents] == names
    through_link, _ = read_corpus(files(texts / "linked"))
    assert [document.name for document in through_link][:2] == ["b.txt", "back/sub/a.txt"]


def test_every_reader_gives_line_feeds_and_no_mark_unless_newlines_are_kept(tmp_path):
    text, read = "\ufeffone\r\ntwo\rthree\n\r\n\ufeff", "one\ntwo\nthree\n\n\ufeff"
    (tmp_path / "a.txt").write_bytes(text.encode())
    write_rows(tmp_path / "b.jsonl", {"text": text})
    datasets.Dataset.from_list([{"text": text}]).to_parquet(tmp_path / "c.parquet")
    (tmp_path / "d.txt").write_bytes(b"\xef\xbb\xbf")
    for newlines, expected in (("universal", read), ("keep", text)):
        documents, _ = read_corpus(files(tmp_path, newlines=newlines))
        assert [document.text.decode() for document in documents[:3]] == [expected] * 3
        assert len(documents) == (3 if newlines == "universal" else 4), "a mark alone is no text"


def test_rows_of_json_lines_and_parquet_are_documents(tmp_path):
    rows = [{"body": "one\ntwo"}, {"body": None}, {"body": "drei é"}]
    lines = write_rows(tmp_path / "a.jsonl", *rows)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "c.parquet")
    write_rows(tmp_path / "d.json", *rows)
    (tmp_path / "e.json").write_text("\n \n" + json.dumps(rows, indent=1))
    documents, _ = read_corpus(files(tmp_path, text_column="body"))
    tables = ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.json", "e.json")
    names = [f"{name}:{row}" for name in tables for row in (0, 2)]
    assert [document.name for document in documents] == names
    assert {document.text.decode() for document in documents} == {"one\ntwo", "drei é"}


@pytest.mark.parametrize(
    "name", ["a.ndjson", "a.JSONL", "a.Json", "a.json.gz", "a.ndjson.gz", "A.JSONL.GZ", "a.PARQUET"]
)
def test_rows_are_read_whatever_the_case_of_the_suffix(tmp_path: Path, name: str) -> None:
    lines = write_rows(tmp_path / "rows", {"text": "one"}, {"text": "two"})
    content = lines.read_bytes()
    lines.unlink()
    if name == "a.PARQUET":
        datasets.Dataset.from_list([{"text": "one"}, {"text": "two"}]).to_parquet(tmp_path / name)
    else:
        is_compressed = name.lower().endswith(".gz")
        (tmp_path / name).write_bytes(gzip.compress(content) if is_compressed else content)
    documents, _ = read_corpus(files(tmp_path))
    assert documents == [Document(f"{name}:0", b"one"), Document(f"{name}:1", b"two")]


def test_a_file_may_have_another_encoding_and_all_that_are_no_text_are_named(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "late.txt").write_bytes(b"caf\xe9")
    documents, _ = read_corpus(files(tmp_path, encoding="latin-1"))
    assert {document.text for document in documents} == {b"good", "café".encode()}
    (tmp_path / "early.txt").write_bytes(b"ab\0c")
    told = refusal(files(tmp_path))
    assert "2 of its files cannot be read: early.txt (not utf-8 text: byte 2 is zero), late.txt (" in told
    assert "byte 3)" in told and "data.encoding=NAME" in told


def test_an_encoding_is_advised_only_for_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"text": "café"}, ensure_ascii=False).encode("latin-1"))
    told = refusal(files(tmp_path))
    assert told.endswith("a.jsonl (not json: byte 13): convert them, or take them out of the folder")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    assert "data.encoding=NAME" in refusal(files(tmp_path))


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", content)
    return archive.getvalue()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zipped])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_compressed_text_file_is_not_decoded(
    tmp_path: Path, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.txt").write_bytes(compress(b"short"))
    told = refusal(files(tmp_path, encoding=encoding))
    assert told.endswith("a.txt (a compressed file): convert them, or take them out of the folder")


def test_a_source_that_cannot_be_read_is_told_in_one_line(tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "a.jsonl", {"body": "x", "id": 3})
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n{"text": \n')
    (tmp_path / "c.parquet").write_text("not parquet")
    write_rows(tmp_path / "d.jsonl", {"text": "x"}, {})
    for name, options, told in (
        ("nowhere", {}, f"data.path={tmp_path}/nowhere does not exist"),
        ("empty", {}, "holds no text"),
        ("a.jsonl", {}, "no column 'text': set data.text_column to one of body, id"),
        ("a.jsonl", {"text_column": "id"}, "holds int"),
        ("d.jsonl", {}, "d.jsonl, row 1, is empty and has no column 'text': take the row out"),
        ("b.jsonl", {}, "b.jsonl (not json: Expecting value in line 2, column"),
        ("c.parquet", {}, "c.parquet (not parquet: "),
    ):
        assert told in refusal(files(tmp_path / name, **options))
    assert "Traceback" not in capfd.readouterr().err


def test_a_budget_cuts_the_last_document_between_characters():
    documents = [Document("a", b"abc"), Document("b", "déf".encode()), Document("c", b"ghi")]
    for budget, cut in ((3, []), (5, [Document("b", b"d")]), (6, [Document("b", "dé".encode())])):
        assert list(within_budget(documents, budget)) == [documents[0], *cut]
    assert list(within_budget(documents, None)) == documents


def read_from_hub(
    name: str, splits: dict, budget: int | None = None
) -> tuple[list, list | None, list[tuple]]:
    """Return the documents that come of splits, and the arguments of `datasets.load_dataset`."""
    config = DataConfig(**yaml.safe_load((config_dir() / f"data/{name}.yaml").read_text()))
    with patch.object(datasets, "load_dataset", return_value=splits) as load:
        train, validation = read_corpus(config, byte_budget=budget)
    return train, validation, [(*call.args, call.kwargs) for call in load.call_args_list]


def test_a_document_of_wikitext_is_an_article():
    lines = ["", " = One = \n", "", " Text of one . \n", "", " = = Part = = \n", "", " More . \n", ""]
    lines += [" = Two = \n", "", " x = y \n", " = not after a blank = \n"]
    rows = [{"text": line} for line in lines]
    train, validation, calls = read_from_hub("wikitext103", {"train": rows, "validation": rows})
    one = Document("One", b" = One = \n Text of one . \n = = Part = = \n More . \n")
    two = Document("Two", b" = Two = \n x = y \n = not after a blank = \n")
    assert train == validation == [one, two]
    assert calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", {"revision": None, "streaming": False})]


def test_a_large_dataset_is_streamed_no_further_than_max_tokens():
    def rows():
        yield from [{"text": "x" * 60}, {"text": "y" * 60}]
        raise AssertionError("read past data.max_tokens")

    train, validation, calls = read_from_hub("pg19", {"train": rows()}, 100)
    assert [(document.name, len(document.text)) for document in train] == [("train:0", 60), ("train:1", 40)]
    assert validation is None and calls[0][2]["streaming"] is True


def noise(size: int, seed: int) -> bytes:
    return bytes(random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz \n", k=size))


def corpus(count: int) -> list[Document]:
    """Documents of very different sizes, the longest last."""
    return [Document(f"{number}.txt", noise(100 + 7 * number**2, number)) for number in range(count)]


@pytest.mark.parametrize("shared, kept", [(0.2, 1), (0.4, 0), (1.0, 0)])
@pytest.mark.parametrize("rate", [1, 8])
def test_a_validation_document_that_stands_in_training_is_dropped(monkeypatch, shared, kept, rate):
    training = Document("train", noise(40_000, 1))
    monkeypatch.setattr(split, "KEPT_WINDOWS", 100_000 if rate == 1 else 40_000 // (rate - 1))
    taken = int(10_000 * shared)
    text = noise(10_000 - taken, 2) + training.text[5_000 : 5_000 + taken]
    short = Document("copy", b"too short for a window")
    remaining = without_overlap([Document("validation", text), short], [training, short])
    assert len(remaining) == kept, "a copy is dropped even if it is too short to have windows"


def test_the_split_is_decided_by_text_and_each_stratum_of_sizes_gives_one_document():
    documents = corpus(50)
    renamed = [Document(f"other/{document.name}", document.text) for document in reversed(documents)]
    train, validation = split_corpus(documents, None, 0.2)
    assert sorted(documents.index(document) // 5 for document in validation) == list(range(10))
    for others in (split_corpus(renamed, None, 0.2), split_corpus(documents + renamed, None, 0.2)):
        texts = [{document.text for document in side} for side in others]
        assert texts == [{one.text for one in train}, {one.text for one in validation}]
        assert sum(map(len, others)) == 50, "copies are removed before"


def test_with_few_documents_each_gives_its_last_fifth_at_a_character():
    chinese = "".join(chr(0x4E00 + step * step % 7919) for step in range(500))
    documents = [Document("a", noise(1_001, 1)), Document("b", chinese.encode())]
    train, validation = split_corpus(documents, None, 0.2)
    assert [one.name for one in train] == ["a[:80%]", "b[:80%]"]
    assert [one.name for one in validation] == ["a[80%:]", "b[80%:]"]
    for document, begin, end in zip(documents, train, validation, strict=True):
        assert begin.text + end.text == document.text
        assert abs(len(end.text) - len(document.text) / 5) <= 3
        end.text.decode()


def test_a_side_with_nothing_left_is_told_with_numbers():
    documents = corpus(3)
    held_out = [Document("new", noise(500, 99)), Document("seen", documents[2].text)]
    assert split_corpus(documents, held_out, 0.2) == (documents, held_out[:1]), "of the source's own"
    for train, validation, told in (
        (documents, documents, "3 training and 3 validation .* 30% .* data.validation_path"),
        ([], documents, "0 training and 3 validation documents: use more documents"),
    ):
        with pytest.raises(UserError, match=told):
            split_corpus(train, validation, 0.2)


def test_five_long_documents_are_cut_so_that_twenty_pieces_are_validated() -> None:
    novels = [Document(f"novel{number}", noise(400_000 + 37 * number, number)) for number in range(5)]
    train, validation = split_corpus(novels, None, 0.2, least=20)
    assert len(validation) >= 20 and len(train) >= 4 * len(validation)
    assert all(len(piece.text) >= 16_000 for piece in (*train, *validation))
    by_name = {piece.name: piece.text for piece in (*train, *validation)}
    for novel in novels:
        pieces = [name for name in by_name if name.startswith(f"{novel.name}[")]
        ordered = sorted(pieces, key=lambda name: int(name.partition("[")[2].partition("/")[0]))
        assert b"".join(by_name[name] for name in ordered) == novel.text
    said = describe_split(novels, train, validation)
    assert f"5 documents, cut into {len(by_name)} pieces, of which {len(validation)} are" in said
    assert "data.validation_path" in said


def test_short_or_many_documents_are_not_cut_and_few_short_ones_in_two() -> None:
    for documents in (corpus(40), corpus(100)):
        sides = split_corpus(documents, None, 0.2, least=20)
        assert sides == split_corpus(documents, None, 0.2)
        assert describe_split(documents, *sides) == ""
    few = corpus(3)
    sides = split_corpus(few, None, 0.2, least=20)
    assert sides == split_corpus(few, None, 0.2)
    assert describe_split(few, *sides).startswith("3 documents, each cut in two")


def test_a_note_says_how_many_pieces_of_a_document_are_cut_in_two() -> None:
    novel = [Document("novel", noise(50_000, 1))]
    sides = split_corpus(novel, None, 0.2, least=20)
    assert [len(side) for side in sides] == [4, 4]
    said = describe_split(novel, *sides)
    assert said.startswith("1 document, cut into 4 pieces, of which the end of each is validated;")


def test_nothing_is_said_of_cuts_where_the_validation_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, seed in (("train", 1), ("other", 2)):
        (tmp_path / side).mkdir()
        for number in range(3):
            (tmp_path / side / f"{side}{number}.txt").write_bytes(noise(5_000, 10 * seed + number))
    cut = files(tmp_path / "train")
    named = replace(cut, validation_path=str(tmp_path / "other"))
    load_data(Config({}, data=named, cache_dir=str(tmp_path / "cache")))
    assert capsys.readouterr().err == ""
    load_data(Config({}, data=cut, cache_dir=str(tmp_path / "cache")))
    assert "3 documents, each cut in two" in capsys.readouterr().err


def test_a_single_document_is_counted_in_the_singular(tmp_path: Path) -> None:
    one = corpus(1)
    assert describe_split(one, *split_corpus(one, None, 0.2)).startswith("1 document, cut in two: its end is")
    novel = [Document("novel", noise(100_000, 1))]
    said = describe_split(novel, *split_corpus(novel, None, 0.2, least=1))
    assert said.startswith("1 document, cut into 5 pieces, of which 1 is validated")
    (tmp_path / "a.txt").write_bytes(noise(5_000, 1))
    data = load_data(Config({}, data=files(tmp_path), cache_dir=str(tmp_path / "cache")))
    amounts = "1 document of 4,000 tokens for training, 1 document of 1,000 tokens for validation"
    assert summary(data, 16) == f"files: {amounts}"


def test_a_run_of_before_keeps_its_split(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}.txt").write_bytes(noise(50_000, number))
    old = DataConfig(name="files", source="files", path=str(texts))
    new = replace(old, validation_documents=20)
    assert parse_config(compose(["data=files", f"data.path={texts}"])).data == new
    hashes = {
        each.validation_documents: load_data(Config({}, data=each, cache_dir=str(tmp_path / "cache"))).hash
        for each in (old, new, old)
    }
    assert hashes[1] != hashes[20]


def test_a_dataset_that_the_hub_does_not_give_is_one_line_with_the_way_out():
    with pytest.raises(
        UserError, match=r"has no split 'train' \(it has test\): use data=stdlib, or data=files"
    ):
        read_from_hub("pg19", {"test": [{"text": "x"}]})
    error = ValueError("BuilderConfig 'x' not found.\nAvailable: ['y']")
    config = DataConfig(name="x", source="hub", path="owner/name")
    with patch.object(datasets, "load_dataset", side_effect=error), pytest.raises(UserError) as caught:
        read_corpus(config)
    reason = "BuilderConfig 'x' not found. Available: ['y']"
    loaded = f"data.path=owner/name cannot be loaded from the Hugging Face Hub ({reason})"
    assert str(caught.value) == f"{loaded}: check it, or use data=stdlib, or data=files data.path=DIR"
    config = replace(config, path="parquet")  # a format of the library, and no name of a dataset
    with pytest.raises(UserError, match="data.path=parquet is not the OWNER/NAME of a dataset on the Hub"):
        read_corpus(config)


def test_no_window_is_lost_where_a_long_text_is_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = np.random.default_rng(0).bytes(1_000)
    monkeypatch.setattr(split, "HASHED_CHUNK_BYTES", 100)
    assert np.array_equal(split._sampled_hashes(text, 1), split.window_hashes(text))
