"""The paper's 432M model: 11.4 billion tokens at context 512 (BAM, section 3 and Table 1 of appendix C).

    python -m bam_jax.train --config=configs/lm_432m.py --config.data.source=FOLDER --workdir=runs/lm_432m

FOLDER holds your own text: .txt (a document each) or .jsonl (a document a line, in the field
--config.data.text_field=NAME). The paper trained on FineWeb. Without --config.data.source the run reads
Python's own documentation, which is enough to try it but not to learn from. The tokenizer needs pip install
'.[tokenizers]' in a clone.

One step on a CPU, as a trial: --config.context=64 --config.batch=2 --config.optimizer.accumulate=1
--config.steps=1 --workdir=runs/try.

Hardware: one accelerator of 80 GB or more; a step of 589,824 tokens is cut into 24 micro-batches of 48 x
512. 19,251 steps are 11.4 billion tokens, about 2.7e+19 floating-point operations: some 46 hours at 40%
of 400 Tflop/s (an estimate without recomputation, not a measurement).

Expected: passkey accuracy 1 below 1K tokens, .5 at 51K, and .3 or less from 102K to 512K (the paper's Table 7). After 256 steps
at context 1024, as in configs/lm_1b_extended.py, it is 1 to 512K.
Other contexts of the paper: --config.context=1024 --config.batch=576, or 2048 and 288.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "bam",
            "ssmax": "on",
            "model": {
                "layers": 14,
                "width": 1536,
                "heads": 24,
                "hidden": 3072,
                "remat": True,
            },
            "data": {
                "source": "stdlib",
                "tokenizer": "mistral",
                "holdout": 0.001,
                "packing": "framed",  # the authors' code: begin token, text, end token, and no target left out
            },
            "optimizer": {
                "name": "radam",
                "rate": 0.0005,
                "warmup": 0,
                "accumulate": 24,
            },
            "context": 512,
            "batch": 1152,
            "steps": 19251,
            "log_every": 10,
            "checkpoint_every": 500,
        }
    )
