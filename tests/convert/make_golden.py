"""Make tests/convert/golden: the logits that transformers computes with a tiny model of each type that `convert` reads.

    pip install torch transformers    # in an environment of its own; torch is gigabytes
    python tests/convert/make_golden.py [NAME ...]

A file holds token ids and logits and, as metadata, the model's config.json and the shapes of its weights, which `draw` makes here
and in the test.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("golden")
VOCAB, TOKENS = 80, 12
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
LLAMA = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALING["original_max_position_embeddings"] = 64
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "rope_theta": 500.0, "rms_norm_eps": 1e-4},
    "llama-linear": {**LLAMA, "rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-llama3": {**LLAMA, "rope_theta": 100.0, "rope_scaling": SCALING},
    "mpt": {"vocab_size": VOCAB, "d_model": 36, "n_layers": 2, "n_heads": 6, "max_seq_len": 16},
    "gemma3_text": {
        **LLAMA,
        "num_hidden_layers": 4,
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_theta": 1e4,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "qwen2": {**LLAMA, "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "head_dim": 12, "rms_norm_eps": 1e-5},
    "bloom": {"vocab_size": VOCAB, "hidden_size": 36, "n_layer": 2, "n_head": 6, "layer_norm_epsilon": 1e-4},
    "smollm3": {**LLAMA, "num_hidden_layers": 4, "no_rope_layer_interval": 2, "rope_theta": 100.0, "pad_token_id": 0},
    "gpt2": {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
}
"""Of each model what differs from transformers' defaults for its type, which is the name up to a hyphen."""


def draw(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Random weights of every shape, float32; no bias is 0 and no scale 1, so that none can be mistaken for another."""
    rng = np.random.RandomState(0)  # whose numbers NumPy keeps the same for good
    made = {}
    for name in sorted(shapes):
        x = rng.standard_normal(shapes[name])
        x = x / np.sqrt(x.shape[-1]) if x.ndim > 1 else 0.3 * x + (not name.endswith("bias"))
        made[name] = x.astype(np.float32)
    return made


def main(names: Sequence[str]) -> None:
    """Writes the files anew, all or some."""
    import torch
    import transformers
    from safetensors.numpy import save_file

    FOLDER.mkdir(exist_ok=True)
    for name in names or MODELS:
        config = transformers.AutoConfig.for_model(name.partition("-")[0], **MODELS[name])
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        tied = model.config.tie_word_embeddings
        shapes = {key: x.shape for key, x in model.state_dict().items() if not (tied and key == "lm_head.weight")}
        weights = draw(shapes)
        found = model.load_state_dict({key: torch.from_numpy(x) for key, x in weights.items()}, strict=False)
        assert not found.unexpected_keys and {*found.missing_keys} <= {"lm_head.weight"}
        ids = np.random.RandomState(1).randint(0, VOCAB, TOKENS)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0].numpy()
        described = json.loads(model.config.to_json_string())
        metadata = {"transformers": transformers.__version__, "config": json.dumps(described)}
        metadata["shapes"] = json.dumps({key: list(shape) for key, shape in shapes.items()})
        save_file({"ids": ids.astype(np.int32), "logits": logits}, FOLDER / f"{name}.safetensors", metadata)


if __name__ == "__main__":
    main(sys.argv[1:])
