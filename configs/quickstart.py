"""Passkey retrieval far beyond the training length, in about a minute on one CPU core.

    python -m bam_jax.train --config=configs/quickstart.py --workdir=runs/one
    python -m bam_jax.evaluate --run=runs/one --eval=passkey --lengths=64,256,1024,4096 --depths=20

Text: Python's own documentation, character by character; 80% of the samples hide a key.
Hardware: one CPU core; 3000 steps take about a minute.
Expected: nearly all keys at 64 times the training length (4096). The prior is BAM's with a trained location; one head of a layer
starts by looking far, the others near; Scalable Softmax counts the keys that a head's prior leaves in play. Another encoding,
without Scalable Softmax as its paper has it: --config.encoding=alibi. The model of BAM's paper: --config.encoding=bam_paper.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "bam",
            "encoding_options": {"init": "ladder", "train_loc": True},
            "ssmax": "effective",
            "model": {"layers": 2, "width": 64, "heads": 4, "hidden": 128, "scan": False},
            "data": {"source": "stdlib", "tokenizer": "char", "task": "passkey", "answer_weight": 5.0},
            "optimizer": {"name": "adamw", "rate": 3e-3, "b2": 0.99, "warmup": 100},
            "context": 64,
            "batch": 16,
            "steps": 3000,
        }
    )
