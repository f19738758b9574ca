"""The sizes of a model and what goes with its attention."""

import dataclasses
from typing import ClassVar

from bam_jax.config.section import ConfigSection, younger

DTYPES = ("auto", "bfloat16", "float32")
FAMILIES = ("llama", "gpt2", "bert")


@dataclasses.dataclass(frozen=True)
class ModelConfig(ConfigSection):
    """The decoder's sizes."""

    path: ClassVar[str] = "config.model."

    family: str = "llama"
    """"llama": RMSNorm, SwiGLU, no linear biases, a head of its own; "gpt2": LayerNorm, GELU, biases, a tied head; "bert":
    as gpt2, but norms follow the sums (post-norm), GELU is exact, and the tied head transforms its input."""
    causal: bool = True
    """False: an encoder, in which every token sees the whole text."""
    layers: int = 2
    """Blocks of attention and MLP."""
    width: int = 64
    """Width of the rows between the layers; each head has width / heads."""
    heads: int = 4
    """Heads of a layer."""
    kv_heads: int = 0
    """Key and value heads (grouped-query attention); 0: as many as heads."""
    hidden: int = 128
    """Width inside the MLP."""
    vocab: int = 0
    """0: what the tokenizer needs (`Tokenizer.padded`)."""
    remat: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""
    scan: bool = True
    """Compile one layer and loop over it; false compiles each, faster for a few small layers on a CPU."""
    dtype: str = "auto"
    """Dtype of matrix products; auto: bfloat16 on accelerators, float32 on CPU."""
    qk_norm: bool = younger(False)
    """An RMS norm of every head's query and key, with scales that train, before they are rotated (Henry et al. 2020; as in
    Qwen 3)."""
    gate: bool = younger(False)
    """A sigmoid gate on attention's output, elementwise and of every head, from the layer's input (Qiu et al. 2025, arXiv
    2505.06708)."""
    sinks: bool = younger(False)
    """A logit of each head, trained, of one key more whose value is 0 (gpt-oss; Xiao et al. 2024)."""
    soft_cap: float = younger(0.0)
    """c of c tanh(score / c), below which scores of queries and keys stay (Gemma 2, where it is 50); 0: none."""

    def check(self) -> None:
        self.above(1, "layers", "width", "heads", "hidden")
        self.above(0, "kv_heads", "vocab", "soft_cap")
        self.below(2**16, "layers", "heads")  # of each, something is listed
        self.known("family", FAMILIES)
        self.known("dtype", DTYPES)
        self.require("heads", self.width % self.heads == 0, f"a divisor of the width {self.width}")
        divides = self.kv_heads == 0 or self.heads % self.kv_heads == 0
        self.require("kv_heads", divides, f"0 or a divisor of the heads, {self.heads}")
