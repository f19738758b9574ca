"""Hugging Face's layout of Llama and of models like it: SmolLM2, TinyLlama, Llama 2, Qwen 2 and 3."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import LINEAR, SAME, ArrayMapping, Arrays, Count, Layout, sizes
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown

FILE = "config.json"


Positive = Annotated[float, Meta(gt=0, le=1e12)]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

SCALINGS: dict[str, tuple[str, dict[str, str]]] = {
    "default": ("rope", {}),
    "linear": ("rope_pi", {"factor": "factor"}),
    "llama3": (
        "rope_llama3",
        {
            "factor": "factor",
            "low_freq_factor": "slow",
            "high_freq_factor": "fast",
            "original_max_position_embeddings": "context",
        },
    ),
}
"""The encoding for each type of rope_scaling, and its options by their names in rope_scaling.

Not supported are "dynamic", whose base depends on the length of each text, and "yarn", whose ramp runs over dimensions.
"""


class _Described(TypedDict):
    model_type: Literal["llama", "qwen2", "qwen3"]
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count
    rms_norm_eps: Positive
    num_key_value_heads: NotRequired[Count | None]
    head_dim: NotRequired[Count | None]
    rope_theta: NotRequired[Positive]
    rope_scaling: NotRequired[dict[str, Any] | None]
    rope_parameters: NotRequired[dict[str, Any] | None]
    tie_word_embeddings: NotRequired[bool]
    hidden_act: NotRequired[Literal["silu"]]
    attention_bias: NotRequired[bool]
    mlp_bias: NotRequired[bool]
    use_sliding_window: NotRequired[bool]


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "model.layers.{n}."
    linear = lambda ours, theirs: ArrayMapping(f"layers/{ours}/kernel", f"{layer}{theirs}.weight", LINEAR)
    return [
        ArrayMapping("embed/embedding", EMBEDDING, SAME),
        ArrayMapping("layers/attention_norm/scale", layer + "input_layernorm.weight", SAME),
        *(
            linear(f"attention/{ours}", f"self_attn.{theirs}_proj")
            for ours, theirs in {"query": "q", "key": "k", "value": "v", "out": "o"}.items()
        ),
        *(
            ArrayMapping(f"layers/attention/{ours}/bias", f"{layer}self_attn.{ours[0]}_proj.bias", SAME)
            for ours in ("query", "key", "value")
            if config.model.qkv_bias
        ),
        *(
            ArrayMapping(f"layers/attention/{ours}_norm/scale", f"{layer}self_attn.{ours[0]}_norm.weight", SAME)
            for ours in ("query", "key")
            if config.model.qk_norm
        ),
        ArrayMapping("layers/mlp_norm/scale", layer + "post_attention_layernorm.weight", SAME),
        *(linear(f"mlp/{part}", f"mlp.{part}_proj") for part in ("gate", "up", "down")),
        ArrayMapping("norm/scale", "model.norm.weight", SAME),
        ArrayMapping("embed/embedding", HEAD, SAME) if config.model.tied else ArrayMapping("head/kernel", HEAD, LINEAR),
    ]


def _normalise(weights: Arrays, described: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """The weights without the rates of the rotation, which old files contain as arrays."""
    return {name: array for name, array in weights.items() if not name.endswith("rotary_emb.inv_freq")}, []


def rotation(described: Mapping[str, Any]) -> dict[str, Any]:
    """Encoding and options of a config.json, from `rope_parameters`, or from the older `rope_theta` and `rope_scaling`."""
    said = {"rope_theta": described.get("rope_theta", 10_000.0)} | (described.get("rope_scaling") or {})
    said |= described.get("rope_parameters") or {}
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in SCALINGS:
        raise UserError(f"{FILE} has rope_scaling of type {shown(kind)}; {', '.join(SCALINGS)} are read")
    encoding, options = SCALINGS[kind]
    names = {"rope_theta": "base", **options}
    for name in said.keys() - {"rope_type", "type"} - names.keys():
        raise UserError(f"{FILE} has {shown(name)} in rope_scaling of type {kind}; {', '.join(names)} are read")
    wanted = TypedDict("Rotation", {name: Count if ours == "context" else Positive for name, ours in names.items()})
    typed_json.check(said, wanted, f"{FILE}'s rope_scaling", "fetch it again")
    return {"encoding": encoding, "encoding_options": {ours: said[name] for name, ours in names.items()}}


def scaling(encoding: str, options: Mapping[str, Any], context: int) -> dict[str, Any]:
    """The inverse of `rotation`, by the older names. It drops what they cannot express; the caller detects that."""
    values = {"base": 10_000.0, "factor": 1.0, "slow": 1.0, "fast": 4.0, "context": context, **options}
    made: dict[str, Any] = {"rope_theta": values["base"]}
    for kind, (name, fields) in SCALINGS.items():
        if name == encoding and fields:
            made["rope_scaling"] = {"rope_type": kind} | {field: values[ours] for field, ours in fields.items()}
    return made


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "give the folder of a Llama")
    kind, heads, width = described["model_type"], described["num_attention_heads"], described["hidden_size"]
    head_dim = described.get("head_dim") or width // heads
    kv_heads = described.get("num_key_value_heads") or heads
    others = {
        "attention_bias": described.get("attention_bias", False),
        "mlp_bias": described.get("mlp_bias", False),
        "use_sliding_window": described.get("use_sliding_window", False),
    }
    for name, other in others.items():
        if other:
            raise UserError(f"{FILE} has {name}={described[name]!r}, which models here do not have")
    epsilon, qk_norm = described["rms_norm_eps"], kind == "qwen3"
    return {
        **rotation(described),
        "model": {
            "family": "llama",
            "layers": described["num_hidden_layers"],
            "width": width,
            "heads": heads,
            "head_dim": 0 if head_dim * heads == width else head_dim,
            "kv_heads": 0 if kv_heads == heads else kv_heads,
            "hidden": described["intermediate_size"],
            "vocab": described["vocab_size"],
            "norm_epsilon": 0.0 if np.isclose(epsilon, 1e-5) and not qk_norm else epsilon,
            "tied": described.get("tie_word_embeddings", False),
            "qkv_bias": kind == "qwen2",
            "qk_norm": qk_norm,
        },
        "context": described["max_position_embeddings"],
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model = config.model
    name = "Qwen3" if model.qk_norm else "Qwen2" if model.qkv_bias else "Llama"
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": name.lower(),
        **sizes(config, vocab),
        "rms_norm_eps": model.norm_epsilon or 1e-5,
        **scaling(config.encoding, config.encoding_options, config.context),
        "tie_word_embeddings": model.tied,
        "hidden_act": "silu",
    }


LLAMA = Layout(
    entries=_entries,
    config=_config,
    holds="rope, rope_pi and rope_llama3 without a window",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
    normalise=_normalise,
)
