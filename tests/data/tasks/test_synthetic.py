"""Synthetic tasks: rows that can be solved and not guessed, each a pure function of its number."""

import re

import numpy as np
import pytest

from bam_jax.data.tasks.synthetic import ASKED, HELD_OUT, SHARE, SYNTHETIC, TRAINING, Alphabet
from bam_jax.system.errors import UserError

CONTEXT, VOCABULARY = 64, 73
TASKS = {name: kind(VOCABULARY, CONTEXT) for name, kind in SYNTHETIC.items()}
LENGTHS = (CONTEXT, 5 * CONTEXT + 1)


def rows_of(name, length=CONTEXT, count=200, stream=TRAINING, seed=0):
    return np.stack([TASKS[name].row(seed, stream, length, number) for number in range(count)])


def following(row, place, which):
    """The token after the `which`-th earlier one that is equal to the token before `place`."""
    return row[np.flatnonzero(row[: place - 1] == row[place - 1])[which] + 1]


def score(name, rows, solve):
    """The share of answers that a function of a row and an answer's place finds; it must not look further."""
    places = TASKS[name].answers + rows.shape[1]
    return np.mean([[solve(row[:place], place) == row[place] for place in places] for row in rows])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", TASKS)
def test_who_remembers_what_last_followed_is_always_right(name, length):
    rows = rows_of(name, length, 50)
    assert rows.shape == (50, length + 1) and rows.dtype == np.int32
    assert score(name, rows, lambda row, place: following(row, place, -1)) == 1


@pytest.mark.parametrize("name", TASKS)
def test_who_guesses_is_right_by_chance(name):
    task, rng = TASKS[name], np.random.default_rng(1)
    known = {"copy": range(64)}.get(name, task.alphabet.values)
    assert task.chance == 1 / len(known)
    rows = rows_of(name, count=500)
    found = score(name, rows, lambda row, place: rng.choice(known))
    answers = len(rows) * len(task.answers)
    assert abs(found - task.chance) < 4 * np.sqrt(task.chance * (1 - task.chance) / answers)
    # No answer is more likely than others, so that who knows the frequencies does no better.
    counts = np.bincount(rows[:, task.answers].ravel(), minlength=VOCABULARY)
    assert not np.delete(counts, known).any()
    assert abs(counts[known] - answers / len(known)).max() < 5 * np.sqrt(answers / len(known))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("name", "items", "writes"), [("recall", 4, 1), ("recall_last", 2, 3)])
def test_every_key_is_written_so_often_and_asked_for_once(name, items, writes, length):
    assert TASKS[name].items == items
    keys, values, fillers, marker = (Alphabet.of(VOCABULARY).__dict__[part] for part in Alphabet.__dataclass_fields__)
    for row in rows_of(name, length, 20):
        where = np.flatnonzero(np.isin(row, keys))
        assert np.isin(row[where + 1], values).all() and marker not in row
        assert np.isin(np.delete(row, [*where, *(where + 1)]), fillers).all()
        np.testing.assert_array_equal(where[-items:], np.arange(-2 * items, 0)[::2] + len(row))
        written, asked = row[where[:-items]], row[where[-items:]]
        assert len(set(asked)) == items
        np.testing.assert_array_equal(np.sort(written), np.sort(np.repeat(asked, writes)))
        np.testing.assert_array_equal(TASKS[name].answers + len(row), where[-items:] + 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_string_stands_twice_behind_its_marker(length):
    marker = TASKS["copy"].alphabet.marker
    starts = set()
    for row in rows_of("copy", length, 20):
        first, second = np.flatnonzero(row == marker).tolist()
        string = row[second + 1 :]
        assert len(string) == 8 == len(set(string.tolist())) and string.max() < 64
        np.testing.assert_array_equal(row[first + 1 : first + 9], string)
        assert np.isin(np.delete(row, [*range(first, first + 9), *range(second, len(row))]), range(64, 72)).all()
        starts.add(first)
    assert len(starts) > 10


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_functions_of_their_numbers_and_no_stream_has_another_ones(name):
    streams = [(stream, seed) for stream in (TRAINING, HELD_OUT, ASKED) for seed in (0, 1, 64)]
    every = [rows_of(name, count=150, stream=stream, seed=seed) for stream, seed in streams]
    assert len(np.unique(np.concatenate(every), axis=0)) == 9 * 150
    np.testing.assert_array_equal(every[-1][149], TASKS[name].row(64, ASKED, CONTEXT, 149))
    assert TASKS[name].row(0, TRAINING, CONTEXT, 2**40).shape == (CONTEXT + 1,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: SYNTHETIC["recall"](73, 15), "config.context=15 is too short for the task 'recall'; give 16 or more"),
        (lambda: SYNTHETIC["recall"](73, 528), "makes 33 items of the task 'recall', and 73 ids have symbols for 32"),
        (lambda: TASKS["recall"].check(16), "length 16 is too short for the 4 items of a row of the task 'recall'"),
    ],
)
def test_bad_sizes_are_one_line(call, says):
    with pytest.raises(UserError, match=re.escape(says)):
        call()


@pytest.mark.parametrize("name", TASKS)
def test_the_sizes_that_the_messages_name_will_do(name):
    task = SYNTHETIC[name]
    least = task(73, SHARE * task.cost)
    most = task(73, SHARE * task.cost * (len(least.symbols()) + 1) - 1)
    assert least.items == 1 and most.items == len(least.symbols())
    for made in (least, most, TASKS[name]):
        length = made.items * made.cost + 1
        made.check(length)
        assert made.row(0, TRAINING, length, 0).shape == (length + 1,)
