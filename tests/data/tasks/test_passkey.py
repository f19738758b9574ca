"""Planted keys and the prompts that ask for one."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.tasks.passkey import FILLER, paper_prompt, plant, prompt
from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer
from bam_jax.system.errors import UserError

CHAR, BYTE = CharTokenizer(), ByteTokenizer()
KEY = re.compile(r"<KEY>(\d{5})<END>")
KEYS = st.lists(st.integers(0, 9), min_size=5, max_size=5)


@given(st.integers(21, 90), st.integers(0, 2**32), st.floats(0, 1))
def test_plant(length, seed, fraction):
    windows = np.zeros((16, length), np.int32)
    tokens, weights = plant(windows, np.random.default_rng(seed), CHAR, fraction=fraction, answer_weight=1.5)
    assert not windows.any() and tokens.dtype == np.int32 and weights.dtype == np.float32
    for row, weight in zip(tokens, weights, strict=True):
        starts = np.flatnonzero(row == CHAR.key)
        keys = KEY.findall(CHAR.decode(row))
        assert len(starts) == len(keys) and len(keys) in (0, 2, 3) and len(set(keys)) <= 1
        assert np.count_nonzero(row) == 7 * len(keys)  # all else is as it was
        expected = np.ones(length)
        for number, start in enumerate(starts):
            expected[start + 1 : start + 6] = 1.5 if number else 0
        np.testing.assert_array_equal(weight, expected)


@given(st.integers(8, 300), st.floats(0, 1), KEYS, st.integers(1, 400))
def test_prompt(length, depth, digits, held_out):
    text = np.arange(held_out, dtype=np.int32) % 50
    tokens, answer = prompt(text, length, depth, digits, CHAR)
    assert tokens.shape == (length,) and tokens.dtype == answer.dtype == np.int32
    assert CHAR.decode(answer) == "".join(map(str, digits))
    start = round(depth * (length - 8))
    assert tokens[start] == tokens[-1] == CHAR.key and tokens[start + 6] == CHAR.end
    np.testing.assert_array_equal(tokens[start + 1 : start + 6], answer)
    rest = np.delete(np.arange(length), [*range(start, start + 7), length - 1])
    np.testing.assert_array_equal(tokens[rest], text[rest % held_out])


@given(st.integers(360, 3000), st.floats(0, 1), st.lists(st.integers(0, 9), min_size=5, max_size=7))
def test_paper_prompt(length, depth, digits):
    tokens, answer = paper_prompt(length, depth, digits, BYTE)
    key = "".join(map(str, digits))
    assert length - len(FILLER) - 1 < len(tokens) <= length and BYTE.decode(answer) == key[-5:]
    before, after = BYTE.decode(tokens).split(f" The pass key is {key}. Remember it. {key} is the pass key.")
    fillers = before.count(FILLER) + after.count(FILLER)
    assert before.startswith("There is an important info")
    assert fillers == round((len(before) + len(after) - 193 - len(key)) / 90)
    assert before.count(FILLER) == round(depth * fillers)
    assert after.endswith(f" What is the pass key? The pass key is {key[:-5]}")


ONES = [1] * 5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: plant(np.zeros((1, 20)), np.random.default_rng(0), CHAR),
            "context 19 is too short for passkeys; give 20",
        ),
        (lambda: prompt(np.zeros(9), 7, 0.5, ONES, CHAR), "length 7 is shorter than the passkey prompt; give 8"),
        (lambda: prompt(np.zeros(9), 64, 1.5, ONES, CHAR), "depth 1.5 must be between 0 and 1"),
        (lambda: prompt(np.zeros(9), 64, 0.5, [1] * 6, CHAR), "a passkey is 5 digits"),
        (lambda: prompt(np.zeros(0), 64, 0.5, ONES, CHAR), "no held-out text"),
        (lambda: paper_prompt(999, 0.5, [1] * 4, BYTE), "a passkey is 5 digits"),
        (lambda: paper_prompt(64, 0.5, ONES, BYTE), "shorter than the paper's passkey prompt; give 246 or"),
        (lambda: paper_prompt(999, 0.5, ONES, CHAR), "tokenizer 'char' does not keep each digit"),
    ],
)
def test_bad_prompts(call, says):
    with pytest.raises(UserError, match=re.escape(says)):
        call()
