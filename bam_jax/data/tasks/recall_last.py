"""Recall with forgetting: keys are written again and again, and the last value of a key counts.

A model that finds a key but not its newest pair is right about once in three times. The task is ours, after those on which gates
that forget are shown: Lin et al. 2025 (FoX), CABLE section 3.
"""

from bam_jax.data.tasks.recall import Recall


class RecallLast(Recall):
    """Rows as those of `Recall` in which every key is written three times, in any order."""

    writes = 3
    name = "recall_last"
    cost = 8
