"""The split follows from the text, has long documents on both sides, and keeps no copies."""

import random

import numpy as np
import pytest

from pe_bench.data import split
from pe_bench.data.sources import Document
from pe_bench.data.split import split_corpus, window_hashes, without_overlap
from pe_bench.errors import UserError


def noise(size: int, seed: int) -> bytes:
    return bytes(random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz \n", k=size))


def corpus(count: int) -> list[Document]:
    """Documents of very different sizes, the longest last."""
    return [Document(f"{number}.txt", noise(100 + 7 * number**2, number)) for number in range(count)]


def test_each_stratum_of_sizes_gives_one_document():
    documents = corpus(50)
    _, validation = split_corpus(documents, None, 0.2)
    places = sorted(documents.index(document) // 5 for document in validation)
    assert places == list(range(10))


def test_the_split_is_decided_by_text_not_by_names_or_order():
    documents = corpus(30)
    train, validation = split_corpus(documents, None, 0.2)
    renamed = [Document(f"other/{document.name}", document.text) for document in reversed(documents)]
    train_again, validation_again = split_corpus(renamed, None, 0.2)
    assert {one.text for one in train} == {one.text for one in train_again}
    assert {one.text for one in validation} == {one.text for one in validation_again}


def test_copies_are_removed_before_the_split():
    documents = corpus(20)
    copies = [Document(f"copy of {document.name}", document.text) for document in documents]
    train, validation = split_corpus(documents + copies, None, 0.2)
    assert len(train) + len(validation) == 20


@pytest.mark.parametrize("shared, kept", [(0.2, 1), (0.4, 0), (1.0, 0)])
@pytest.mark.parametrize("rate", [1, 8])
def test_a_validation_document_that_stands_in_training_is_dropped(monkeypatch, shared, kept, rate):
    training = Document("train", noise(40_000, 1))
    monkeypatch.setattr(split, "KEPT_WINDOWS", 100_000 if rate == 1 else 40_000 // (rate - 1))
    taken = int(10_000 * shared)
    text = noise(10_000 - taken, 2) + training.text[5_000 : 5_000 + taken]
    assert len(without_overlap([Document("validation", text)], [training])) == kept


def test_equal_windows_and_only_they_have_equal_hashes():
    text = noise(5_000, 3)
    hashes = window_hashes(text + b"-" + text)
    assert len(hashes) == 10_001 - 47
    windows = [(text + b"-" + text)[start : start + 48] for start in range(len(hashes))]
    assert len(set(windows)) == len(np.unique(hashes))
    assert np.array_equal(hashes[:4_953], hashes[5_001:])
    assert len(window_hashes(b"x" * 47)) == 0 and len(window_hashes(b"x" * 48)) == 1


def test_with_few_documents_each_gives_its_last_fifth_at_a_character():
    documents = [Document("a", noise(1_001, 1)), Document("b", "aé".encode() * 500 + noise(3, 1))]
    documents[1] = Document("b", "".join(chr(0x4E00 + step * step % 7919) for step in range(500)).encode())
    train, validation = split_corpus(documents, None, 0.2)
    assert [one.name for one in train] == ["a[:80%]", "b[:80%]"]
    assert [one.name for one in validation] == ["a[80%:]", "b[80%:]"]
    for document, begin, end in zip(documents, train, validation, strict=True):
        assert begin.text + end.text == document.text
        assert abs(len(end.text) - len(document.text) / 5) <= 3
        end.text.decode()


def test_a_validation_side_of_the_source_is_kept_and_only_overlap_is_dropped():
    documents = corpus(3)
    held_out = [Document("new", noise(500, 99)), Document("seen", documents[2].text)]
    train, validation = split_corpus(documents, held_out, 0.2)
    assert train == documents and validation == held_out[:1]


def test_a_side_with_nothing_left_is_told_with_numbers():
    documents = corpus(3)
    with pytest.raises(
        UserError, match="each of the 3 validation documents .* 3 training .* 30%.*validation_path"
    ):
        split_corpus(documents, documents, 0.2)
    with pytest.raises(UserError, match="1 training documents and none for validation"):
        split_corpus([Document("a", b"x")], [], 0.2)
    with pytest.raises(UserError, match="no training documents are left"):
        split_corpus([], documents, 0.2)
