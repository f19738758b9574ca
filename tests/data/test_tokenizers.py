"""Tokenizers: round trips, sizes and what the passkeys rely on."""

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer, tokenizer
from bam_jax.errors import UserError

KEPT = string.ascii_letters + string.punctuation + " \n"


@given(st.text())
def test_bytes_come_back(text):
    made = ByteTokenizer()
    ids = made.encode(text)
    assert ids.dtype == np.int32 and made.decode(np.append(ids, made.eos)) == text


@given(st.text(alphabet=KEPT))
def test_characters_come_back_in_lower_case(text):
    made = CharTokenizer()
    assert made.decode(made.encode(text)) == text.lower()


@given(st.text())
def test_characters_never_give_a_keys_symbols(text):
    made = CharTokenizer()
    ids = made.encode(text + "0123456789\ud800\u20ac")
    assert ids.dtype == np.int32 and len(ids) == len(text.lower()) + 12
    assert ids.min() >= 0 and not np.isin(ids, [*made.digits, made.key, made.end]).any()


def test_the_73_symbols():
    made = CharTokenizer()
    assert made.size == 73
    assert made.decode(np.array([*made.digits, made.key, made.end])) == "0123456789<KEY><END>"
    assert len(set(made.decode(np.arange(60)))) == 60


@pytest.mark.parametrize("name", ["byte", "char"])
def test_hashes_are_fixed(name):
    # Checkpoints carry them.
    assert tokenizer(name).hash == {"byte": "bb768daab32efae8", "char": "f2bad368ca941aaf"}[name]


def test_unknown_name():
    with pytest.raises(UserError, match="did you mean 'char'"):
        tokenizer("chars")


def test_mistral():
    made = tokenizer("mistral")
    assert (made.size, made.eos) == (32_768, 2)
    text = "Keys such as 90125 stay,\n\n  as do  spaces."
    ids = made.encode(text)
    assert made.decode(ids) == text and [i for i in ids if i in made.digits] == [made.digits[int(d)] for d in "90125"]


def test_mistral_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"needs the package sentencepiece: pip install 'bam_jax\[tokenizers\]'"):
        tokenizer("mistral")
