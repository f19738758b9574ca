"""WikiText: articles end to end, each beginning with a line that holds its title."""

import io
import re
from collections.abc import Iterable, Iterator

from bam_jax.data.corpora.base import Corpus, Format

_TITLE = re.compile(r"= [^=](.*[^=])? =")


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles; put together again they are the lines.

    A title is a line ` = Title = ` after a blank line; a section's is ` = = Section = = `. A formula's line that looks like a
    title has no blank line before it.

    Source: Merity et al. 2016 and the files of WikiText-2 and WikiText-103.

    >>> list(articles([" \\n", " = One = \\n", " \\n", " = = Section = = \\n", " x = y \\n", " \\n", " = Two = \\n"]))
    [' \\n = One = \\n \\n = = Section = = \\n x = y \\n \\n', ' = Two = \\n']
    """
    article = io.StringIO()  # a list of short lines would take thirty times their size
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


ARTICLES = Format("wikitext", articles)


def _version(number: str) -> Corpus:
    """WikiText-2 or WikiText-103: the parquet files of the hub, or the original files of either form."""
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
        format=ARTICLES,
        tokenizer="gpt2",
    )


WIKITEXT_2 = _version("2")
WIKITEXT_103 = _version("103")
