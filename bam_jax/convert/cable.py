"""CABLE's layout, the public code's GPT-2. It does not scale q.k, so our queries are multiplied by sqrt(D)."""

from collections.abc import Mapping
from typing import Any

from bam_jax.config import Config
from bam_jax.convert import base
from bam_jax.convert.base import SAME, ArrayMapping, Arrays, Layout, linear_entries, norm_entries
from bam_jax.system.errors import UserError


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "transformer.h.{n}."
    attention = layer + "attn."
    return [
        ArrayMapping("embed/embedding", "transformer.wte.weight", SAME),
        ArrayMapping("embed/embedding", "lm_head.weight", SAME),
        *norm_entries("layers/attention_norm", layer + "ln_1"),
        *linear_entries("layers/attention/query", attention + "c_attn", base.QUERY, base.QUERY_BIAS, part=0, parts=3),
        *linear_entries("layers/attention/key", attention + "c_attn", part=1, parts=3),
        *linear_entries("layers/attention/value", attention + "c_attn", part=2, parts=3),
        *linear_entries("layers/attention/out", attention + "c_proj"),
        *linear_entries(base.ENCODING + "step_size", attention + "h_attn"),
        *norm_entries("layers/mlp_norm", layer + "ln_2"),
        *linear_entries("layers/mlp/up", layer + "mlp.c_fc"),
        *linear_entries("layers/mlp/down", layer + "mlp.c_proj"),
        *norm_entries("norm", "transformer.ln_f"),
    ]


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, from the shapes: the weights come without a description."""
    try:
        vocab, width = weights["transformer.wte.weight"].shape
        heads = len(weights["transformer.h.0.attn.h_attn.bias"])
        hidden = len(weights["transformer.h.0.mlp.c_fc.bias"])
    except (KeyError, ValueError) as error:  # no array of that name, or one with other axes
        raise UserError(f"the weights have no {error}; CABLE's are a GPT-2 with attn.h_attn in each layer") from error
    layers = sum(name.endswith(".attn.h_attn.bias") for name in weights)
    size = {"layers": layers, "width": width, "heads": heads, "hidden": hidden, "vocab": vocab}
    return {
        "encoding": "cable_nw",
        "encoding_options": {"gate": "softplus", "step_bias": True},
        "model": {"family": "gpt2", **size},
        "context": 1024,
    }


CABLE = Layout(
    entries=_entries,
    config=_config,
    holds="cable_nw with gate=softplus and step_bias=True",
    tokenizer="gpt2",
    document_mask=False,
)
