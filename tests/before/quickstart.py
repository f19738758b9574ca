"""The configuration of the kept runs, `configs/quickstart.py` as it was when they were made."""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "bam",
            "encoding_options": {"init": "spread", "spread": 2.0},
            "ssmax": "on",
            "model": {"layers": 2, "width": 64, "heads": 4, "hidden": 128, "scan": False},
            "data": {"source": "stdlib", "tokenizer": "char", "task": "passkey", "answer_weight": 5.0},
            "optimizer": {"name": "adamw", "rate": 3e-3, "b2": 0.99, "warmup": 100},
            "context": 64,
            "batch": 16,
            "steps": 3000,
        }
    )
