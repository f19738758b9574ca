"""Records that cover the same samples count once, however they came into the file."""

import itertools
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from bam_jax.evals import records
from bam_jax.experiments.benchmark import read_speeds
from bam_jax.experiments.experiment_json import DESCRIPTION, read_description
from bam_jax.system.errors import UserError

SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=7)


def spans(cells):
    return [(cell["first"], cell["first"] + cell["n"]) for cell in cells]


def text(n, *, first=None, seconds=0.5, **others):
    cell = {"eval": "perplexity", "length": 64, "value": 3.0, "n": n, "step": 1, "overrides": {}, "unit": "perplexity"}
    cell |= {"window": 64, "windows": [1.0], "seconds": seconds} | others
    return cell if first is None else cell | {"first": first}


def written(run, lines):
    (run / records.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return records.read_results(run)[0]


@hypothesis.given(SPANS, st.none() | st.integers(1, 5))
def test_each_sample_is_covered_once_by_what_fits_best(given, wanted):
    cells = [text(n, first=first) for first, n in given]
    found = spans(records.cover(cells, wanted))
    assert all(before[1] == after[0] for before, after in itertools.pairwise([(0, 0), *found]))
    ends, longer = {0}, True
    while longer:  # all that chains of records reach
        reached = ends | {first + n for first, n in given if first in ends}
        ends, longer = reached, reached != ends
    enough = [end for end in ends if wanted is not None and end >= wanted]
    assert (found[-1][1] if found else 0) == (min(enough) if enough else max(ends))


@hypothesis.given(SPANS, st.randoms())
def test_records_twice_and_in_any_order_are_the_records_once(given, random):
    cells = [text(n, first=first, seconds=float(number)) for number, (first, n) in enumerate(given)]
    mixed = [*cells, *cells]
    random.shuffle(mixed)
    assert spans(records.without_repeats(mixed)) == spans(records.without_repeats(cells))


def test_records_that_do_not_say_their_samples_are_in_the_order_of_the_file(tmp_path):
    first, same, more = text(2, seconds=1.0), text(2, seconds=1.0), text(2, seconds=2.0)
    assert spans(written(tmp_path, [first, text(3, window=64, length=32), same, more])) == [(0, 2), (0, 3), (2, 4)]
    assert spans(written(tmp_path, [first, text(5, first=2), text(1)])) == [(0, 2), (2, 7), (7, 8)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"value": 0.0}, "line 1 has value=0.0, which must be `float` > 0.0; remove that line"),
        ({"windows": [1.0, 1.0]}, "line 1 has 2 windows, not 1; remove that line"),
        ({"unit": "a\nb"}, r"has unit='a\nb', which must be `str` matching"),
        ({"overrides": {"a": "b\n"}}, r"has overrides.a='b\n', which must be `str` matching"),
        ({"eval": []}, "has eval=[], which must be `str`"),
        ({"eval": "passkey", "value": 1}, "has no 'depth'"),
    ],
)
def test_a_record_that_says_something_impossible_is_named(tmp_path, change, says):
    with pytest.raises(UserError) as raised:
        written(tmp_path, [text(1) | change])
    assert says in str(raised.value)


def test_quartiles_come_in_pairs(tmp_path):
    machine = {"device": "cpu", "processor": "abacus", "cores": 2, "versions": {"jax": "0.1"}}
    speed = {"measure": "inference", "length": 64, "unit": "s", "contender": "rope", "config": "d", "machine": machine}
    (tmp_path / "x").write_text(json.dumps(speed | {"value": 1.0, "ratio": 1.0, "n": 9, "low": 0.5}) + "\n")
    with pytest.raises(UserError, match="line 1 has one of 'low' and 'high' without the other"):
        read_speeds(tmp_path / "x")


def test_a_described_run_stays_in_its_folder(tmp_path):
    entry = {"name": "../x", "label": "l", "seed": 0, "labels": [], "commands": ["c"]}
    made = {"title": "t", "command": "c", "folder": "f", "claims": [], "notes": [], "runs": [entry]}
    (tmp_path / DESCRIPTION).write_text(json.dumps(made))
    with pytest.raises(UserError, match=r"has runs\[0\].name='../x', which must be `str` matching .*; run the sweep"):
        read_description(tmp_path)
