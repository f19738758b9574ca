"""The figures of reliability: how many cases of each fault there are, their records, and the page that is made of them."""

import dataclasses
import importlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bam_jax.system import git, jsonl
from bam_jax.system.machine import machine

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"


class Unavailable(Exception):
    """This machine cannot measure a figure; the message says why."""


@dataclasses.dataclass
class Outcome:
    """A measured part: its cases, a line for each failure, and other fields of its record."""

    count: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, case, wrong):
        """Counts a case, and fails it if something is wrong."""
        self.count += 1
        if wrong:
            self.failures.append(f"{case}: {wrong}")


@dataclasses.dataclass(frozen=True)
class Figure:
    """How many cases there are in all, of a part, which writes one record, and of the short form."""

    module: str  # with the harness, which has the figure's name
    unit: str
    wanted: int
    part: int
    short: int

    @property
    def parts(self):
        return -(-self.wanted // self.part)


FIGURES = {
    "configurations": Figure("configurations", "configurations", 10_000, part=1000, short=30),
    "malformed_files": Figure("damaged", "files", 2000, part=250, short=31),
    "malformed_runs": Figure("opened", "runs", 500, part=100, short=6),
    "flipped": Figure("damaged", "bytes", 3000, part=300, short=34),
    "full_disk": Figure("disturbed", "places", 330, part=30, short=2),
    "bombs": Figure("limited", "inputs", 14, part=14, short=1),
    "out_of_memory": Figure("limited", "commands", 49, part=12, short=1),
    "memory": Figure("limited", "steps", 50_000, part=50_000, short=1000),
    "strangers": Figure("opened", "runs", 400, part=100, short=6),
    "hostile": Figure("opened", "runs", 1120, part=140, short=10),
    "kills": Figure("disturbed", "kills", 550, part=50, short=2),
    "interruptions": Figure("disturbed", "interruptions", 184, part=20, short=1),
    "op": Figure("op", "configurations", 300, part=75, short=15),
}


def harness(name):
    """What measures so many cases of a seed, the same each time, in an empty folder: `measured(seed, count, folder)`."""
    return getattr(importlib.import_module(f"endurance.{FIGURES[name].module}"), name)


def summary(name):
    return harness(name).__doc__.rstrip(".")


def measure(name, figure, measured, log, records=RECORDS, parts=None):
    """Measures the parts that have no record yet, or those of them that are named; returns the number of failures."""
    records.mkdir(parents=True, exist_ok=True)
    path, failed = records / f"{name}.jsonl", 0
    known = {record["seed"] for record in jsonl.read(path)}
    for seed in range(figure.parts):
        if seed in known or (parts is not None and seed not in parts):
            continue
        start, commit, folder = time.monotonic(), git.describe(), Path(tempfile.mkdtemp(prefix=f"{name}-"))
        try:
            outcome = measured(seed, min(figure.part, figure.wanted - seed * figure.part), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if git.describe() != commit:
            raise Unavailable(f"the code was changed from {commit} to {git.describe()}; measure a clone of it")
        host, failures = machine(), outcome.failures
        record = {
            "figure": name,
            "seed": seed,
            "count": outcome.count,
            "failures": len(failures),
            "examples": failures[:5],
            **outcome.more,
            "seconds": round(time.monotonic() - start, 1),
            "commit": commit,
            "machine": f"{host['processor']}, {host['cores']} cores",
            "load": round(os.getloadavg()[0], 1),  # other work on the machine shows in the seconds
        }
        jsonl.append(path, record)
        log(f"{name}: part {seed + 1} of {figure.parts}, {outcome.count} {figure.unit}, {len(failures)} failed")
        for failure in failures[:5]:
            log(f"{name}:   {failure}")
        failed += len(failures)
    return failed


COMMON = {"figure", "seed", "count", "failures", "examples", "seconds", "commit", "machine", "load", "crc32"}
"""Fields of every record."""
HEAD = "| | tried | failed | minutes | commit |\n| --- | ---: | ---: | ---: | --- |\n"


BLOCK = re.compile(r"(<!-- (\w+): made by tests/endurance/run.py --page -->\n\n).*?(\n*<!-- end -->)", re.DOTALL)


def generate(text, records=RECORDS):
    """The page's text with new tables: counts with missing parts, and failures, are bold."""
    rows, blocks, machines = [], {}, set()
    for name, figure in FIGURES.items():
        parts = list(jsonl.read(records / f"{name}.jsonl"))
        count, failed, seconds = (sum(part[field] for part in parts) for field in ("count", "failures", "seconds"))
        tried = f"{count:,}" if len(parts) >= figure.parts else f"**{count:,} of {figure.wanted:,}**"
        commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(part["commit"] for part in parts)) or "-"
        cells = [f"{tried} {figure.unit}", f"**{failed:,}**" if failed else "0", f"{seconds / 60:,.0f}", commits]
        rows.append(f"| [{name}](#{name}): {summary(name)} | {' | '.join(cells)} |")
        machines |= {part["machine"] for part in parts}
        blocks[name] = "\n\n".join(_results(parts))
    measured = f"Measured on {'; '.join(sorted(machines))}." if machines else "Nothing is measured yet."
    blocks["figures"] = HEAD + "\n".join(rows) + f"\n\n{measured}"
    return BLOCK.sub(lambda found: found[1] + blocks[found[2]] + found[3], text)


def _results(parts):
    """A table of the fields that are groups of values, summed over the parts, and a line for each part."""
    groups = {field: [] for part in parts for field, value in part.items() if isinstance(value, dict)}
    for field, found in groups.items():
        found += [part[field] for part in parts if field in part]
    table, lines = [], []
    if groups:
        numeric = [_are_numbers(x for each in found for x in each.values()) for found in groups.values()]
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


def _are_numbers(values):
    return all(isinstance(value, int | float) for value in values)


def _total(values):
    return _format(sum(values)) if _are_numbers(values) else "; ".join(dict.fromkeys(f"`{value}`" for value in values))


def _format(value):
    return f"{value:,}" if isinstance(value, int) else str(value)
