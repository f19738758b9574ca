"""A small decoder on the text of WikiText-2: a few minutes on one CPU core.

    python -m bam_jax.train --config=configs/wikitext2.py --config.data.source=FOLDER --workdir=runs/x

FOLDER holds text, or is a prepared folder (docs/wikitext2.md). experiments/wikitext2.py trains several encodings on the
validation part, with two tokenizers, and evaluates them on the test part to 16 times the training context.

Hardware: one CPU core; 300 steps with Mistral's vocabulary take about two minutes, most of it for the head.
Expected: the report that docs/wikitext2.md makes.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "bam",
            "encoding_options": {"init": "spread"},
            "ssmax": "on",
            "model": {"layers": 3, "width": 64, "heads": 4, "hidden": 128, "scan": False},
            "data": {"source": "stdlib", "tokenizer": "mistral", "document_mask": False},
            "optimizer": {"name": "adamw", "rate": 3e-3, "b2": 0.99, "warmup": 50},
            "context": 128,
            "batch": 8,
            "steps": 300,
            "log_every": 50,
            "checkpoint_every": 100,
        }
    )
