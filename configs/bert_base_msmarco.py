"""BERT base, trained on masked tokens before, learns retrieval from MS MARCO's triplets (CABLE, section 5.5).

    python -m bam_jax.data.prepare --preset=ms-marco --tokenizer=bert:corpora/bert-base-uncased --out=data/ms-marco
    python -m bam_jax.train --config=configs/bert_base_msmarco.py --config.encoding=cable --config.start=RUN --workdir=runs/x

RUN is a run of configs/bert_base.py with the same encoding. CABLE says 1.25M samples, batch 128, 5% warm-up, one epoch, and
names Warner et al. 2024, whose public script gives the rest: AdamW without decay, a linear way down to 0, in-batch negatives
beside the hard one, cosines times 20, mean pooling. Its rate is a default that it is swept around; it has dropout as far as its
model has, and a model here has none. It draws batches without a text twice; here equal texts are no negatives of one another.

Hardware: one accelerator of 80 GB; a step of 128 x 3 texts of 512 tokens is cut into 4 micro-batches, whose gradients are
cached. 9,765 steps, the whole batches of an epoch, are 1.9 billion tokens with pads: about 1.8e+18 floating-point operations,
some three hours at 40% of 400 Tflop/s (an estimate, not a measurement).

Expected: nDCG@10 of MLDR's English documents, CABLE, 14.96 at 512 tokens and 25.10 at 16,384 (the paper's Table 3).
"""

import runpy
from pathlib import Path

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    config = runpy.run_path(str(Path(__file__).with_name("bert_base.py")))["get_config"]()
    config.data.update({"source": "data/ms-marco", "task": "triplets"})
    config.optimizer.update({"rate": 8e-5, "warmup": 489, "schedule": "linear", "final": 0.0, "accumulate": 4})
    config.update({"context": 512, "batch": 128, "steps": 9765})
    return config
