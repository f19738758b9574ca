"""Renders sections of text, figures and tables as a self-contained HTML page (templates/page.html) or as Markdown."""

import contextlib
import dataclasses
import functools
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bam_jax.render import style
from bam_jax.render.style import Figure
from bam_jax.system import console, errors
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra

if TYPE_CHECKING:
    import jinja2

HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)
"""The first lines of every page, by which a command recognises its own."""
WIDE = 30  # if a cell has more characters, its column is left-aligned and wrapped


class Link(NamedTuple):
    """A link to another file, by its path relative to the page."""

    text: str
    to: str


class Estimated(NamedTuple):
    """A value, and its uncertainty in small print below it."""

    text: str
    below: str


type Words = str | Link | Estimated


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as text. The first cell of a row is its name; a leading space makes the row part of a row above."""

    head: Sequence[Words]
    rows: Sequence[Sequence[Words]]

    @property
    def wide(self) -> list[bool]:
        columns = zip(*self.rows, strict=True)
        return [any(len(_text(cell)) > WIDE for cell in column) for column in columns] or [False] * len(self.head)

    @property
    def parts(self) -> list[bool]:
        return [_text(row[0]).startswith(" ") for row in self.rows]

    @property
    def sortable(self) -> bool:
        """False for tables with parts, which must stay below their row, and without column heads."""
        return len(self.rows) > 2 and any(self.head) and not any(self.parts)


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    text: str = ""  # a paragraph; `code` is in backticks, **what matters** in asterisks
    items: Sequence[Words] = ()  # a list after the text
    figure: Figure | None = None
    shows: str = ""  # the figure in words, for screen readers; "": the text describes it
    name: str = ""  # of the figure's file and of its ids in the page
    table: Table | None = None
    commands: Sequence[str] = ()  # that made figure and table
    folded: bool = False  # only the title is visible until it is opened


def to_html(title: str, sections: Sequence[Section], trail: Sequence[Link] = ()) -> str:
    """The page as one file that needs no network, with a trail of links to the pages above it."""
    sortable = any(section.table and section.table.sortable for section in sections)
    template = _templates().get_template("page.html")
    return template.render(head=HEAD, title=title, sections=sections, trail=trail, sortable=sortable)


@functools.cache
def _templates() -> "jinja2.Environment":
    jinja2 = import_extra("jinja2", "a page", "train")
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("bam_jax.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    svg = lambda section: style.svg(section.figure, section.name)
    made.filters |= {"joined": _joined, "marked": _mark_up, "svg": svg}
    return made


def _mark_up(escaped: str) -> str:
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The page as Markdown with figures from `figures/NAME.png`."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *([_joined(section.text)] if section.text else [])]
        parts += ["\n".join(f"- {_marked(item)}" for item in section.items)] if section.items else []
        parts += [f"![{section.title}](figures/{section.name}.png)"] if section.figure else []
        parts += [table_to_markdown(section.table)] if section.table else []
        parts += ["```\n" + "\n".join(section.commands) + "\n```"] if section.commands else []
    return "\n\n".join(parts) + "\n"


def table_to_markdown(table: Table) -> str:
    """A table as Markdown, numbers right-aligned."""
    rule = ["---", *("---" if wide else "---:" for wide in table.wide[1:])]
    rows = [map(_marked, row) for row in (table.head, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _marked(words: Words) -> str:
    if isinstance(words, Estimated):
        return f"{words.text} {words.below}"
    return f"[{words.text}]({urllib.parse.quote(words.to)})" if isinstance(words, Link) else words


def _text(words: Words) -> str:
    return words if isinstance(words, str) else words.text


def _joined(text: str) -> str:
    return " ".join(text.split())


class Skipped:
    """Collects a line for each part that a report skips, with the reason and its remedy."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A block that a UserError ends; a line then gives its purpose and the reason."""
        try:
            yield
        except UserError as error:
            self.lines.append(errors.one_line(f"left out: {what}: {error}"))

    def sections(self) -> list[Section]:
        return [Section("Left out, since it cannot be read", items=self.lines)] if self.lines else []

    def log(self) -> None:
        for line in self.lines:
            console.log(line)
