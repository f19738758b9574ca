"""WikiText: articles end to end, each beginning with a line that holds its title."""

import io
import re
from collections.abc import Iterable, Iterator

from bam_jax.data.corpora.corpus import Format

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
