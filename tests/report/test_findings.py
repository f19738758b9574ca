"""The sentence of a table: ties, inconclusive differences, keys that every model retrieves, and foreign lengths."""

import pytest

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Column, Table
from bam_jax.experiments.tables import Entry, Outcome, State
from bam_jax.report.paper_page import describe_finding

KEYS, TEXT = Passkey((4096,), depths=20), Perplexity((4096,))


def sentence(evaluation, values, *, comparable=True):
    """The finding of a table of one column, from the value of each row in each seed."""
    column = Column("32K", evaluation)
    outcomes = lambda row: tuple(Outcome(State.MEASURED, x, seed=n, n=20) for n, x in enumerate(values[row]))
    entries = [Entry(row, column, "", outcomes(row)) for row in values]
    return describe_finding(Table("", (column,), dict.fromkeys(values, ())), entries, comparable=comparable)


def test_a_sentence_names_the_best_all_that_come_next_and_the_keys_that_everybody_sees():
    beside = "One of 20 keys stands beside its question, which gives 0.05 to all."
    said = sentence(KEYS, {"a": [0.05], "b": [0.9], "c": [0.05], "d": [0.0]})
    assert said.startswith("At 32K b finds most: 0.90 (1 seed); next are a and c, 0.05 each.") and said.endswith(beside)
    said = sentence(KEYS, {"a": [0.5], "b": [0.9]}, comparable=False)
    assert said.startswith("At 4,096 tokens (the paper's 32K) b")
    assert sentence(KEYS, {"a": [0.5]}) == f"At 32K a has 0.50 (1 seed). {beside}"
    assert sentence(TEXT, {"a": []}) == ""
    alone = Entry("a", Column("32K", KEYS, depth=0.5), "", (Outcome(State.MEASURED, 0.5, seed=0, n=20),))
    assert describe_finding(Table("", (alone.column,), {"a": ()}), [alone]) == ""


@pytest.mark.parametrize(
    ("second", "told"),
    [([3.9, 4.0, 4.2], False), ([4.1, 4.2, 4.3], True), ([4.0], None)],
)
def test_a_difference_that_seeds_do_not_show_is_inconclusive(second, told):
    said = sentence(TEXT, {"a": second, "b": [3.9, 4.0, 4.1]})
    assert ("is inconclusive" in said) == (told is False) and ("one seed shows" in said) == (told is None)
