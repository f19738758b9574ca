"""Triplets of MS MARCO with mined hard negatives: a query, a passage that answers it, one that does not."""

from bam_jax.data.corpora.base import Corpus

MS_MARCO = Corpus(
    paper="CABLE, section 5.5: mined hard negatives",
    licence="none stated; Microsoft's terms of MS MARCO: non-commercial research only",
    repository="sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
    include="triplet-hard/*",
    splits={"train": ("triplet-hard/*.parquet", "*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst")},
    fields=("query", "positive", "negative"),
    tokenizer="bert",
    holdout_records=1000,
    sample_records=1_250_000,
)
