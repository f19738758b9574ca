"""Sections of text, figures and tables as a self-contained HTML page and as Markdown."""

import dataclasses
import html
import re
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

from bam_jax.render import style
from bam_jax.render.style import Figure

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --link: #0b5cad; --soft: #5b6470; --line: #d5dade; --page: #ffffff; --tint: #f3f5f7; --shade: #0004; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --link: #7fb5ee; --soft: #9aa4af; --line: #3a4149; --page: #14171a; --tint: #1e2328; --shade: #fff5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 80rem; background: var(--page);
  color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
section, details { border-top: 1px solid var(--line); padding: 1.5rem 0; }
details { border: none; padding: .3rem 0 1rem; } summary { cursor: pointer; }
summary h2 { display: inline; font-size: .95rem; }
nav { font-size: .9rem; margin: 0 0 .7rem; } a { color: var(--link); }
p, ul { max-width: 44rem; margin: 0 0 .7rem; }
ul { padding-left: 1.2rem; }
.pair { display: grid; gap: 1.25rem; align-items: start; margin: 1rem 0;
  grid-template-columns: minmax(0, 1fr); }
@media (min-width: 68rem) {
  .pair.both { display: flex; flex-wrap: wrap; } .pair.both > figure { flex: 0 0 34rem; }
  .pair.both > .scroll { flex: 0 1 auto; max-width: 100%; }  /* below the figure where it is wider than what is left */
}
figure { margin: 0; }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
@media (max-width: 40rem) { figure svg { min-width: 30rem; } }
.scroll, figure, pre { overflow-x: auto;  /* a shadow at the edge behind which it goes on */
  background: linear-gradient(to right, var(--page), var(--page)) left / 1rem 100%,
    linear-gradient(to left, var(--page), var(--page)) right / 1rem 100%,
    linear-gradient(to right, var(--shade), transparent) left / .8rem 100%,
    linear-gradient(to left, var(--shade), transparent) right / .8rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: .8rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; vertical-align: bottom; } tbody th { font-weight: 400; }
th:first-child { text-align: left; position: sticky; left: 0;
  background: var(--page); background-clip: padding-box; }
