"""Where the text of the papers' corpora comes from, how a record becomes text, and how it is divided."""

from bam_jax.data.corpora.corpus import Corpus, Format
from bam_jax.data.corpora.presets import CORPORA, formats

__all__ = ["CORPORA", "Corpus", "Format", "formats"]
