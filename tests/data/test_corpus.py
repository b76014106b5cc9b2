"""Documents come from the sources as they stand, and a bad source is told in one line."""

import gzip
import json
import sysconfig
from dataclasses import fields
from pathlib import Path

import datasets
import pytest
import yaml

from pe_bench.config.groups import config_dir
from pe_bench.config.schema import DataConfig, TokenizerConfig
from pe_bench.data.packed import read_corpus
from pe_bench.data.sources import Document, character_boundary, within_budget
from pe_bench.errors import UserError


def files(path: Path, **options) -> DataConfig:
    return DataConfig(name="files", source="files", path=str(path), **options)


def one_line(config: DataConfig) -> str:
    with pytest.raises(UserError) as caught:
        read_corpus(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_rows(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_standard_library_is_real_text_in_a_fixed_order_without_tests_and_tables():
    documents, validation = read_corpus(DataConfig())
    names = [document.name for document in documents]
    assert validation is None
    assert names == sorted(names) and len(names) == len(set(names)) > 300
    assert 5e6 < sum(len(document.text) for document in documents) < 20e6
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    parts = {part for name in names for part in name.split("/")}
    assert parts.isdisjoint({"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages"})
    assert "keyword.py" not in names and not any(name.startswith("_sysconfigdata") for name in names)
    assert documents == read_corpus(DataConfig())[0]


def test_a_folder_is_read_in_the_order_of_names_without_hidden_and_empty_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    texts = {
        "b/x.txt": "tief\n",
        "c.md": "é",
        "a.py": "x = 1",
        ".hidden": "h",
        ".git/y.txt": "y",
        "e": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    documents, _ = read_corpus(files(tmp_path))
    expected = [Document(name, texts[name].encode()) for name in ("a.py", "b/x.txt", "c.md")]
    assert documents == expected


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
    lines.write_bytes(b"\xef\xbb\xbf" + lines.read_bytes().replace(b"}\n", b"}\r\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "c.parquet")
    documents, _ = read_corpus(files(tmp_path, text_column="body"))
    names = [f"{name}:{row}" for name in ("a.jsonl", "b.jsonl.gz", "c.parquet") for row in (0, 2)]
    assert [document.name for document in documents] == names
    assert {document.text.decode() for document in documents} == {"one\ntwo", "drei é"}


def test_validation_path_gives_the_other_side(tmp_path):
    (tmp_path / "a.txt").write_text("train")
    (tmp_path / "b.txt").write_text("validation")
    train, validation = read_corpus(files(tmp_path / "a.txt", validation_path=str(tmp_path / "b.txt")))
    assert train == [Document("a.txt", b"train")]
    assert validation == [Document("b.txt", b"validation")]


def test_all_files_that_are_not_text_are_named_at_once_and_may_have_another_encoding(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    for number in range(2, 13):
        (tmp_path / f"{number:02}.txt").write_bytes(b"caf\xe9")
    assert {document.text for document in read_corpus(files(tmp_path, encoding="latin-1"))[0]} == {
        b"good",
        "café".encode(),
    }
    (tmp_path / "00.txt").write_bytes(b"ab\0c")
    (tmp_path / "01.txt").write_bytes("é".encode("utf-16"))
    message = one_line(files(tmp_path))
    assert (
        f"data.path={tmp_path}: 13 of 14 files cannot be read as utf-8 text: 00.txt (byte 2 is zero), "
        in message
    )
    assert (
        "01.txt (byte 0), 02.txt (byte 3), " in message and "09.txt (byte 3) and 3 more: convert" in message
    )


def test_a_source_that_cannot_be_read_is_told_in_one_line(tmp_path, monkeypatch, capfd):
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "a.jsonl", {"body": "x", "id": 3})
    for name, content in {
        "e.txt": "",
        "t.txt": "text",
        "b.jsonl": '{"text": "x"}\n{"text": \n',
        "c.parquet": "not parquet",
    }.items():
        (tmp_path / name).write_text(content)
    for name, options, told in (
        ("nowhere", {}, f"data.path={tmp_path}/nowhere does not exist"),
        (
            "t.txt",
            {"validation_path": f"{tmp_path}/no"},
            f"data.validation_path={tmp_path}/no does not exist",
        ),
        ("empty", {}, "holds no files"),
        ("e.txt", {}, "holds no text"),
        ("a.jsonl", {}, "no column 'text': set data.text_column to one of body, id"),
        ("a.jsonl", {"text_column": "id"}, "holds int"),
        ("b.jsonl", {}, f"{tmp_path / 'b.jsonl'} cannot be read"),
        ("c.parquet", {}, f"{tmp_path / 'c.parquet'} cannot be read"),
    ):
        assert told in one_line(files(tmp_path / name, **options))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "data=files" in one_line(DataConfig())
    assert "Traceback" not in capfd.readouterr().err


def test_a_budget_cuts_the_last_document_between_characters():
    documents = [Document("a", b"abc"), Document("b", "déf".encode()), Document("c", b"ghi")]
    assert list(within_budget(documents, 5)) == [documents[0], Document("b", b"d")]
    assert list(within_budget(documents, 6)) == [documents[0], Document("b", "dé".encode())]
    assert list(within_budget(documents, 3)) == documents[:1]
    assert list(within_budget(documents, None)) == documents
    assert character_boundary("é".encode(), 1) == 0


@pytest.mark.parametrize("group, schema", [("data", DataConfig), ("tokenizer", TokenizerConfig)])
def test_every_yaml_has_every_key_and_no_other(group, schema):
    paths = sorted((config_dir() / group).glob("*.yaml"))
    assert paths
    for path in paths:
        values = yaml.safe_load(path.read_text())
        assert set(values) == {field.name for field in fields(schema)}, path.name
        schema(**values)


def test_the_default_yaml_files_say_the_defaults():
    assert DataConfig(**yaml.safe_load((config_dir() / "data/stdlib.yaml").read_text())) == DataConfig()
    values = yaml.safe_load((config_dir() / "tokenizer/bytes.yaml").read_text())
    assert TokenizerConfig(**values) == TokenizerConfig()
