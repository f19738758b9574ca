"""JSON that is damaged or a stranger's is named in one line."""

import json
from typing import Annotated, Literal, NotRequired, TypedDict

import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import Meta

from bam_jax.system.errors import UserError
from bam_jax.system.typed_json import DEPTH, LARGEST, check, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(1 - LARGEST, LARGEST - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@hypothesis.given(VALUES)
def test_what_json_writes_is_read_back(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False).encode()):
        assert parse(text, "x") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "x is not JSON (Input data was truncated); mend or remove it"),
        ("1e999", "x is not JSON (Number out of range)"),
        (str(LARGEST), "the number 9223372036854775808 is too large"),
        ("1" * 5000, "x is not JSON (Integer value out of range)"),
        ("[" * (DEPTH + 2) + "]" * (DEPTH + 2), "x is nested too deep"),
        ("[" * 100_000, "x is nested too deep"),
        (b'"\xff"', "x is not UTF-8"),
        (r'"\ud800"', "x is not JSON"),
    ],
)
def test_hostile_json_is_one_line(text, says):
    with pytest.raises(UserError) as raised:
        parse(text, "x")
    assert says in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 200


def test_a_corpus_may_have_what_python_reads():
    assert parse(r'{"a": NaN, "b": "\ud800", "c": 18446744073709551616}', "x", strict=False)["b"] == "\ud800"
    for text in ("[" * 100_000, "{", b'"\xff"'):
        with pytest.raises(UserError):
            parse(text, "x", strict=False)


class Inner(TypedDict):
    kind: Literal["a", "b"]


class Outer(TypedDict):
    count: Annotated[int, Meta(ge=1)]
    share: float | None
    more: NotRequired[dict[str, list[Inner]]]
    pair: NotRequired[tuple[list[str], bool]]


GOOD = {"count": 3, "share": None}


@pytest.mark.parametrize(
    "change", [{"share": 2, "unknown": []}, {"more": {"x": [{"kind": "a"}]}, "pair": [["a"], True]}]
)
def test_what_fits_is_given_back(change):
    assert check(GOOD | change, Outer, "x") == GOOD | change


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (GOOD | {"count": 0}, "f, line 1 has count=0, which must be `int` >= 1; remove that line"),
        (GOOD | {"share": "1"}, "has share='1', which must be `float | null`"),
        (GOOD | {"more": {"x": [{"kind": "c"}]}}, "}: Invalid enum value 'c'; remove that line"),
        (GOOD | {"more": {"x": [{}]}}, "has no 'more[...][0].kind'"),
        (GOOD | {"more": {"x": [1]}}, "has more[...][0]={'x': [1]}, which must be `object`"),
        (GOOD | {"pair": [["a"], 1]}, "has pair[1]=1, which must be `bool`"),
        (GOOD | {"share": ["x" * 1000] * 1000}, "..."),
        ({"count": 1}, "f, line 1 has no 'share'; remove"),
        ([1], "f, line 1 is [1], which must be `object`; remove"),
    ],
)
def test_what_does_not_fit_is_named_with_its_field(value, says):
    with pytest.raises(UserError) as raised:
        check(value, Outer, "f, line 1", "remove that line")
    assert says in str(raised.value) and len(str(raised.value)) < 400
