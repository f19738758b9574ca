"""The paper's 120M model: 11.4 billion tokens at context 512 (BAM, section 3 and Table 1 of appendix C).

    python -m bam_jax.train --config=configs/lm_120m.py --config.data.source=FOLDER --workdir=runs/lm_120m

FOLDER holds your own text: .txt (a document each) or .jsonl (a document a line, in the field
--config.data.text_field=NAME). The paper trained on FineWeb. Without --config.data.source the run reads
Python's own documentation, which is enough to try it but not to learn from. The tokenizer needs pip install
'.[tokenizers]' in a clone.

One step on a CPU, as a trial: --config.context=64 --config.batch=2 --config.optimizer.accumulate=1
--config.steps=1 --workdir=runs/try.

Hardware: one accelerator of 80 GB or more; a step of 589,824 tokens is cut into 8 micro-batches of 144 x
512. 19,251 steps are 11.4 billion tokens, about 6.9e+18 floating-point operations: some 12 hours at 40%
of 400 Tflop/s (an estimate without recomputation, not a measurement).

Expected: passkey accuracy 1 to 32K tokens (the paper's Figure 2) and to 51K, .8 at 256K, .4 at 512K (its Table 7).
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
                "layers": 12,
                "width": 768,
                "heads": 16,
                "hidden": 1536,
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
                "rate": 0.001,
                "warmup": 0,
                "accumulate": 8,
            },
            "context": 512,
            "batch": 1152,
            "steps": 19251,
            "log_every": 10,
            "checkpoint_every": 500,
        }
    )
