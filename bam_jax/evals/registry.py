"""The evaluations that a command, an experiment or a record can name."""

from bam_jax.evals.base import Evaluation
from bam_jax.evals.contrastive import Contrastive
from bam_jax.evals.harness import Harness
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.retrieval import Retrieval
from bam_jax.evals.ruler import Ruler
from bam_jax.evals.synthetic import Synthetic

KINDS: tuple[type[Evaluation], ...] = (
    Contrastive,
    Harness,
    MaskedPerplexity,
    Passkey,
    Perplexity,
    Retrieval,
    Ruler,
    Synthetic,
)

EVALUATIONS: dict[str, type[Evaluation]] = {kind.name: kind for kind in KINDS}


def kind_of(name: str) -> type[Evaluation]:
    """The class of an evaluation's records; `Evaluation` itself for one that this version does not know."""
    return EVALUATIONS[name] if name in EVALUATIONS else Evaluation
