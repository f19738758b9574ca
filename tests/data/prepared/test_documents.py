"""Documents from texts and from prepared folders are the same to the loader."""

import dataclasses
import pickle

import numpy as np
import pytest

from bam_jax.config import Config, DataConfig
from bam_jax.data.loader import batches, held_out
from bam_jax.data.prepared.documents import Begun, InMemory, Reader, open_documents
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

BYTE = tokenizer("byte")
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog", "and back", "again and again"]


@pytest.fixture
def folder(tmp_path, prepared):
    (tmp_path / "prepared").mkdir()
    return prepared(tmp_path / "prepared", [TEXTS[:2], TEXTS[2:]], ["held", "out"])


def test_documents_that_begin_with_a_token_are_whole_in_other_processes_as_well():
    plain, numbers = InMemory(TEXTS, BYTE), np.array([3, 0])
    for begun in (made := Begun(plain, 7), pickle.loads(pickle.dumps(made))):
        assert begun.shards.tolist() == [0, 5] and begun.lengths.dtype == np.int32
        for number, ids, own in zip(numbers, begun.read(numbers), plain.read(numbers), strict=True):
            assert ids.tolist() == [7, *own] and len(ids) == begun.lengths[number] and ids.dtype == np.int32


@pytest.mark.parametrize("packing", ["concat", "first_fit"])
def test_a_prepared_folder_gives_the_batches_of_its_texts(tmp_path, folder, packing):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    data = DataConfig(source=folder, tokenizer="byte", holdout=0.0, packing=packing)
    one, other = (
        batches(Config(data=each, context=8, batch=3), BYTE)
        for each in (data, dataclasses.replace(data, source=str(tmp_path / "texts")))
    )
    for _, left, right in zip(range(10), one, other, strict=False):
        np.testing.assert_equal(left, right)


def test_what_a_prepared_folder_holds_out(tmp_path, folder, prepared):
    data = DataConfig(source=folder, tokenizer="byte")
    assert BYTE.decode(held_out(Config(data=data), BYTE)) == "heldout"
    (tmp_path / "other").mkdir()
    other = prepared(tmp_path / "other", [["all ", "of it"]])
    with pytest.raises(UserError, match="prepare it with a hold-out"):
        held_out(Config(data=DataConfig(source=other, tokenizer="byte")), BYTE)
    # A folder that is only there to be evaluated on has no need of a hold-out.
    data = DataConfig(source=folder, held_out_source=other, tokenizer="byte")
    assert BYTE.decode(held_out(Config(data=data), BYTE)) == "all of it"
    data = DataConfig(source=other, held_out_source=folder, tokenizer="byte")
    assert BYTE.decode(held_out(Config(data=data), BYTE)) == "heldout"


def test_a_mixture_holds_out_each_source_once(tmp_path, folder):
    (tmp_path / "x.txt").write_text("something else")
    mixture = {
        "one": {"weight": 1, "source": folder},
        "two": {"weight": 1, "source": folder, "packing": "first_fit"},
        "three": {"weight": 1, "source": "stdlib", "held_out_source": str(tmp_path / "x.txt")},
    }
    config = Config(data=DataConfig(tokenizer="byte", mixture=mixture))
    assert BYTE.decode(held_out(config, BYTE)) == "heldoutsomething else"


def test_a_corpus_too_large_for_memory_is_to_be_prepared(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 100)
    data = DataConfig(source=str(tmp_path), tokenizer="byte", holdout=0.0)
    monkeypatch.setattr("bam_jax.data.prepared.documents.IN_MEMORY", 12_900)
    assert len(open_documents(data, BYTE).lengths) == 1  # repeated ones count once
    monkeypatch.setattr("bam_jax.data.prepared.documents.IN_MEMORY", 12_899)
    with pytest.raises(
        UserError, match="more than 12,899 characters.*prepare it: python -m bam_jax.data.prepare --source"
    ):
        open_documents(data, BYTE)


def test_another_tokenizer(folder):
    with pytest.raises(UserError) as error:
        open_documents(DataConfig(source=folder, tokenizer="char"), tokenizer("char"))
    assert all(text in str(error.value) for text in (folder, BYTE.hash, tokenizer("char").hash, "'char'", "byte"))


def test_the_reader_keeps_the_last_document(listed):
    documents = listed([[3, 4, 5]])
    read = Reader(documents)
    for numbers, asked in (([0, 1, 1], [0, 1]), ([1, 2], [2]), ([2], []), ([1], [1])):
        documents.asked.clear()
        found = read(np.array(numbers))
        assert documents.asked == asked
        for number, ids in zip(numbers, found, strict=True):
            np.testing.assert_array_equal(ids, documents.texts[number])
