"""A corpus as data: where its text lies, how a record becomes text, and how the papers divide it."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Format:
    """A way to cut lines of text into documents."""

    name: str  # its name for `--format` and in a manifest
    # takes the lines of all files end to end, each with its newline, and yields the documents
    cut: Callable[[Iterable[str]], Iterator[str]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One corpus. Its files lie in a folder that the user fetches, or `make` makes its documents."""

    paper: str  # the paper and section that use it
    licence: str  # the terms under which its text is given, as its data set's card or its publisher states them
    # the patterns of the files' names for each split ("train", "test"). The first pattern that any file matches
    # holds; the patterns fit the folders of the hub, and the files alone
    splits: Mapping[str, tuple[str, ...]]
    repository: str = ""  # its data set on the Hugging Face hub
    include: str = ""  # the pattern of the files to fetch from the repository
    fields: tuple[str, ...] = ("text",)  # the fields or columns of a record that hold its texts
    # makes one text of a record, from the texts of its fields in their order. None: each field is a document, and the
    # documents of a record stay together
    compose: Callable[..., str] | None = None
    # cuts the lines of the files into documents. None: the suffix of a file says what it holds
    format: Format | None = None
    # makes the documents of a corpus without files, always the same and in the same order
    make: Callable[[], Iterator[str]] | None = None
    tokenizer: str = "mistral"  # the paper's tokenizer; "bert" needs a path, which only the user knows
    holdout_tokens: int = 0
    max_tokens: int | None = None
    holdout_records: int = 0  # records to hold out of the split "train", drawn at random
    sample_records: int | None = None  # records to train on at most, drawn at random from all

    def download(self, folder: str) -> str:
        return (
            f"pip install huggingface_hub && hf download {self.repository} --repo-type dataset "
            f"--include '{self.include}' --local-dir {folder}"
        )
