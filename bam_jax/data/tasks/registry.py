"""The synthetic tasks by the names that a configuration and an evaluation have for them."""

from bam_jax.data.tasks.copying import Copy
from bam_jax.data.tasks.recall import Recall
from bam_jax.data.tasks.recall_last import RecallLast
from bam_jax.data.tasks.synthetic import SyntheticTask

KINDS: tuple[type[SyntheticTask], ...] = (
    Copy,
    Recall,
    RecallLast,
)

SYNTHETIC: dict[str, type[SyntheticTask]] = {kind.name: kind for kind in KINDS}
