"""Positional encodings as Flax modules: names, initialisation and trainability for the formulas in `biases`.

An encoding of your own is a class (or `learned(SomeBias, parameter=initial value)`), named in a config by its import path.
"""

from bam_jax.encodings.absolute import Learned, Sinusoidal
from bam_jax.encodings.base import Dims, Encoding, Frozen, learned
from bam_jax.encodings.context_aware import (
    CABLE,
    CABLENW,
    KCABLE,
    ContextualBAM,
    ForgettingTransformer,
    GRAPEAdditive,
    RunningSum,
)
from bam_jax.encodings.mixture import BAMMixture, Inkling
from bam_jax.encodings.path import GRAPEPathIntegral, PaTH
from bam_jax.encodings.prior import (
    BAM,
    FIRE,
    NAPE,
    T5,
    AdditiveDecay,
    ALiBi,
    Gaussian,
    KerpleLog,
    KerplePower,
    LearnedALiBi,
    NoPE,
    Sandwich,
    StudentT,
    T5Distance,
)
from bam_jax.encodings.registry import ENCODINGS
from bam_jax.encodings.rotary import NTK, Llama3, PartialRoPE, PositionInterpolation, RoPE, YaRN
from bam_jax.encodings.rowwise import DAPECABLE, CoPE, DAPEKerple, Shaw
from bam_jax.encodings.specification import Spec, spec
from bam_jax.encodings.ssmax import AdaptiveScale, EffectiveSSMax, LogTemperature, SSMax, sharpened
from bam_jax.encodings.turning import PoPE, SelectiveRoPE, XPos

__all__ = [
    "BAM",
    "CABLE",
    "CABLENW",
    "DAPECABLE",
    "ENCODINGS",
    "FIRE",
    "KCABLE",
    "NAPE",
    "NTK",
    "T5",
    "ALiBi",
    "AdaptiveScale",
    "AdditiveDecay",
    "BAMMixture",
    "CoPE",
    "ContextualBAM",
    "DAPEKerple",
    "Dims",
    "EffectiveSSMax",
    "Encoding",
    "ForgettingTransformer",
    "Frozen",
    "GRAPEAdditive",
    "GRAPEPathIntegral",
    "Gaussian",
    "Inkling",
    "KerpleLog",
    "KerplePower",
    "Learned",
    "LearnedALiBi",
    "Llama3",
    "LogTemperature",
    "NoPE",
    "PaTH",
    "PartialRoPE",
    "PoPE",
    "PositionInterpolation",
    "RoPE",
    "RunningSum",
    "SSMax",
    "Sandwich",
    "SelectiveRoPE",
    "Shaw",
    "Sinusoidal",
    "Spec",
    "StudentT",
    "T5Distance",
    "XPos",
    "YaRN",
    "learned",
    "sharpened",
    "spec",
]
