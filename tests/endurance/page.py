"""Generates the table and the sections of docs/reliability.md from the records."""

import importlib
import inspect
from pathlib import Path
from typing import Any

from endurance import figures

from bam_jax.system import jsonl

PAGE = figures.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: made by tests/endurance/run.py --page -->", "<!-- end -->"
COMMON = {"figure", "seed", "count", "failures", "examples", "seconds", "commit", "machine", "load", "crc32"}
"""Fields of every record."""
HEAD = "| | tried | failed | minutes | commit |\n| --- | ---: | ---: | ---: | --- |\n"


def generate(text: str, records: Path = figures.RECORDS) -> str:
    """The page's text with a new generated part: counts with missing parts, and failures, are bold."""
    rows, sections, machines = [], [], set()
    for name in figures.NAMES:
        module = importlib.import_module(f"endurance.{name}")
        figure, parts = module.FIGURE, list(jsonl.read(records / f"{name}.jsonl"))
        count, failed, seconds = (sum(part[field] for part in parts) for field in ("count", "failures", "seconds"))
        tried = f"{count:,}" if len(parts) >= figure.parts else f"**{count:,} of {figure.wanted:,}**"
        commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(part["commit"] for part in parts)) or "-"
        cells = [f"{tried} {figure.unit}", f"**{failed:,}**" if failed else "0", f"{seconds / 60:,.0f}", commits]
        rows.append(f"| [{name}](#{name}): {figure.what} | {' | '.join(cells)} |")
        machines |= {part["machine"] for part in parts}
        sections += [f"## {name}", inspect.cleandoc(module.__doc__), f"    python tests/endurance/run.py {name}"]
        sections += _results(parts)
    measured = f"Measured on {'; '.join(sorted(machines))}." if machines else "Nothing is measured yet."
    before, _, rest = text.partition(BEGIN)
    blocks = [f"{before}{BEGIN}", HEAD + "\n".join(rows), measured, *sections, f"{END}{rest.partition(END)[2]}"]
    return "\n\n".join(blocks)


def _results(parts: list[dict]) -> list[str]:
    """A table of the fields that are groups of values, summed over the parts, and a line for each part."""
    groups = {field: [] for part in parts for field, value in part.items() if isinstance(value, dict)}
    for field, found in groups.items():
        found += [part[field] for part in parts if field in part]
    table, lines = [], []
    if groups:
        numeric = [
            all(isinstance(x, int | float) for each in found for x in each.values()) for found in groups.values()
        ]
        table.append(f"| {'all parts' if len(parts) > 1 else ''} | {' | '.join(groups).replace('_', ' ')} |")
        table.append(f"| --- |{''.join(' ---: |' if each else ' --- |' for each in numeric)}")
        for name in dict.fromkeys(name for found in groups.values() for each in found for name in each):
            cells = [_total([each[name] for each in found if name in each]) for found in groups.values()]
            table.append(f"| {name} | {' | '.join(cells)} |")
    for part in parts:
        own = {field: value for field, value in part.items() if field not in COMMON | groups.keys()}
        more = "; ".join(f"{field.replace('_', ' ')}: {_format(value)}" for field, value in own.items())
        head = f"- part {part['seed'] + 1}, {part['count']:,}, failed {part['failures']}"
        lines.append(f"{head}: {more}" if more else head)
        lines += [f"  - failed: `{example[:300].replace('`', '')}`" for example in part["examples"]]
    return ["\n".join(block) for block in (table, lines) if block]


def _total(values: list) -> str:
    if all(isinstance(value, int | float) for value in values):
        return _format(sum(values))
    return "; ".join(dict.fromkeys(f"`{value}`" for value in values))


def _format(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
