"""Make tests/convert/bert_golden: a tiny BERT by the names that transformers publishes, and what transformers makes of it.

    pip install 'transformers==4.49.0' 'jax==0.4.38' 'jaxlib==0.4.38' 'flax==0.10.2'    # in an environment of its own
    python tests/convert/make_bert_golden.py

The last versions with models in Flax read PyTorch's names and need no torch, which would be gigabytes.
"""

import json
from pathlib import Path

import jax
import numpy as np
import transformers
from safetensors.numpy import save_file

FOLDER = Path(__file__).with_name("bert_golden")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["the", "cat", "sat", "un", "##believ", "##able", "cafe", ",", ".", "!"]
SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"0123456789", *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
TEXT = "The cat sat, unbelievable! Café 東 mask 1984."
LAYERS, WIDTH, HIDDEN, POSITIONS = 2, 16, 32, 48


def draw_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random weights of every kind; no bias is 0 and no scale 1, so that none can be mistaken for another."""
    embeddings = {"word": len(PIECES), "position": POSITIONS, "token_type": 2}
    shapes = {f"bert.embeddings.{name}_embeddings.weight": (rows, WIDTH) for name, rows in embeddings.items()}
    linear = {"cls.predictions.transform.dense": (WIDTH, WIDTH)}
    norms = ["bert.embeddings", "cls.predictions.transform"]
    for n in range(LAYERS):
        layer = f"bert.encoder.layer.{n}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear[f"{layer}.attention.{name}"] = (WIDTH, WIDTH)
        linear[f"{layer}.intermediate.dense"] = (HIDDEN, WIDTH)
        linear[f"{layer}.output.dense"] = (WIDTH, HIDDEN)
        norms += [f"{layer}.attention.output", f"{layer}.output"]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.LayerNorm.weight": (WIDTH,), f"{name}.LayerNorm.bias": (WIDTH,)}
    shapes["cls.predictions.bias"] = (len(PIECES),)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def main() -> None:
    """Writes the folder anew."""
    rng = np.random.default_rng(0)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": HIDDEN}
    sizes |= {"vocab_size": len(PIECES), "max_position_embeddings": POSITIONS}
    transformers.BertConfig(architectures=["BertForMaskedLM"], **sizes).save_pretrained(FOLDER)
    weights = draw_weights(rng)
    save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})

    model = transformers.FlaxBertForMaskedLM.from_pretrained(FOLDER)
    loaded = jax.tree.leaves(model.params)
    assert {x.tobytes() for x in map(np.asarray, loaded) if x.ndim == 1} <= {x.tobytes() for x in weights.values()}
    assert sum(x.size for x in loaded) == sum(x.size for x in weights.values()), "transformers knows every name"
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(FOLDER / "vocab.txt"), do_lower_case=True)
    texts = rng.integers(0, len(PIECES), (2, 20), np.int32)
    out = model(texts, output_hidden_states=True)
    arrays = {"ids": texts, "rows": np.asarray(out.hidden_states[-1]), "logits": np.asarray(out.logits)}
    save_file(arrays, FOLDER / "expected.safetensors")
    expected = {
        "transformers": transformers.__version__,
        "text": TEXT,
        "ids": tokenizer(TEXT)["input_ids"],
        "mask": tokenizer.mask_token_id,
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
