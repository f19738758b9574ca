"""CABLE's BERT base: masked language modelling on FineWeb-Edu-10B at length 512 (CABLE, section 5.5 and appendix A.1).

    python -m bam_jax.train --config=configs/bert_base.py --config.data.source=FOLDER --workdir=runs/bert_base

`python -m bam_jax.data.prepare` made FOLDER with the tokenizer bert:corpora/bert-base-uncased (docs/tokenizers.md), or FOLDER
holds your own text. Another encoding: --config.encoding=alibi; learned is BERT's own.

The model is that of bert-base-uncased, 109.5M parameters with its head, less the pooler, which no masked token needs, and the two
rows of token types: a text is one segment. There is no next-sentence task, and no dropout, of which the paper says nothing.

The paper has 14k steps of 32 rows on each of four GPUs, "~1 epoch on FineWeb-Edu-10B". 128 rows of 512 tokens are 0.92 billion
tokens in all, a tenth of an epoch. Eleven micro-batches a step make 10.1 billion. The default is those: that a step accumulates
may have been left unsaid, whereas the other reading contradicts the epoch. It is --config.batch=128
--config.optimizer.accumulate=1.

Adam at 1e-4 is the paper's. The rest is as in Devlin et al. 2019: b1, b2, a gradient of norm 1 at most, a warm-up of 1% of the
steps, and a rate that falls to 0 (linearly there, by a cosine here). Adam has no decay of weights, which theirs had.

Hardware: four accelerators of 80 GB, each with 32 rows of a micro-batch. 14,000 steps are about 7.2e+18 floating-point
operations: some 3 hours of four at 40% of 400 Tflop/s (an estimate, not a measurement).

Expected: the paper prints no loss; in its figure 6 that of CABLE is the lowest of all encodings.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    return ml_collections.ConfigDict(
        {
            "encoding": "cable",
            "model": {
                "family": "bert",
                "causal": False,
                "layers": 12,
                "width": 768,
                "heads": 12,
                "hidden": 3072,
            },
            "data": {
                "task": "masked",
                "tokenizer": "bert:corpora/bert-base-uncased",
                "document_mask": False,
                "holdout": 0.01,
            },
            "optimizer": {
                "name": "adamw",
                "rate": 1e-4,
                "b2": 0.999,
                "decay": 0.0,
                "warmup": 140,
                "final": 0.0,
                "accumulate": 11,
            },
            "context": 512,
            "batch": 1408,
            "steps": 14000,
            "log_every": 10,
            "checkpoint_every": 500,
        }
    )
