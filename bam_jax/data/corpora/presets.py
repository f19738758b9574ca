"""The corpora that a source or a preset can name: where their files are, how a record becomes text, and how it is split."""

import dataclasses
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from bam_jax.data.corpora.stdlib import passages

BY_SUFFIX = "auto"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One corpus. The user downloads its files to a folder, or `make` generates its documents."""

    paper: str  # the paper and section that use it
    licence: str  # the terms of use of its text, as stated by its data set's card or its publisher
    # file name patterns of each split, those of the hub's folders first; the first pattern that matches any file is used
    splits: Mapping[str, tuple[str, ...]]
    repository: str = ""  # its data set on the Hugging Face hub
    include: str = ""  # the pattern of the files to fetch from the repository
    fields: tuple[str, ...] = ("text",)  # the fields or columns of a record that hold its texts
    # combines the texts of a record's fields into one. None: each field is a document, and they stay together
    compose: Callable[..., str] | None = None
    format: str = BY_SUFFIX  # or a name in `FORMATS`, which splits the lines of the files into documents
    make: Callable[[], Iterator[str]] | None = None  # the documents of a corpus without files, in a fixed order
    tokenizer: str = "mistral"  # the paper's tokenizer; "bert" needs a path from the user
    holdout_tokens: int = 0
    max_tokens: int | None = None
    holdout_records: int = 0  # records to hold out of the split "train", drawn at random
    sample_records: int | None = None  # records to train on at most, drawn at random from all

    def download(self, folder: str) -> str:
        return (
            f"pip install huggingface_hub && hf download {self.repository} --repo-type dataset "
            f"--include '{self.include}' --local-dir {folder}"
        )


_TITLE = re.compile(r"= [^=](.*[^=])? =")


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles in the lines; concatenated, they are the lines again.

    A title is a line ` = Title = ` after a blank line, unlike the line of a formula. A section title is ` = = Section = = `.

    Source: Merity et al. 2016 and the files of WikiText-2 and WikiText-103.

    >>> list(articles([" \\n", " = One = \\n", " \\n", " = = Section = = \\n", " x = y \\n", " \\n", " = Two = \\n"]))
    [' \\n = One = \\n \\n = = Section = = \\n x = y \\n \\n', ' = Two = \\n']
    """
    article = io.StringIO()  # a list of short lines would take thirty times the memory
    after_blank, has_text, begun = True, False, False
    for line in lines:
        stripped = line.strip()
        if has_text and after_blank and _TITLE.fullmatch(stripped):
            yield article.getvalue()
            article, has_text = io.StringIO(), False
        article.write(line or " \n")
        after_blank, has_text, begun = not stripped, has_text or bool(stripped), True
    if begun:
        yield article.getvalue()


FORMATS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {"wikitext": articles}
"""Functions that split text into documents. Their input is the lines of all files in order, each with its newline."""


def _wikitext(number: str) -> Corpus:
    """WikiText-2 or WikiText-103: the parquet files of the hub, or the original files, raw or tokenised."""
    folder = f"wikitext-{number}-raw-v1"
    return Corpus(
        paper="CABLE, section 4.1; Merity et al. 2016",
        licence="CC BY-SA 3.0 and GFDL",
        repository="Salesforce/wikitext",
        include=f"{folder}/*",
        splits={
            split: (f"{folder}/{split}-*.parquet", f"{split}-*.parquet", f"*wiki.{short}.raw", f"*wiki.{short}.tokens")
            for split, short in (("train", "train"), ("validation", "valid"), ("test", "test"))
        },
        format="wikitext",
        tokenizer="gpt2",
    )


FINEWEB = Corpus(
    paper="BAM, section 3 and appendix C",
    licence="ODC-By 1.0, and Common Crawl's terms of use",
    repository="HuggingFaceFW/fineweb",
    include="sample/10BT/*",
    splits={"train": ("sample/10BT/*.parquet", "*.parquet")},
    holdout_tokens=3_932_160,
)

CORPORA: dict[str, Corpus] = {
    "fineweb-10bt": FINEWEB,
    "fineweb-1b": dataclasses.replace(
        FINEWEB,
        paper="CABLE, section 4.1: a sample that perplexity is measured on",
        tokenizer="gpt2",
        holdout_tokens=0,
        max_tokens=1_000_000_000,
    ),
    "fineweb-edu-10bt": dataclasses.replace(
        FINEWEB,
        paper="CABLE, section 4.1",
        repository="HuggingFaceFW/fineweb-edu",
        tokenizer="gpt2",
        holdout_tokens=100_000_000,
    ),
    "ms-marco": Corpus(  # triplets with mined hard negatives: a query, a passage that answers it, one that does not
        paper="CABLE, section 5.5: mined hard negatives",
        licence="none stated; Microsoft's terms of MS MARCO: non-commercial research only",
        repository="sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
        include="triplet-hard/*",
        splits={"train": ("triplet-hard/*.parquet", "*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst")},
        fields=("query", "positive", "negative"),
        tokenizer="bert",
        holdout_records=1000,
        sample_records=1_250_000,
    ),
    "stdlib": Corpus(
        paper="none: it is there without a download, for tests and toy models",
        licence="PSF License Version 2",
        splits={"train": ()},
        make=passages,
        tokenizer="char",
    ),
    "wikipedia-en": Corpus(
        paper="BAM, appendix D.2: perplexity of long articles",
        licence="CC BY-SA 3.0 and GFDL",
        repository="wikimedia/wikipedia",
        include="20231101.en/*",
        splits={"train": ("20231101.en/*.parquet", "*.parquet")},
    ),
    "wikitext-2": _wikitext("2"),
    "wikitext-103": _wikitext("103"),
}
