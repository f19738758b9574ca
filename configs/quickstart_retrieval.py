"""The encoder of configs/quickstart_encoder.py learns to rank documents, in less than a minute on two CPU cores.

    python -m bam_jax.train --config=configs/quickstart_retrieval.py --config.start=runs/masked --workdir=runs/encoder
    python -m bam_jax.retrieve --run=runs/encoder --corpus=corpora/inverse-cloze/corpus.jsonl \
        --queries=corpora/inverse-cloze/queries.jsonl --lengths=64,256,1024 --out=runs/ranked

runs/masked is a run of that configuration with the same encoding. A triplet is a sentence, what stood around it, and a passage of
another document (docs/retrieval.md). The rest is configs/bert_base_msmarco.py's.

Hardware: two CPU cores; 400 steps take less than a minute.
Expected: nDCG@10 of .14 at 64 tokens and .28 at 2048, where a random order gives .05.
"""

import runpy
from pathlib import Path

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    read = lambda name: runpy.run_path(str(Path(__file__).with_name(name)))["get_config"]()
    config, encoder = read("bert_base_msmarco.py"), read("quickstart_encoder.py")
    config.model.update(encoder.model)
    problem = "corpora/inverse-cloze"
    triplets = {"source": f"{problem}/triplets", "held_out_source": f"{problem}/held_out_triplets"}
    config.data.update({**triplets, "tokenizer": encoder.data.tokenizer})
    config.optimizer.update({"rate": 1e-3, "warmup": 20, "accumulate": 1})
    config.update({"context": 64, "batch": 32, "steps": 400})
    return config
