"""CABLE's layout: the public code's GPT-2. It leaves q.k unscaled, so that the queries of ours are multiplied by sqrt(D)."""

from collections.abc import Mapping
from typing import Any

from bam_jax.config import Config
from bam_jax.convert.base import ENCODING, LINEAR, QUERY, QUERY_BIAS, SAME, ArrayMapping, Arrays, Form, Layout
from bam_jax.system.errors import UserError


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "transformer.h.{n}."

    def linear(ours: str, theirs: str, form: Form = LINEAR, bias: Form = SAME, **part: int) -> list[ArrayMapping]:
        return [
            ArrayMapping(f"{ours}/kernel", f"{theirs}.weight", form, **part),
            ArrayMapping(f"{ours}/bias", f"{theirs}.bias", bias, **part),
        ]

    def norm(ours: str, theirs: str) -> list[ArrayMapping]:
        return [
            ArrayMapping(f"{ours}/scale", f"{theirs}.weight", SAME),
            ArrayMapping(f"{ours}/bias", f"{theirs}.bias", SAME),
        ]

    attention = layer + "attn."
    return [
        ArrayMapping("embed/embedding", "transformer.wte.weight", SAME),
        ArrayMapping("embed/embedding", "lm_head.weight", SAME),
        *norm("layers/attention_norm", layer + "ln_1"),
        *linear("layers/attention/query", attention + "c_attn", QUERY, QUERY_BIAS, part=0, parts=3),
        *linear("layers/attention/key", attention + "c_attn", part=1, parts=3),
        *linear("layers/attention/value", attention + "c_attn", part=2, parts=3),
        *linear("layers/attention/out", attention + "c_proj"),
        *linear(ENCODING + "step_size", attention + "h_attn"),
        *norm("layers/mlp_norm", layer + "ln_2"),
        *linear("layers/mlp/up", layer + "mlp.c_fc"),
        *linear("layers/mlp/down", layer + "mlp.c_proj"),
        *norm("norm", "transformer.ln_f"),
    ]


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, from the shapes of their weights, which come without a description."""
    try:
        vocab, width = weights["transformer.wte.weight"].shape
        heads = len(weights["transformer.h.0.attn.h_attn.bias"])
        hidden = len(weights["transformer.h.0.mlp.c_fc.bias"])
    except (KeyError, ValueError) as error:  # none of that name, or one of other axes
        raise UserError(f"the weights have no {error}; CABLE's are a GPT-2 with attn.h_attn in each layer") from error
    layers = sum(name.endswith(".attn.h_attn.bias") for name in weights)
    return {
        "encoding": "cable_nw",
        "encoding_options": {"gate": "softplus", "step_bias": True},
        "model": {
            "family": "gpt2",
            "layers": layers,
            "width": width,
            "heads": heads,
            "hidden": hidden,
            "vocab": vocab,
        },
        "context": 1024,
    }


CABLE = Layout(
    entries=_entries,
    config=_config,
    holds="cable_nw with gate=softplus and step_bias=True",
    tokenizer="gpt2",
    document_mask=False,
)
