"""CABLE's GPT-2 tiny: 44.7M parameters, 10 billion tokens of FineWeb-Edu at context 1024 (CABLE, section 4).

    python -m bam_jax.train --config=configs/gpt2_tiny.py --config.data.source=FOLDER --workdir=runs/gpt2_tiny

`python -m bam_jax.data.prepare` made FOLDER with the tokenizer gpt2, or FOLDER holds your own text. The
parameters are counted without a position table and without those of the encoding.

On WikiText-103 the paper trains 9,000 steps: --config.steps=9000. Another encoding: --config.encoding=alibi. The
paper's table with DAPE has a context of 512: --config.context=512 --config.batch=1024.

Hardware: one accelerator of 80 GB; a step of 524,288 tokens is cut into 8 micro-batches of 64 x 1024. 19,000
steps are about 2.9e+18 floating-point operations: some 5 hours at 40% of 400 Tflop/s (an estimate, not a measurement).

Expected: the paper's perplexities on FineWeb-Edu, 28.73 at 1024 tokens and 26.80 at 15,360 (table 4).
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "cable",
            "model": {
                "family": "gpt2",
                "layers": 6,
                "width": 512,
                "heads": 8,
                "hidden": 2048,
                "remat": True,
            },
            "data": {"tokenizer": "gpt2", "document_mask": False, "holdout": 0.01},
            "optimizer": {
                "name": "adamw",
                "rate": 6e-4,
                "warmup": 750,  # the paper; its code has 715, beside 19,073 steps
                "accumulate": 8,
            },
            "context": 1024,
            "batch": 512,
            "steps": 19000,
            "log_every": 10,
            "checkpoint_every": 500,
        }
    )
