"""The papers' corpora: where they come from, and how they are read."""

import dataclasses
from collections.abc import Mapping

from bam_jax.system.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Preset:
    """One corpus.

    Args:
        repository: of datasets on the Hugging Face hub.
        patterns: of the files' names, for each part of the corpus ("train", "test"): the first that any file matches.
            They hold for the hub's folders, and for the files alone.
        include: what of the repository is fetched, a pattern.
        fields: the columns with the texts.
        format: as `sources.Source` has it.
        tokenizer: the paper's; None: it needs a path, which only the user knows.
        holdout_tokens: to hold out.
        max_tokens: to train on, at most.
        holdout_records: to hold out, drawn at random.
        sample_records: to train on at most, drawn at random from all.
        source: paper and section.
    """

    repository: str
    patterns: Mapping[str, tuple[str, ...]]
    include: str
    source: str
    fields: tuple[str, ...] = ("text",)
    format: str = "auto"
    tokenizer: str | None = "mistral"
    holdout_tokens: int = 0
    max_tokens: int | None = None
    holdout_records: int = 0
    sample_records: int | None = None

    def download(self, folder: str) -> str:
        """The command that fetches it.

        Args:
            folder: where to.
        """
        return (
            f"pip install huggingface_hub && hf download {self.repository} --repo-type dataset "
            f"--include '{self.include}' --local-dir {folder}"
        )


_SAMPLE = {"train": ("sample/10BT/*.parquet", "*.parquet")}


def _wikitext(version: str) -> Preset:
    folder = f"wikitext-{version}-raw-v1"
    patterns = {
        split: (f"{folder}/{split}-*.parquet", f"{split}-*.parquet", f"*wiki.{short}.raw", f"*wiki.{short}.tokens")
        for split, short in (("train", "train"), ("validation", "valid"), ("test", "test"))
    }
    return Preset(
        repository="Salesforce/wikitext",
        patterns=patterns,
        include=f"{folder}/*",
        format="wikitext",
        tokenizer="gpt2",
        source="CABLE, section 4.1; Merity et al. 2016",
    )


PRESETS = {
    "fineweb-10bt": Preset(
        repository="HuggingFaceFW/fineweb",
        patterns=_SAMPLE,
        include="sample/10BT/*",
        holdout_tokens=3_932_160,
        source="BAM, section 3 and appendix C",
    ),
    "fineweb-1b": Preset(
        repository="HuggingFaceFW/fineweb",
        patterns=_SAMPLE,
        include="sample/10BT/*",
        tokenizer="gpt2",
        max_tokens=1_000_000_000,
        source="CABLE, section 4.1: a sample that perplexity is measured on",
    ),
    "fineweb-edu-10bt": Preset(
        repository="HuggingFaceFW/fineweb-edu",
        patterns=_SAMPLE,
        include="sample/10BT/*",
        tokenizer="gpt2",
        holdout_tokens=100_000_000,
        source="CABLE, section 4.1",
    ),
    "wikipedia-en": Preset(
        repository="wikimedia/wikipedia",
        patterns={"train": ("20231101.en/*.parquet", "*.parquet")},
        include="20231101.en/*",
        source="BAM, appendix D.2: perplexity of long articles",
    ),
    "wikitext-2": _wikitext("2"),
    "wikitext-103": _wikitext("103"),
    "ms-marco": Preset(
        repository="sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
        patterns={"train": ("triplet-hard/*.parquet", "*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst")},
        include="triplet-hard/*",
        fields=("query", "positive", "negative"),
        tokenizer=None,
        holdout_records=1000,
        sample_records=1_250_000,
        source="CABLE, section 5.5: mined hard negatives",
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: unknown name.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]
