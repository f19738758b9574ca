"""CABLE's Figure 5: perplexity of CABLE and K-CABLE, GPT-2 Tiny trained at 1024 tokens on WikiText-103.

Paper: section 5.6; K-CABLE's values are only in the image, CABLE's also in Table 1.
"""

import cable_table1_perplexity
from paper_rows import WIKITEXT, cable, paper

from bam_jax.experiments.experiment import Experiment, Table


def get_experiment(scale: str) -> Experiment:
    """A row for each of the two methods, at the lengths of Table 1."""
    tiny = cable_table1_perplexity.get_experiment(scale).tables[1]
    values = {"CABLE": tiny.values["CABLE"], "K-CABLE": ()}
    table = Table("Figure 5: perplexity", tiny.columns, values)
    rows = [cable(method, scale, label=method, size="tiny", corpus=WIKITEXT) for method in values]
    return paper("CABLE, Figure 5: K-CABLE", scale, rows, [table])
