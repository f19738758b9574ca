"""Sections of text, figures and tables as one self-contained HTML page and as Markdown."""

import dataclasses
import html
import re
from collections.abc import Sequence

from bam_jax import drawing
from bam_jax.drawing import Figure

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b1f24; --soft: #5b6470; --line: #d5dade; --page: #ffffff; --tint: #f3f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --soft: #9aa4af; --line: #3a4149; --page: #14171a; --tint: #1e2328; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 80rem; background: var(--page);
  color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
section { border-top: 1px solid var(--line); padding: 1.5rem 0; }
p, ul { max-width: 44rem; margin: 0 0 .7rem; }
ul { padding-left: 1.2rem; }
.pair { display: grid; gap: 1.25rem; align-items: start; margin: 1rem 0;
  grid-template-columns: minmax(0, 1fr); }
@media (min-width: 68rem) { .pair.both { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); } }
figure { margin: 0; }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
td.wide { white-space: normal; text-align: left; min-width: 14rem; }
tr.part td { color: var(--soft); } tr.part td:first-child { padding-left: 1.4rem; }
code { font: .85em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--tint); padding: .6rem .8rem; margin: .5rem 0 0; overflow-x: auto; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --tint: #f3f3f3; }
  body { font-size: 9.5pt; max-width: none; padding: 0; }
  figure, pre, tr { break-inside: avoid; } h2, h2 + p { break-after: avoid; }
  .pair.both { grid-template-columns: minmax(0, 1fr); }
  svg { max-width: 28rem; } .scroll { overflow: visible; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  table { font-size: 7.5pt; }
}
"""


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as they are printed; a row whose first cell begins with a space is part of a row above."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        title: its heading.
        text: a paragraph; `code` stands in backticks, line breaks mean nothing.
        items: the points of a list after it.
        figure: drawn beside the table.
        name: of the figure's file and of its ids in the page.
        table: the figure's numbers.
        commands: what made them, as a person would type it.
    """

    title: str
    text: str = ""
    items: Sequence[str] = ()
    figure: Figure | None = None
    name: str = ""
    table: Table | None = None
    commands: Sequence[str] = ()


def to_html(title: str, sections: Sequence[Section]) -> str:
    """The page in one file that needs no network; its drawings follow the reader's light or dark colours."""
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, whose figures are the files `figures/NAME.png`."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *([_joined(section.text)] if section.text else [])]
        parts += ["\n".join(f"- {item}" for item in section.items)] if section.items else []
        parts += [f"![{section.title}](figures/{section.name}.png)"] if section.figure else []
        if section.table:
            rule = ["---", *["---:"] * (len(section.table.head) - 1)]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in (section.table.head, rule, *section.table.rows)))
        parts += ["```\n" + "\n".join(section.commands) + "\n```"] if section.commands else []
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    parts = [
        f"<h2>{html.escape(section.title)}</h2>",
        *([f"<p>{_inline(section.text)}</p>"] if section.text else []),
    ]
    if section.items:
        parts.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in section.items) + "</ul>")
    pair = []
    if section.figure:
        svg = drawing.svg(section.figure, section.name)
        pair.append(f'<figure aria-label="{html.escape(section.title)}">{svg}</figure>')
    if section.table:
        pair.append(f'<div class="scroll">{_table(section.table)}</div>')
    if pair:
        parts.append(f'<div class="pair{" both" if len(pair) == 2 else ""}">{"".join(pair)}</div>')
    if section.commands:
        parts.append(f"<pre><code>{html.escape(chr(10).join(section.commands))}</code></pre>")
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.head)
    rows = []
    for row in table.rows:
        cells = "".join(f"<td{' class=wide' if len(cell) > 40 else ''}>{_inline(cell.strip())}</td>" for cell in row)
        rows.append(f"<tr{' class=part' if row[0].startswith(' ') else ''}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(_joined(text)))


def _joined(text: str) -> str:
    return " ".join(text.split())
