"""Hugging Face's layout of BLOOM: a GPT-2 with ALiBi and a norm after the embeddings.

Queries, keys and values are one array, which has the query, key and value of one head after another.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import SAME, ArrayMapping, Arrays, Count, Layout, linear_entries, norm_entries
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError

FILE = "config.json"


EMBEDDING = "transformer.word_embeddings.weight"
OLD_NAMES = {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
"""Names in the published files, and the names that transformers uses for them."""


class _Described(TypedDict):
    model_type: Literal["bloom"]
    vocab_size: Count
    hidden_size: Count
    n_layer: Count
    n_head: Count
    seq_length: NotRequired[Count]
    layer_norm_epsilon: NotRequired[Annotated[float, Meta(gt=0, le=1)]]
    tie_word_embeddings: NotRequired[Literal[True]]


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer, heads = "transformer.h.{n}.", config.model.heads
    linear = lambda ours, theirs, **part: linear_entries(f"layers/{ours}", layer + theirs, **part)
    fused = lambda ours, part: linear(
        f"attention/{ours}", "self_attention.query_key_value", part=part, parts=3, groups=heads
    )
    return [
        ArrayMapping("embed/embedding", EMBEDDING, SAME),
        ArrayMapping("embed/embedding", "lm_head.weight", SAME),
        *norm_entries("embedding_norm", "transformer.word_embeddings_layernorm"),
        *norm_entries("layers/attention_norm", layer + "input_layernorm"),
        *fused("query", 0),
        *fused("key", 1),
        *fused("value", 2),
        *linear("attention/out", "self_attention.dense"),
        *norm_entries("layers/mlp_norm", layer + "post_attention_layernorm"),
        *linear("mlp/up", "mlp.dense_h_to_4h"),
        *linear("mlp/down", "mlp.dense_4h_to_h"),
        *norm_entries("norm", "transformer.ln_f"),
    ]


def _normalise(weights: Arrays, described: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """The weights by the names of a model with a head."""
    bare = "word_embeddings.weight" in weights  # as on the hub
    prefix = lambda name: f"transformer.{name}" if bare and not name.startswith("lm_head") else name
    return {prefix(name): array for name, array in weights.items()}, []


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    described = {OLD_NAMES.get(name, name): value for name, value in described.items()}
    typed_json.check(described, _Described, FILE, "give the folder of a BLOOM")
    if described.get("apply_residual_connection_post_layernorm"):
        raise UserError(f"{FILE} has apply_residual_connection_post_layernorm=True, which models here do not have")
    epsilon = described.get("layer_norm_epsilon", 1e-5)
    return {
        "encoding": "alibi",
        "model": {
            "family": "gpt2",
            "layers": described["n_layer"],
            "width": described["hidden_size"],
            "heads": described["n_head"],
            "hidden": 4 * described["hidden_size"],
            "vocab": described["vocab_size"],
            "norm_epsilon": 0.0 if np.isclose(epsilon, 1e-5) else epsilon,
            "embedding_norm": True,
        },
        "context": described.get("seq_length", 2048),
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model = config.model
    if model.hidden != 4 * model.width:
        raise UserError(
            f"config.model.hidden={model.hidden} has no place in the layout 'bloom', whose MLP has 4 times the width: "
            "export without --layout"
        )
    return {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "vocab_size": vocab,
        "hidden_size": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "seq_length": config.context,
        "layer_norm_epsilon": model.norm_epsilon or 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


BLOOM = Layout(
    entries=_entries,
    config=_config,
    holds="alibi, in a model with embedding_norm=True",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
    normalise=_normalise,
)
