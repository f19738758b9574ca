"""Synthetic tasks: rows that can be solved and not guessed, each a pure function of its number."""

import numpy as np
import pytest

from bam_jax.data.tasks.synthetic import ASKED, HELD_OUT, SHARE, SYNTHETIC, TRAINING, Alphabet
from bam_jax.system.errors import UserError

CONTEXT, VOCABULARY = 64, 73
TASKS = {name: kind(VOCABULARY, CONTEXT) for name, kind in SYNTHETIC.items()}
LENGTHS = (CONTEXT, 5 * CONTEXT + 1)
each_task = pytest.mark.parametrize("name", TASKS)
each_length = pytest.mark.parametrize("length", LENGTHS)


def rows_of(name, length=CONTEXT, count=200, stream=TRAINING, seed=0):
    return np.stack([TASKS[name].row(seed, stream, length, number) for number in range(count)])


def score(name, rows, solve):
    """The share of answers that a function of a row up to an answer's place finds."""
    places = TASKS[name].answers + rows.shape[1]
    return np.mean([[solve(row[:place]) == row[place] for place in places] for row in rows])


@each_length
@each_task
def test_who_remembers_what_last_followed_is_always_right(name, length):
    rows = rows_of(name, length, 50)
    assert rows.shape == (50, length + 1) and rows.dtype == np.int32
    assert score(name, rows, lambda row: row[np.flatnonzero(row[:-1] == row[-1])[-1] + 1]) == 1


@each_task
def test_who_guesses_is_right_by_chance(name):
    task, rng = TASKS[name], np.random.default_rng(1)
    known = {"copy": range(64)}.get(name, task.alphabet.values)
    assert task.chance == 1 / len(known)
    rows = rows_of(name, count=500)
    answers = len(rows) * len(task.answers)
    found = score(name, rows, lambda row: rng.choice(known))
    assert abs(found - task.chance) < 4 * np.sqrt(task.chance * (1 - task.chance) / answers)
    # No answer is more likely than others, so that who knows the frequencies does no better.
    counts = np.bincount(rows[:, task.answers].ravel(), minlength=VOCABULARY)
    assert not np.delete(counts, known).any()
    assert abs(counts[known] - answers / len(known)).max() < 5 * np.sqrt(answers / len(known))


@each_length
@pytest.mark.parametrize(("name", "items", "writes"), [("recall", 4, 1), ("recall_last", 2, 3)])
def test_every_key_is_written_so_often_and_asked_for_once(name, items, writes, length):
    parts = Alphabet.of(VOCABULARY)
    for row in rows_of(name, length, 20):
        where = np.flatnonzero(np.isin(row, parts.keys))
        assert np.isin(row[where + 1], parts.values).all() and parts.marker not in row
        assert np.isin(np.delete(row, [*where, *(where + 1)]), parts.fillers).all()
        np.testing.assert_array_equal(where[-items:], np.arange(-2 * items, 0)[::2] + len(row))
        written, asked = row[where[:-items]], row[where[-items:]]
        assert len(set(asked)) == items == TASKS[name].items
        np.testing.assert_array_equal(np.sort(written), np.sort(np.repeat(asked, writes)))
        np.testing.assert_array_equal(TASKS[name].answers + len(row), where[-items:] + 1)


@each_length
def test_a_string_stands_twice_behind_its_marker(length):
    starts = set()
    for row in rows_of("copy", length, 20):
        first, second = np.flatnonzero(row == TASKS["copy"].alphabet.marker).tolist()
        string = row[second + 1 :]
        assert len(string) == 8 == len(set(string.tolist())) and string.max() < 64
        np.testing.assert_array_equal(row[first + 1 : first + 9], string)
        assert np.isin(np.delete(row, [*range(first, first + 9), *range(second, len(row))]), range(64, 72)).all()
        starts.add(first)
    assert len(starts) > 10


@each_task
def test_rows_are_functions_of_their_numbers_and_no_stream_has_another_ones(name):
    streams = [(stream, seed) for stream in (TRAINING, HELD_OUT, ASKED) for seed in (0, 1, 64)]
    every = [rows_of(name, count=150, stream=stream, seed=seed) for stream, seed in streams]
    assert len(np.unique(np.concatenate(every), axis=0)) == 9 * 150
    np.testing.assert_array_equal(every[-1][149], TASKS[name].row(64, ASKED, CONTEXT, 149))
    assert TASKS[name].row(0, TRAINING, CONTEXT, 2**40).shape == (CONTEXT + 1,)


@each_task
def test_sizes_that_will_do_and_no_others(name):
    task = SYNTHETIC[name]
    shortest = SHARE * task.cost
    symbols = len(task(VOCABULARY, shortest).symbols())
    longest = shortest * (symbols + 1) - 1
    for context, items in ((shortest, 1), (longest, symbols)):
        made = task(VOCABULARY, context)
        length = made.items * made.cost + 1
        made.check(length)
        assert made.items == items and made.row(0, TRAINING, length, 0).shape == (length + 1,)
        with pytest.raises(
            UserError, match=f"length {length - 1} is too short for the {items} items .* give {length} or"
        ):
            made.check(length - 1)
    with pytest.raises(UserError, match=f"={shortest - 1} is too short for the task '{name}'; give {shortest} or more"):
        task(VOCABULARY, shortest - 1)
    with pytest.raises(UserError, match=f"makes {symbols + 1} items .* symbols for {symbols}; give a context below"):
        task(VOCABULARY, longest + 1)
