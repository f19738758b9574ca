"""Hugging Face's layout of MPT, whose models have ALiBi and no biases."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import LINEAR, SAME, ArrayMapping, Arrays, Count, Layout
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown

FILE = "config.json"


KNOWN = {
    "attn_config.alibi": True,
    "attn_config.alibi_bias_max": 8,
    "attn_config.attn_type": "multihead_attention",
    "attn_config.attn_uses_sequence_id": False,
    "attn_config.clip_qkv": None,
    "attn_config.prefix_lm": False,
    "attn_config.qk_ln": False,
    "attn_config.softmax_scale": None,
    "logit_scale": None,
    "no_bias": True,
    "tie_word_embeddings": True,
}
"""Fields that have a single value in models here, which is also transformers' default."""


class _Described(TypedDict):
    model_type: Literal["mpt"]
    vocab_size: Count
    d_model: Count
    n_layers: Count
    n_heads: Count
    max_seq_len: Count
    expansion_ratio: NotRequired[Count]
    layer_norm_epsilon: NotRequired[Annotated[float, Meta(gt=0, le=1)]]
    norm_type: NotRequired[Literal["layernorm", "low_precision_layernorm"]]
    attn_config: NotRequired[dict[str, Any]]


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "transformer.blocks.{n}."
    linear = lambda ours, theirs, **part: ArrayMapping(
        f"layers/{ours}/kernel", f"{layer}{theirs}.weight", LINEAR, **part
    )
    return [
        ArrayMapping("embed/embedding", "transformer.wte.weight", SAME),
        ArrayMapping("embed/embedding", "lm_head.weight", SAME),
        ArrayMapping("layers/attention_norm/scale", layer + "norm_1.weight", SAME),
        *(
            linear(f"attention/{ours}", "attn.Wqkv", part=part, parts=3)
            for part, ours in enumerate(("query", "key", "value"))
        ),
        linear("attention/out", "attn.out_proj"),
        ArrayMapping("layers/mlp_norm/scale", layer + "norm_2.weight", SAME),
        linear("mlp/up", "ffn.up_proj"),
        linear("mlp/down", "ffn.down_proj"),
        ArrayMapping("norm/scale", "transformer.norm_f.weight", SAME),
    ]


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "give the folder of an MPT")
    for name, known in KNOWN.items():
        group, _, field = name.rpartition(".")
        found = (described.get(group, {}) if group else described).get(field, known)
        if found != known:
            raise UserError(f"{FILE} has {name}={shown(found)}; only {known!r} can be converted")
    epsilon = described.get("layer_norm_epsilon", 1e-5)
    return {
        "encoding": "alibi",
        "model": {
            "family": "mpt",
            "layers": described["n_layers"],
            "width": described["d_model"],
            "heads": described["n_heads"],
            "hidden": described.get("expansion_ratio", 4) * described["d_model"],
            "vocab": described["vocab_size"],
            "norm_epsilon": 0.0 if np.isclose(epsilon, 1e-5) else epsilon,
        },
        "context": described["max_seq_len"],
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model = config.model
    if model.hidden % model.width:
        raise UserError(
            f"config.model.hidden={model.hidden} has no place in the layout 'mpt', whose MLP has a multiple of the width "
            f"{model.width}: export without --layout"
        )
    attention = {name.rpartition(".")[2]: value for name, value in KNOWN.items() if "." in name}
    return {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "vocab_size": vocab,
        "d_model": model.width,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "max_seq_len": config.context,
        "expansion_ratio": model.hidden // model.width,
        "layer_norm_epsilon": model.norm_epsilon or 1e-5,
        "no_bias": True,
        "attn_config": attention,
        "torch_dtype": "float32",
    }


MPT = Layout(
    entries=_entries,
    config=_config,
    holds="alibi, in a model of family mpt",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
)
