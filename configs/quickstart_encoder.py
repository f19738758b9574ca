"""An encoder of Python's documentation, from masked tokens, in half a minute on two CPU cores.

    python -m bam_jax.data.make_retrieval --source=stdlib --vocab=2048 --out=corpora/inverse-cloze
    python -m bam_jax.train --config=configs/quickstart_encoder.py --workdir=runs/masked

The first command makes text to train on, a tokenizer, triplets, and a retrieval problem to test with (docs/retrieval.md). The
encoder then goes on with triplets by configs/quickstart_retrieval.py. It is configs/bert_base.py, smaller: two layers, and a
training length of 64 tokens.

Hardware: two CPU cores; 1000 steps take half a minute.
Expected: docs/retrieval.md has what both trainings together give. Other encodings: --config.encoding=alibi.
"""

import runpy
from pathlib import Path

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    config = runpy.run_path(str(Path(__file__).with_name("bert_base.py")))["get_config"]()
    config.model.update({"layers": 2, "width": 64, "heads": 4, "hidden": 128, "scan": False})
    config.data.update(
        {"source": "corpora/inverse-cloze/texts.jsonl", "tokenizer": "bpe:corpora/inverse-cloze/bpe.json"}
    )
    config.optimizer.update({"rate": 3e-3, "warmup": 20, "accumulate": 1})
    config.update({"context": 64, "batch": 16, "steps": 1000})
    return config
