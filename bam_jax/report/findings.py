"""The finding of a table in a sentence: who is best where it looks furthest, and who comes next."""

from collections.abc import Sequence

from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Table
from bam_jax.experiments.statistics import Kind
from bam_jax.report.cell_words import cell_formatter, cell_value, describe_interval, end_formatter

KINDS = {Kind.ACCURACY: "finds most", Kind.PERPLEXITY: "has the lowest perplexity", Kind.LOSS: "has the lowest loss"}
"""Kinds of values of which one row is best, and what it then does."""


def describe_finding(table: Table, entries: Sequence[Entry]) -> str:
    """The best row and the next one in the last column of which two rows are measured; "" where there is none.

    The seeds that both were measured with stand beside the values: the words compare means, and give no verdict.

    Args:
        table: of an experiment.
        entries: its cells, row by row.
    """
    width = len(table.columns)
    for number in reversed(range(width)):
        column = [entry for entry in entries[number::width] if entry.kind in KINDS and cell_value(entry) is not None]
        if len(column) > 1:
            kind = column[0].kind
            best, second = sorted(column, key=lambda entry: cell_value(entry) or 0.0, reverse=kind is Kind.ACCURACY)[:2]
            where = f"At {column[0].column.label}"
            if _words(best) == _words(second):
                return f"{where} {best.row} and {second.row} are equal, {_words(best)}, and no other is better."
            return f"{where} {best.row} {KINDS[kind]}: {_words(best)}; next is {_words(second, second.row)}."
    return ""


def _words(entry: Entry, row: str = "") -> str:
    """A value with its interval, after the name of its row if one is given."""
    value = cell_value(entry)
    assert value is not None
    shown = cell_formatter(entry)(value)
    sure = describe_interval(entry.interval, len(entry.by_seed), end_formatter(shown))
    return f"{row} {shown} {sure}".strip()
