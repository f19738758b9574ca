"""The finding of a table in a sentence: who is best where it looks furthest, and who comes next."""

import math
from collections.abc import Sequence

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import statistics
from bam_jax.experiments.entries import Entry
from bam_jax.experiments.experiment import Column, Table
from bam_jax.experiments.statistics import Kind
from bam_jax.report import beside_question
from bam_jax.report.cell_words import (
    ONE_SEED,
    cell_formatter,
    cell_value,
    describe_interval,
    describe_next,
    end_formatter,
    with_interval,
)
from bam_jax.report.tables_page import own_tokens

KINDS = {Kind.ACCURACY: "finds most", Kind.PERPLEXITY: "has the lowest perplexity", Kind.LOSS: "has the lowest loss"}
"""Kinds of values of which one row is best, and what it then does."""


def describe_finding(table: Table, entries: Sequence[Entry], *, comparable: bool = True) -> str:
    """The best row and those that come next in the last column of which two rows are measured; "" where there is none.

    Of a table of one row it is the value in the last column that is measured, but for that of one depth alone.

    The seeds that both were measured with stand beside the values, and whether the seeds that both have tell them apart. That
    compares two rows, chosen by what was found, and is no verdict.
    """
    width = len(table.columns)
    for number in reversed(range(width)):
        column = [entry for entry in entries[number::width] if entry.kind in KINDS and cell_value(entry) is not None]
        if len(column) > 1:
            kind = column[0].kind
            best, second, *others = sorted(
                column, key=lambda entry: cell_value(entry) or 0.0, reverse=kind is Kind.ACCURACY
            )
            where = f"At {_place(column[0].column, comparable=comparable)}"
            if _words(best) == _words(second):
                equal = f"{where} {best.row} and {second.row} are equal, {_words(best)}, and no other is better."
                return f"{equal}{_floor(second)}"
            alike = [second.row, *(entry.row for entry in others if _shown(entry) == _shown(second))]
            then = describe_next(alike, _shown(second), _words(second, second.row), _doubt(best, second))
            return f"{where} {best.row} {KINDS[kind]}: {_words(best)}; {then}.{_floor(second)}"
    measured = [entry for entry in entries if entry.kind in KINDS and cell_value(entry) is not None]
    if len(table.values) > 1 or not measured or measured[-1].column.depth is not None:
        return ""
    where = _place(measured[-1].column, comparable=comparable)
    return f"At {where} {measured[-1].row} has {_words(measured[-1])}.{_floor(measured[-1])}"


def _place(column: Column, *, comparable: bool) -> str:
    """The column's name; where that is a length of the paper's and not of these models, theirs and then the paper's."""
    tokens = None if comparable else own_tokens(column)
    return column.label if tokens is None else f"{tokens:,} tokens (the paper's {column.label})"


def _doubt(best: Entry, second: Entry) -> str:
    """The words for two rows whose common seeds do not tell them apart; "" where they do."""
    shared = sorted(best.by_seed.keys() & second.by_seed.keys())
    if len(shared) < 2:
        return ONE_SEED
    of = math.log if best.kind is Kind.PERPLEXITY else float
    ends = statistics.estimate([of(best.by_seed[seed]) - of(second.by_seed[seed]) for seed in shared]).interval()
    return ", and the difference is inconclusive" if ends.low <= 0 <= ends.high else ""


def _floor(entry: Entry) -> str:
    """The share of keys that stand beside their question, which every model sees; "" of other values."""
    evaluation = entry.column.evaluation
    if not isinstance(evaluation, Passkey):
        return ""
    share = beside_question.share(evaluation.depths)
    beside = f" One of {evaluation.depths} keys stands beside its question, which gives {share:.2f} to all."
    return beside if share else ""


def _words(entry: Entry, row: str = "") -> str:
    """A value with its interval, after the name of its row if one is given."""
    shown = _shown(entry)
    sure = describe_interval(entry.interval, len(entry.by_seed), end_formatter(shown))
    return f"{row} {with_interval(shown, sure)}".strip()


def _shown(entry: Entry) -> str:
    value = cell_value(entry)
    assert value is not None
    return cell_formatter(entry)(value)
