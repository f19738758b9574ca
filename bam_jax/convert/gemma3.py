"""Hugging Face's layout of Gemma 3's text models: local layers with a window and global ones, with different rotations.

Scales of norms are stored minus 1. Scores are divided by sqrt(query_pre_attn_scalar) there and by sqrt(D) here; the ratio is
folded into the scales of the query norm.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from bam_jax.config import Config
from bam_jax.convert.base import LINEAR, SAME, ArrayMapping, Arrays, Count, Form, Layout, sizes
from bam_jax.convert.llama import EMBEDDING, FILE, HEAD, Positive, rotation, scaling
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown

OFFSET = Form(lambda x, config: 1 + x, lambda x, config: x - 1)
LOCAL, GLOBAL = "sliding_attention", "full_attention"
ABSENT = ("attention_bias", "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
"""Fields that must be false or null."""
ROWS = 64
"""The embedding is padded with rows of zeros to a multiple of this: the tokenizers of the smaller models have an image token for
which the models have no row."""


class _Described(TypedDict):
    model_type: Literal["gemma3_text"]
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    max_position_embeddings: Count
    rms_norm_eps: Positive
    sliding_window: Count
    query_pre_attn_scalar: NotRequired[Positive]
    hidden_activation: NotRequired[Literal["gelu_pytorch_tanh"]]
    tie_word_embeddings: NotRequired[Literal[True]]
    layer_types: NotRequired[list[Literal["sliding_attention", "full_attention"]] | None]
    sliding_window_pattern: NotRequired[Count]
    rope_theta: NotRequired[Positive]
    rope_local_base_freq: NotRequired[Positive]
    rope_scaling: NotRequired[dict[str, Any] | None]
    rope_parameters: NotRequired[dict[str, dict[str, Any]] | None]


def _check(described: Mapping[str, Any]) -> None:
    typed_json.check(described, _Described, FILE, "give the folder of a Gemma 3 of text alone")
    for name in ABSENT:
        if described.get(name):
            raise UserError(f"{FILE} has {name}={shown(described[name])}, which models here do not have")


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "model.layers.{n}."
    linear = lambda ours, theirs: ArrayMapping(f"layers/{ours}/kernel", f"{layer}{theirs}_proj.weight", LINEAR)
    norm = lambda ours, theirs: ArrayMapping(f"{ours}/scale", f"{theirs}.weight", OFFSET)
    return [
        ArrayMapping("embed/embedding", EMBEDDING, SAME),
        ArrayMapping("embed/embedding", HEAD, SAME),
        *(
            linear(f"attention/{ours}", f"self_attn.{theirs}")
            for ours, theirs in {"query": "q", "key": "k", "value": "v", "out": "o"}.items()
        ),
        *(linear(f"mlp/{part}", f"mlp.{part}") for part in ("gate", "up", "down")),
        norm("layers/attention/query_norm", layer + "self_attn.q_norm"),
        norm("layers/attention/key_norm", layer + "self_attn.k_norm"),
        norm("layers/attention_norm", layer + "input_layernorm"),
        norm("layers/attention_out_norm", layer + "post_attention_layernorm"),
        norm("layers/mlp_norm", layer + "pre_feedforward_layernorm"),
        norm("layers/mlp_out_norm", layer + "post_feedforward_layernorm"),
        norm("norm", "model.norm"),
    ]


def _normalise(weights: Arrays, described: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """The weights with the divisor of scores in the query norms, and a padded embedding."""
    _check(described)
    factor = math.sqrt(described["head_dim"] / described.get("query_pre_attn_scalar", 256))
    made = dict(weights)
    for name, array in weights.items():
        if name.endswith("self_attn.q_norm.weight"):
            made[name] = (1 + array) * factor - 1
        elif name in (EMBEDDING, HEAD):
            made[name] = np.pad(array, ((0, -len(array) % ROWS), (0, 0)))
    return made, []


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    _check(described)
    layers, heads, kv_heads = (
        described[name] for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    )
    period = described.get("sliding_window_pattern", 6)
    types = described.get("layer_types") or [LOCAL if n % period else GLOBAL for n in range(1, layers + 1)]
    if len(types) != layers:
        raise UserError(f"{FILE} has {len(types)} layer_types for {layers} layers; fetch it again")
    parameters = described.get("rope_parameters") or {}
    whole = {"rope_theta": described.get("rope_theta", 1e6), "rope_scaling": described.get("rope_scaling")}
    local = {"rope_theta": described.get("rope_local_base_freq", 10_000.0)}
    places = {
        GLOBAL: _place(rotation(whole | {"rope_parameters": parameters.get(GLOBAL)})),
        LOCAL: _place(rotation(local | {"rope_parameters": parameters.get(LOCAL)}), window=described["sliding_window"]),
    }
    repeats = next(n for n in range(1, layers + 1) if layers % n == 0 and types == types[:n] * (layers // n))
    return {
        "encoding": "/".join(places[kind] for kind in types[:repeats]),
        "model": {
            "family": "gemma",
            "layers": layers,
            "width": described["hidden_size"],
            "heads": heads,
            "head_dim": described["head_dim"],
            "kv_heads": 0 if kv_heads == heads else kv_heads,
            "hidden": described["intermediate_size"],
            "vocab": described["vocab_size"] + -described["vocab_size"] % ROWS,
            "norm_epsilon": described["rms_norm_eps"],
            "qk_norm": True,
        },
        "context": described["max_position_embeddings"],
    }


def _place(rotated: Mapping[str, Any], **more: int) -> str:
    """A place of the pattern of layers."""
    return f"{rotated['encoding']}:" + ",".join(f"{k}={v}" for k, v in (rotated["encoding_options"] | more).items())


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model, pattern = config.model, config.layer_pattern()
    kinds = [LOCAL if place["options"].get("window") else GLOBAL for place in pattern]
    rotations: dict[str, dict[str, Any]] = {}
    for kind, place in zip(kinds, pattern, strict=True):  # of each kind the last; all must be equal
        said = scaling(place["name"], place["options"], config.context)
        rotations[kind] = {"rope_type": "default", "rope_theta": said["rope_theta"], **said.get("rope_scaling", {})}
    windows = [place["options"]["window"] for place in pattern if place["options"].get("window")]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **sizes(config, vocab),
        "rms_norm_eps": model.norm_epsilon or 1e-6,
        "sliding_window": windows[-1] if windows else config.context,
        "query_pre_attn_scalar": model.head_width,
        "layer_types": kinds * (model.layers // len(kinds)),
        "rope_parameters": rotations,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }


GEMMA3 = Layout(
    entries=_entries,
    config=_config,
    holds="patterns of rope, rope_pi and rope_llama3, in a model of family gemma with qk_norm=True",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
    normalise=_normalise,
)
