"""Positional encodings as Flax modules: names, initialisers and trainability of what `biases` computes.

A method of your own is a class (or `learned(SomeBias, parameter=initial value)`), named in a config by its import path.
"""

from bam_jax.encodings.absolute import Learned, Sinusoidal
from bam_jax.encodings.base import Dims, Encoding, Frozen, learned
from bam_jax.encodings.context import CABLE, CABLENW, KCABLE, ForgettingTransformer
from bam_jax.encodings.prior import BAM, FIRE, T5, ALiBi, KerpleLog, KerplePower, NoPE, T5Distance
from bam_jax.encodings.rotary import RoPE
from bam_jax.encodings.spec import Spec, spec
from bam_jax.encodings.ssmax import SSMax
from bam_jax.encodings.table import ENCODINGS

__all__ = [
    "BAM",
    "CABLE",
    "CABLENW",
    "ENCODINGS",
    "FIRE",
    "KCABLE",
    "T5",
    "ALiBi",
    "Dims",
    "Encoding",
    "ForgettingTransformer",
    "Frozen",
    "KerpleLog",
    "KerplePower",
    "Learned",
    "NoPE",
    "RoPE",
    "SSMax",
    "Sinusoidal",
    "Spec",
    "T5Distance",
    "learned",
    "spec",
]
