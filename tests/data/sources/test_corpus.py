"""Documents from Python itself and from folders; what is held out is never trained on."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.prepared.sampling import REPORTED, count_in_texts
from bam_jax.data.sources.corpus import divide, read_texts
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError


def test_no_paragraph_of_stdlib_is_trained_on_and_held_out():
    stdlib = list(read_texts("stdlib"))
    assert sum(map(len, stdlib)) > 1_500_000
    assert count_in_texts(stdlib, tokenizer("char")).share < REPORTED
    train, held_out = (
        {" ".join(p.split()) for text in part for p in re.split(r"\n\s*\n", text)} - {""}
        for part in divide(stdlib, 0.1)
    )
    assert len(held_out) > 1000
    # The one document that is cut may be cut within a paragraph; that too shares no text.
    assert not train & held_out


def test_sources_without_text(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(UserError, match=r"has no \.txt or \.jsonl"):
        list(read_texts(str(tmp_path)))
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(UserError, match="holds no text"):
        list(read_texts(str(tmp_path)))


@given(st.lists(st.text(min_size=1)), st.floats(0, 0.99))
def test_split_keeps_every_character_once_at_the_very_fraction(texts, holdout):
    unique = list(dict.fromkeys(texts))
    train, held_out = divide(texts, holdout)
    assert sorted("".join(train + held_out)) == sorted("".join(unique))
    assert sum(map(len, held_out)) == round(holdout * sum(map(len, unique)))
    assert len(train) + len(held_out) <= len(unique) + 1  # one document is cut, at most


def test_split_goes_by_hash_and_within_a_document_by_place():
    assert divide(["abcdefghij"], 0.2) == (["abcdefgh"], ["ij"])
    texts = [f"document {number:03}" for number in range(200)]
    assert set(divide(texts, 0.1)[1]) == set(divide(texts[::-1], 0.1)[1]) != set(texts[-20:])
