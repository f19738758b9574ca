"""The corpora that a source or a preset may name; a new one is a file of this folder and a line of `CORPORA`."""

from bam_jax.data.corpora.base import Corpus, Format
from bam_jax.data.corpora.fineweb import FINEWEB_1B, FINEWEB_10BT, FINEWEB_EDU_10BT
from bam_jax.data.corpora.ms_marco import MS_MARCO
from bam_jax.data.corpora.stdlib import STDLIB
from bam_jax.data.corpora.wikipedia import WIKIPEDIA
from bam_jax.data.corpora.wikitext import WIKITEXT_2, WIKITEXT_103

__all__ = ["CORPORA", "Corpus", "Format", "formats"]

CORPORA: dict[str, Corpus] = {
    "fineweb-10bt": FINEWEB_10BT,
    "fineweb-1b": FINEWEB_1B,
    "fineweb-edu-10bt": FINEWEB_EDU_10BT,
    "ms-marco": MS_MARCO,
    "stdlib": STDLIB,
    "wikipedia-en": WIKIPEDIA,
    "wikitext-2": WIKITEXT_2,
    "wikitext-103": WIKITEXT_103,
}


def formats() -> dict[str, Format]:
    """The formats of the corpora by their names: files of any name may be read as one of them."""
    return {corpus.format.name: corpus.format for corpus in CORPORA.values() if corpus.format is not None}
