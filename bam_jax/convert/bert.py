"""Hugging Face's layout of BERT: config.json, model.safetensors or pytorch_model.bin, and vocab.txt or tokenizer.json.

A text is one segment here, so the row of token type 0, which is added for every token, is folded into the position table.
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
WORDS, POSITIONS, TYPES = (f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))
HEAD = "cls.predictions."
UNUSED = ("bert.pooler.", "bert.embeddings.position_ids", "bert.embeddings.token_type_ids", "cls.seq_relationship.")
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # suffixes of the norms' names in the oldest files, and today's


class _Described(TypedDict):
    model_type: NotRequired[Literal["bert"]]
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count
    hidden_act: NotRequired[Literal["gelu"]]
    layer_norm_eps: NotRequired[Annotated[float, Meta(ge=1e-12, le=1e-12)]]
    position_embedding_type: NotRequired[Literal["absolute"]]
    is_decoder: NotRequired[bool]


def _normalise(weights: Arrays, described: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """The weights by current names, with token types folded into the positions; and notes on arrays left out or added."""
    named: Arrays = {}
    for name, array in weights.items():
        for old, new in OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        bare = name.startswith(("embeddings.", "encoder.", "pooler."))  # a model saved without any head
        named["bert." + name if bare else name] = array
    notes = []
    unused = [name for name in named if name.startswith(UNUSED)]
    if unused:
        notes.append(f"left out, as no masked token needs them: {', '.join(unused)}")
    made = {name: array for name, array in named.items() if name not in unused and name != TYPES}
    if TYPES in named:
        if POSITIONS not in named or named[POSITIONS].ndim != 2 or named[TYPES].shape[1:] != named[POSITIONS].shape[1:]:
            raise UserError(f"the weights hold {TYPES!r} and no {POSITIONS!r} of the same width; fetch them again")
        made[POSITIONS] = named[POSITIONS] + named[TYPES][0]
    if not any(name.startswith(HEAD) for name in made) and WORDS in made:
        # A head with an identity map, which passes on what its GELU leaves: a start for training.
        vocab, width = made[WORDS].shape
        zeros, transform = np.zeros(width, np.float32), f"{HEAD}transform."
        made |= {f"{transform}dense.weight": np.eye(width, dtype=np.float32), f"{transform}dense.bias": zeros}
        made |= {f"{transform}LayerNorm.weight": zeros + 1, f"{transform}LayerNorm.bias": zeros}
        made[f"{HEAD}bias"] = np.zeros(vocab, np.float32)
        notes.append(
            "the weights have no head for masked tokens: hidden rows are theirs, logits mean nothing untrained"
        )
    return made, notes


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "bert.encoder.layer.{n}."
    return [
        ArrayMapping("embed/embedding", WORDS, SAME),
        ArrayMapping("embed/embedding", f"{HEAD}decoder.weight", SAME),
        ArrayMapping("position/embedding", POSITIONS, SAME),
        *norm_entries("norm", "bert.embeddings.LayerNorm"),
        *linear_entries("layers/attention/query", layer + "attention.self.query"),
        *linear_entries("layers/attention/key", layer + "attention.self.key"),
        *linear_entries("layers/attention/value", layer + "attention.self.value"),
        *linear_entries("layers/attention/out", layer + "attention.output.dense"),
        *norm_entries("layers/attention_norm", layer + "attention.output.LayerNorm"),
        *linear_entries("layers/mlp/up", layer + "intermediate.dense"),
        *linear_entries("layers/mlp/down", layer + "output.dense"),
        *norm_entries("layers/mlp_norm", layer + "output.LayerNorm"),
        *linear_entries("head/dense", f"{HEAD}transform.dense"),
        *norm_entries("head/norm", f"{HEAD}transform.LayerNorm"),
        ArrayMapping("head/bias", f"{HEAD}bias", SAME),
        ArrayMapping("head/bias", f"{HEAD}decoder.bias", SAME),
    ]


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "BERT's encoders have it; give the folder of one")
    if described.get("is_decoder"):
        raise UserError(f"{FILE} has is_decoder=True, which must be False; give the folder of an encoder")
    return {
        "encoding": "learned",
        "model": {
            "family": "bert",
            "causal": False,
            "layers": described["num_hidden_layers"],
            "width": described["hidden_size"],
            "heads": described["num_attention_heads"],
            "hidden": described["intermediate_size"],
            "vocab": described["vocab_size"],
        },
        "context": described["max_position_embeddings"],
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, as transformers reads them."""
    model = config.model
    if model.norm_epsilon not in (0.0, 1e-12):
        raise UserError(f"the layout 'bert' has no place for config.model.norm_epsilon={model.norm_epsilon}")
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": vocab,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.hidden,
        "max_position_embeddings": config.encoding_options.get("length", config.context),
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "torch_dtype": "float32",
    }


BERT = Layout(
    entries=_entries,
    config=_config,
    holds="learned",
    tokenizer="bert:{folder}",
    document_mask=False,
    task="masked",
    file=FILE,
    args=_args,
    normalise=_normalise,
    constant=lambda config: {TYPES: np.zeros((2, config.model.width), np.float32)},
)
