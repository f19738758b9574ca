"""Converts others' weights into runs, and runs into the authors' layouts. A new layout is a file here and a line of `LAYOUTS`.

Source: the public code of both papers; for the other layouts, that of Hugging Face's transformers.
"""

from bam_jax.convert.bam import BAM
from bam_jax.convert.base import Layout
from bam_jax.convert.bert import BERT
from bam_jax.convert.bloom import BLOOM
from bam_jax.convert.cable import CABLE
from bam_jax.convert.gemma3 import GEMMA3
from bam_jax.convert.gpt2 import GPT2
from bam_jax.convert.llama import LLAMA
from bam_jax.convert.mpt import MPT
from bam_jax.convert.own import OWN
from bam_jax.convert.smollm3 import SMOLLM3

__all__ = ["LAYOUTS", "Layout"]

LAYOUTS: dict[str, Layout] = {
    "bam": BAM,
    "bert": BERT,
    "bloom": BLOOM,
    "cable": CABLE,
    "gemma3": GEMMA3,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mpt": MPT,
    "smollm3": SMOLLM3,
    "transformers": OWN,
}