td small, th small { display: block; font-weight: 400; color: var(--soft); font-size: .85em; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
th button::before { content: "⇅"; content: "⇅" / ""; margin-right: .25em; font-weight: 400; color: var(--soft); }
[aria-sort=ascending] button::before { content: "↑"; content: "↑" / ""; color: inherit; }
[aria-sort=descending] button::before { content: "↓"; content: "↓" / ""; color: inherit; }
caption { position: relative; }  /* else what is unseen widens the page */
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
th.wide, td.wide { text-align: left; } td.wide { white-space: normal; min-width: 11rem; }
@media (max-width: 40rem) {  /* the first column leaves room for the numbers */
  th:first-child { white-space: normal; max-width: 9rem; } th.wide, td.wide { min-width: 9rem; }
}
tr.part > * { color: var(--soft); } tr.part th { padding-left: 1.4rem; }
code { font: .85em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { border-left: .2rem solid var(--line); padding: .6rem .8rem; margin: .5rem 0 0; }
@media print {
  :root { --ink: #000; --link: #000; --soft: #444; --line: #bbb; --page: #fff; --tint: #f3f3f3; }
  body { font-size: 9.5pt; max-width: none; padding: 0; }
  figure, pre, tr { break-inside: avoid; } h2, h2 + p { break-after: avoid; }
  .pair.both { display: grid; }
  details::details-content { content-visibility: visible; block-size: auto; } nav { display: none; }
  svg { max-width: 28rem; } .scroll, figure { overflow: visible; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details pre { break-inside: auto; columns: 3; font-size: 8pt; } th:first-child { position: static; }
  th button:focus-visible { outline: none; } th button::before { content: none; } table { font-size: 7.5pt; }
}
"""
SCRIPT = r"""
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], first = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    head.ariaSort = "none";
    button.onclick = () => {
      const order = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort];
      for (const each of heads) each.ariaSort = "none";
      head.ariaSort = order;
      const up = order === "ascending" ? 1 : -1;
      const words = row => row.cells[column].innerText.trim();
      const isNumber = /^[-+]?[\d.,]+(e[-+]?\d+)?(?![\w.,])/;
      const number = row => isNumber.test(words(row)) ? parseFloat(words(row).replaceAll(",", "")) : NaN;
      const compare = (a, b) => isNaN(number(a)) - isNaN(number(b)) ||  // what is no number comes last, either way
        (isNaN(number(a)) ? up * words(a).localeCompare(words(b)) : up * (number(a) - number(b)));
      const rows = order === "none" ? first : first.toSorted(compare);
      body.append(...rows);
    };
  });
}
"""
"""Makes buttons of the heads of a table, which sort by their column: down, up, as it was. Without it the page is whole and in
its own order, and its heads are words."""


class Link(NamedTuple):
    """Words that lead to another file, by its path from the page."""

    text: str
    to: str


class Estimated(NamedTuple):
    """A value, and in smaller letters below it how sure it is, such as its interval."""

    text: str
    below: str


type Words = str | Link | Estimated


WIDE = 30
"""Characters of a cell whose column is broken into lines."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as they are printed; the first of a row names it, and where that begins with a space is part of a row above."""

    head: Sequence[Words]
    rows: Sequence[Sequence[Words]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        title: its heading.
        text: a paragraph; `code` stands in backticks, **what matters** in asterisks, line breaks mean nothing.
        items: the points of a list after it.
        figure: drawn beside the table.
        shows: the figure in words, for those who do not see it; "": the text is.
        name: of the figure's file and of its ids in the page.
        table: the figure's numbers.
        commands: what made them, as a person would type it.
        folded: only the title is seen until it is opened; on paper all of it.
    """

    title: str
    text: str = ""
    items: Sequence[Words] = ()
    figure: Figure | None = None
    shows: str = ""
    name: str = ""
    table: Table | None = None
    commands: Sequence[str] = ()
    folded: bool = False


HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)
"""The first lines of every page; a file that lacks them is none of these pages."""


def to_html(title: str, sections: Sequence[Section], trail: Sequence[Link] = ()) -> str:
    """The page in one file that needs no network; its drawings follow the reader's light or dark colours.

    Args:
        title: of the page.
        sections: its parts.
        trail: the pages above it, first the topmost.
    """
    body = "\n".join(_section(section, f"part{number}") for number, section in enumerate(sections, start=1))
    above = f"<nav>{' / '.join(_inline(link) for link in trail)} /</nav>\n" if trail else ""
    script = f"<script>{SCRIPT}</script>\n" if "class=sortable" in body else ""
    return (
        f"{HEAD}<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{above}<h1>{html.escape(title)}</h1>\n{body}\n{script}</body>\n</html>\n"
    )


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, whose figures are the files `figures/NAME.png`."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *([_joined(section.text)] if section.text else [])]
        parts += ["\n".join(f"- {_marked(item)}" for item in section.items)] if section.items else []
        parts += [f"![{section.title}](figures/{section.name}.png)"] if section.figure else []
        if section.table:
            parts.append(table_to_markdown(section.table))
        parts += ["```\n" + "\n".join(section.commands) + "\n```"] if section.commands else []
    return "\n\n".join(parts) + "\n"


def table_to_markdown(table: Table) -> str:
    """A table alone as Markdown, with numbers at the right."""
    rule = ["---", *("---" if wide else "---:" for wide in _wide(table)[1:])]
    rows = [map(_marked, row) for row in (table.head, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _wide(table: Table) -> list[bool]:
    """A truth for each column: it holds words. A column has one alignment, so that its short cells stand below its long ones."""
    columns = zip(*table.rows, strict=True)
    return [any(len(_said(cell)) > WIDE for cell in column) for column in columns] or [False] * len(table.head)


def _section(section: Section, place: str) -> str:
    """A section, whose ids begin with its place."""
    parts = [f"<p>{_inline(section.text)}</p>"] if section.text else []
    if section.items:
        parts.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in section.items) + "</ul>")
    title, table = html.escape(section.title), f"{place}-table"
    pair = []
    if section.figure:
        said = f"{section.title}: {_joined(section.shows or section.text)}"
        drawing = style.svg(section.figure, section.name, said, table if section.table else "")
        pair.append(f"<figure {_scrolled(f'{title}: figure')}>{drawing}</figure>")
    if section.table:
        pair.append(
            f"<div class=scroll role=group {_scrolled(f'{title}: table')}>{_table(section.table, title, table)}</div>"
        )
    if pair:
        parts.append(f'<div class="pair{" both" if len(pair) == 2 else ""}">{"".join(pair)}</div>')
    if section.commands:
        code = html.escape("\n".join(section.commands))
        parts.append(f"<pre role=group {_scrolled(f'{title}: code')}><code>{code}</code></pre>")
    head, body = f"<h2>{title}</h2>", "\n".join(parts)
    if section.folded:
        return f"<details>\n<summary>{head}</summary>\n{body}\n</details>"
    return f"<section>\n{head}\n{body}\n</section>"


def _scrolled(name: str) -> str:
    """The attributes of a part that may be wider than the page: arrow keys move it, and its name is announced."""
    return f'tabindex="0" aria-label="{name}"'


def _table(table: Table, title: str, place: str) -> str:
    """A table with its title for those who listen, since the section's heading says it to those who see."""
    looks = [" class=wide" if each else "" for each in _wide(table)]
    rows = []
    for row in table.rows:
        first, *cells = (f"{look}>{_inline(cell)}" for look, cell in zip(looks, row, strict=True))
        whole = f'<th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in cells)}'
        rows.append(f"<tr{' class=part' if _said(row[0]).startswith(' ') else ''}>{whole}</tr>")
    heads = [_inline(cell) for cell in table.head]
    # Parts belong to the row above them, which a change of order would part them from; facts without heads have an order.
    sortable = len(table.rows) > 2 and any(heads) and not any("class=part" in row for row in rows)
    head = ""
    if any(heads):
        heads[0] = heads[0] or _unseen("row")
        columns = (f'<th scope="col"{look}>{words}</th>' for look, words in zip(looks, heads, strict=True))
        head = f"<thead><tr>{''.join(columns)}</tr></thead>"
    caption = f'<caption id="{place}-caption">{_unseen(title)}</caption>'
    body = f"{caption}{head}<tbody>{''.join(rows)}</tbody>"
    return f'<table id="{place}"{" class=sortable" if sortable else ""}>{body}</table>'


def _unseen(words: str) -> str:
    return f"<span class=unseen>{words}</span>"


def _inline(words: Words) -> str:
    if isinstance(words, Link):
        return f'<a href="{html.escape(urllib.parse.quote(words.to))}">{_inline(words.text)}</a>'
    if isinstance(words, Estimated):
        return f"{_inline(words.text)}<small>{_inline(words.below)}</small>"
    # Escaped first, so that no text of a run can bring tags of its own.
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(_joined(words)))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)


def _marked(words: Words) -> str:
    if isinstance(words, Estimated):
        return f"{words.text} {words.below}"
    return f"[{words.text}]({urllib.parse.quote(words.to)})" if isinstance(words, Link) else words


def _said(words: Words) -> str:
    return words if isinstance(words, str) else words.text


def _joined(text: str) -> str:
    return " ".join(text.split())
