"""Hugging Face's layout of GPT-2, whose kernels are [inputs, outputs] and whose queries, keys and values are one array."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import SAME, ArrayMapping, Arrays, Count, Layout, linear_entries, norm_entries
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError

FILE = "config.json"


EMBEDDING = "transformer.wte.weight"
_BUFFERS = (".attn.bias", ".attn.masked_bias")
"""Suffixes of old files' causal masks."""


class _Described(TypedDict):
    model_type: Literal["gpt2"]
    vocab_size: Count
    n_embd: Count
    n_layer: Count
    n_head: Count
    n_positions: Count
    n_inner: NotRequired[Count | None]
    layer_norm_epsilon: NotRequired[Annotated[float, Meta(gt=0, le=1)]]
    activation_function: NotRequired[Literal["gelu_new", "gelu_pytorch_tanh"]]
    scale_attn_weights: NotRequired[Literal[True]]
    scale_attn_by_inverse_layer_idx: NotRequired[bool]
    tie_word_embeddings: NotRequired[Literal[True]]


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "transformer.h.{n}."
    linear = lambda ours, theirs, **part: linear_entries(f"layers/{ours}", layer + theirs, SAME, **part)
    whole = []
    for part, ours in enumerate(("query", "key", "value")):
        kernel, bias = linear(f"attention/{ours}", "attn.c_attn", part=part, parts=3)
        whole += [ArrayMapping(kernel.ours, kernel.theirs, SAME, part=part, parts=3, axis=1), bias]
    return [
        ArrayMapping("embed/embedding", EMBEDDING, SAME),
        ArrayMapping("embed/embedding", "lm_head.weight", SAME),
        ArrayMapping("position/embedding", "transformer.wpe.weight", SAME),
        *norm_entries("layers/attention_norm", layer + "ln_1"),
        *whole,
        *linear("attention/out", "attn.c_proj"),
        *norm_entries("layers/mlp_norm", layer + "ln_2"),
        *linear("mlp/up", "mlp.c_fc"),
        *linear("mlp/down", "mlp.c_proj"),
        *norm_entries("norm", "transformer.ln_f"),
    ]


def _normalise(weights: Arrays, described: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """The weights without masks, by the names of a model with a head."""
    kept = {name: array for name, array in weights.items() if not name.endswith(_BUFFERS)}
    bare = "wte.weight" in kept  # as on the hub
    return {
        f"transformer.{name}" if bare and not name.startswith("lm_head") else name: x for name, x in kept.items()
    }, []


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "give the folder of a GPT-2; of CABLE's, add --layout=cable")
    if described.get("scale_attn_by_inverse_layer_idx"):
        raise UserError(f"{FILE} has scale_attn_by_inverse_layer_idx=True, which models here do not have")
    epsilon = described.get("layer_norm_epsilon", 1e-5)
    return {
        "encoding": "learned",
        "model": {
            "family": "gpt2",
            "layers": described["n_layer"],
            "width": described["n_embd"],
            "heads": described["n_head"],
            "hidden": described.get("n_inner") or 4 * described["n_embd"],
            "vocab": described["vocab_size"],
            "norm_epsilon": 0.0 if np.isclose(epsilon, 1e-5) else epsilon,
        },
        "context": described["n_positions"],
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model = config.model
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab,
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_positions": config.encoding_options.get("length", config.context),
        "n_inner": model.hidden,
        "layer_norm_epsilon": model.norm_epsilon or 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


GPT2 = Layout(
    entries=_entries,
    config=_config,
    holds="learned",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
    normalise=_normalise,
)
