"""WikiText's own format: articles end to end, each beginning with a line that holds its title."""

import io
import re
from collections.abc import Iterable, Iterator

_TITLE = re.compile(r"= [^=](.*[^=])? =")


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles; put together again they are the lines.

    A title is a line ` = Title = ` after a blank line; a section's is ` = = Section = = `. A formula's line that looks like a
    title has no blank line before it.

    Args:
        lines: of the raw or the tokenised form, each with its newline; the blank lines of the parquet form, which lost theirs,
            get it back.

    Source: Merity et al. 2016 and the files of WikiText-2 and WikiText-103.

    >>> list(articles([" \\n", " = One = \\n", " \\n", " = = Section = = \\n", " x = y \\n", " \\n", " = Two = \\n"]))
    [' \\n = One = \\n \\n = = Section = = \\n x = y \\n \\n', ' = Two = \\n']
    """
    article = io.StringIO()  # a list of short lines would take thirty times their size
    blank, text, begun = True, False, False
    for line in lines:
        stripped = line.strip()
        if text and blank and _TITLE.fullmatch(stripped):
            yield article.getvalue()
            article, text = io.StringIO(), False
        article.write(line or " \n")
        blank, text, begun = not stripped, text or bool(stripped), True
    if begun:
        yield article.getvalue()
