"""The encoders of CABLE's section 5.5 as rows of experiments, at the paper's scale and at two that a CPU can do."""

from collections.abc import Mapping
from typing import Any

from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.experiments import small
from bam_jax.experiments.experiment import Row
from bam_jax.experiments.paper_columns import CABLE_SHRINK, tokens
from bam_jax.experiments.papers import CABLE_METHODS, FINEWEB_EDU_BERT, config_file

ENCODER_METHODS = ("CABLE", "ALiBi", "RoPE", "Learnable", "Sinusoidal")
"""The methods of Table 3 and Figures 6 and 7, names in `CABLE_METHODS`."""

ENCODER_CONTEXT = 512
"""Tokens of a training row, the paper's."""

_SIZES: Mapping[str, Any] = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.hidden": 256}
_BYTES: Mapping[str, Any] = {"data.tokenizer": "byte", "data.holdout": 0.1, "optimizer.accumulate": 1}
_RATE = 3e-3  # what the search has chosen for CABLE's decoders of every encoding
_STEPS = {"toy": 300, "small": 4000}
_ROWS = {"toy": 32, "small": 64}

SCALED_NOTE = (
    "The models read bytes, of which one stands for the mask. All encodings have one rate of learning, as in the paper."
)
"""The difference between the encoders of the toy and small scales and the decoders."""


def encoder(method: str, scale: str, *, label: str = "", overrides: Mapping[str, Any] = {}) -> Row:
    """A BERT that learns to predict masked tokens.

    Args:
        method: one of `ENCODER_METHODS`.
        scale: "toy", "small" or "paper".
        label: of the row; "": the method's name.
        overrides: further changes of the configuration, values by dotted names.
    """
    here = tokens(ENCODER_CONTEXT, scale, CABLE_SHRINK)
    every: dict[str, Any] = {"encoding": CABLE_METHODS[method], "context": here}
    if scale == "paper":
        every |= {"data.source": FINEWEB_EDU_BERT, "model.vocab": 30_522}
    else:
        every |= {**_SIZES, **_BYTES, "batch": _ROWS[scale], "steps": _STEPS[scale]}
        every |= {"optimizer.rate": _RATE, "optimizer.warmup": _STEPS[scale] // 20}
        every |= {"model.scan": False, "data.source": small.ENGLISH} if scale == "small" else {"data.source": "stdlib"}
    seeds = small.SEEDS if scale == "small" else (0,)
    return Row(label or method, config_file("bert_base.py"), {**every, **overrides}, seeds)


def masked_perplexity(length: int, scale: str) -> MaskedPerplexity:
    """Perplexity of masked tokens at a length of the paper.

    Args:
        length: tokens, the paper's.
        scale: "toy", "small" or "paper".
    """
    measured = {"toy": 2**15, "small": 2**18, "paper": 2**24}[scale]
    return MaskedPerplexity((tokens(length, scale, CABLE_SHRINK),), tokens=measured)
