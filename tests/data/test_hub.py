"""The Hub is read through `datasets`, and once."""

import datasets
import pytest
import yaml

from pe_bench.config.groups import config_dir
from pe_bench.config.schema import DataConfig, TokenizerConfig
from pe_bench.data.packed import load_data, read_corpus
from pe_bench.errors import UserError


def shipped(name: str) -> DataConfig:
    return DataConfig(**yaml.safe_load((config_dir() / f"data/{name}.yaml").read_text()))


@pytest.fixture
def served(monkeypatch):
    """Have `datasets.load_dataset` give what the test puts in; the calls are kept."""
    splits, calls = {}, []

    def load_dataset(path, name=None, **options):
        calls.append((path, name, options))
        return splits

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return splits, calls


def test_a_document_of_wikitext_is_an_article(served):
    splits, calls = served
    lines = ["", " = One = \n", "", " Text of one . \n", "", " = = Part = = \n", "", " More . \n", ""]
    lines += [" = Two = \n", "", " x = y \n", " = not after a blank = \n"]
    splits["train"] = [{"text": line} for line in lines]
    splits["validation"] = [{"text": " = Three = \n"}, {"text": ""}, {"text": " Text of three . \n"}]
    train, validation = read_corpus(shipped("wikitext103"))
    assert [document.name for document in train] == ["One", "Two"]
    assert train[0].text == b" = One = \n Text of one . \n = = Part = = \n More . \n"
    assert b"not after a blank" in train[1].text
    assert [document.name for document in validation or []] == ["Three"]
    assert calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", {"revision": None, "streaming": False})]


def test_a_large_dataset_is_streamed_no_further_than_max_tokens(served):
    splits, calls = served

    def rows():
        yield {"text": "x" * 60}
        yield {"text": "y" * 60}
        raise AssertionError("read past data.max_tokens")

    splits["train"] = rows()
    train, validation = read_corpus(shipped("pg19"), byte_budget=100)
    assert [(document.name, len(document.text)) for document in train] == [("train:0", 60), ("train:1", 40)]
    assert validation is None and calls[0][2]["streaming"] is True


def test_nothing_is_fetched_twice(served, tmp_path):
    splits, calls = served
    splits["train"] = [{"text": f"page {number} " * 20} for number in range(20)]
    first = load_data(shipped("pg19"), TokenizerConfig(), str(tmp_path))
    again = load_data(shipped("pg19"), TokenizerConfig(), str(tmp_path))
    assert len(calls) == 1 and first.hash == again.hash
    revised = DataConfig(
        name="pg19", source="hub", path="emozilla/pg19", revision="v2", max_tokens=50_000_000
    )
    load_data(revised, TokenizerConfig(), str(tmp_path))
    assert len(calls) == 2


def test_a_missing_column_is_told_before_a_stream_is_opened(served):
    class Rows:
        column_names = ["body", "id"]

        def __iter__(self):
            raise AssertionError("opened")

    served[0]["train"] = Rows()
    with pytest.raises(UserError, match="no column 'text': set data.text_column to one of body, id"):
        read_corpus(shipped("pg19"), byte_budget=100)


def test_a_failure_at_the_hub_is_one_line(monkeypatch):
    def fail(*arguments, **options):
        raise ValueError("BuilderConfig 'x' not found.\nAvailable: ['y']")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UserError) as caught:
        read_corpus(shipped("pg19"))
    message = str(caught.value)
    assert "Available: ['y']" in message and "check it and the network, or use data=stdlib" in message
    assert "\n" not in message
