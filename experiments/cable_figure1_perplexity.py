"""CABLE's Figure 1: perplexity against length, GPT-2 Medium on FineWeb-Edu; the upper half of its Table 1.

Paper: section 1. Its values are in the image; Table 1 has the numbers of the same models on the same text.
"""

import dataclasses

import cable_table1_perplexity

from bam_jax.experiments.experiment import Experiment


def get_experiment(scale: str) -> Experiment:
    """The rows and the part of Table 1 that the figure draws."""
    made = cable_table1_perplexity.get_experiment(scale)
    table = made.tables[0]
    rows = tuple(row for row in made.rows if row.label in {table.row(label) for label in table.values})
    title, part = (each.title.replace("Table 1", "Figure 1") for each in (made, table))
    return dataclasses.replace(made, title=title, rows=rows, tables=(dataclasses.replace(table, title=part),))
