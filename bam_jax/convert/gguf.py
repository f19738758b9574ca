"""GGUF files, llama.cpp's format, as the weights, description and tokenizer that a Hugging Face folder would contain.

Quantised arrays are dequantised to float32. llama.cpp stores the queries and keys of a Llama with rotated pairs as neighbours;
here the pairs are split into halves again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax.convert.base import Arrays
from bam_jax.system.errors import UserError, nearest, shown
from bam_jax.system.extras import import_extra

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The names of a layer's parts there and in Hugging Face's Llama."""
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPLITS = {"smollm": True, "gpt-2": False, "default": False}
"""Known ways to split a text before merges, and whether each digit is split off."""
CONTROL = 3
"""The type of a token that never occurs in text."""


def read(path: Path) -> tuple[Arrays, dict[str, Any], str]:
    """The weights by Hugging Face's names, the contents of config.json, and those of tokenizer.json."""
    library = import_extra("gguf", f"{path}", "gguf")
    try:
        reader = library.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {each.name: (each.data, each.tensor_type, each.shape) for each in reader.tensors}
    except Exception as error:  # the library raises nothing narrower
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is not a whole GGUF file ({reason}); fetch it again") from error
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise UserError(f"{path} holds the architecture {shown(kind)}; llama is read")
    described = _described(path, fields, tied="output.weight" not in tensors)
    weights = {}
    for name, (data, quantisation, shape) in tensors.items():
        try:
            array = library.quants.dequantize(data, quantisation).astype(np.float32).reshape(shape[::-1])
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"{path}: {name} has the quantisation {quantisation.name}, which is not read") from error
        weights[_theirs(path, name)] = array
    for name, heads in {"q": "num_attention_heads", "k": "num_key_value_heads"}.items():
        for each in (each for each in weights if each.endswith(f"self_attn.{name}_proj.weight")):
            weights[each] = _in_halves(weights[each], described[heads])
    return weights, described, json.dumps(_tokenizer(path, fields))


def _described(path: Path, fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    names = {
        "hidden_size": "llama.embedding_length",
        "num_hidden_layers": "llama.block_count",
        "num_attention_heads": "llama.attention.head_count",
        "intermediate_size": "llama.feed_forward_length",
        "max_position_embeddings": "llama.context_length",
        "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    }
    for name in names.values():
        if name not in fields:
            raise UserError(f"{path} does not say {name}; fetch it again")
    for name in fields:
        if name.startswith("llama.rope.scaling") and fields[name] not in ("none", 1.0):
            raise UserError(f"{path} has {name}={shown(fields[name])}, which models here do not have")
    made = {ours: fields[theirs] for ours, theirs in names.items()}
    kv_heads = fields.get("llama.attention.head_count_kv", made["num_attention_heads"])
    return {
        "model_type": "llama",
        **made,
        "num_key_value_heads": kv_heads,
        "vocab_size": len(fields.get("tokenizer.ggml.tokens", [])),
        "rope_theta": fields.get("llama.rope.freq_base", 10_000.0),
        "tie_word_embeddings": tied,
    }


def _theirs(path: Path, name: str) -> str:
    """Hugging Face's name of an array."""
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, _, rest = stem.partition("blk.")
    layer, _, part = rest.partition(".")
    if part not in NAMES or not layer.isdecimal():
        raise UserError(f"{path} holds {shown(name)}, which a Llama does not have; {nearest(part, NAMES)}")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def _in_halves(kernel: np.ndarray, heads: int) -> np.ndarray:
    """A kernel [heads D, E] whose rows in each head are x_0, x_{D/2}, x_1 ..., reordered to x_0, x_1 ... x_{D-1}."""
    width = kernel.shape[0] // heads
    return kernel.reshape(heads, width // 2, 2, -1).swapaxes(1, 2).reshape(kernel.shape)


def _tokenizer(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The contents of a tokenizer.json of a byte-level BPE."""
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in SPLITS:
        raise UserError(
            f"{path} has a tokenizer of kind {shown(kind)}, {shown(split)}; gpt2 with {', '.join(SPLITS)} is read"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.token_type", [])
    digits = [{"type": "Digits", "individual_digits": True}] if SPLITS[split] else []
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": token, **special}
            for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*digits, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": fields.get("tokenizer.ggml.merges", []),
        },
    }
