"""Hugging Face's layout of SmolLM3: a Llama in which some or all layers have no positional encoding."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import Arrays, Count, Layout
from bam_jax.convert.llama import FILE, LLAMA
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError


class _Described(TypedDict):
    model_type: Literal["smollm3"]
    num_hidden_layers: Annotated[int, Meta(ge=1, le=2**16)]
    no_rope_layers: NotRequired[list[Literal[0, 1]] | None]
    no_rope_layer_interval: NotRequired[Count]


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "give the folder of a SmolLM3")
    layers, interval = described["num_hidden_layers"], described.get("no_rope_layer_interval", 4)
    # Despite the name, 1 means that the layer has RoPE.
    turns = described.get("no_rope_layers") or [int((n + 1) % interval != 0) for n in range(layers)]
    if len(turns) != layers:
        raise UserError(
            f"{FILE} has no_rope_layers of {len(turns)} layers, and num_hidden_layers={layers}; fetch it again"
        )
    defaults = {"rope_theta": 2e6, "tie_word_embeddings": True}
    tree = LLAMA.config(weights, {**defaults, **described, "model_type": "llama"})
    if all(turns):
        return tree
    period = next(n for n in range(1, layers + 1) if layers % n == 0 and turns[:n] * (layers // n) == turns)
    turned = f"rope:base={tree['encoding_options']['base']!r}"
    places = [turned if turn else "nope" for turn in turns[:period]]
    return tree | {"encoding": "/".join(places), "encoding_options": {}}


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    pattern = config.layer_pattern()
    places = [pattern[n % len(pattern)] for n in range(config.model.layers)]
    bases = {place["options"].get("base", 10_000.0) for place in pattern if place["name"] == "rope"}
    if len(bases) > 1:
        raise UserError(f"the layout 'smollm3' has no place for several bases of a rotation: {sorted(bases)}")
    return LLAMA.args(config, vocab) | {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "rope_theta": min(bases, default=10_000.0),
        "no_rope_layers": [int(place["name"] == "rope") for place in places],
    }


SMOLLM3 = Layout(
    entries=LLAMA.entries,
    config=_config,
    holds="rope and nope",
    tokenizer="bpe:{folder}",
    document_mask=False,
    file=FILE,
    args=_args,
    normalise=LLAMA.normalise,
)
