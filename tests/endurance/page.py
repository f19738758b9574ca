"""The table of docs/reliability.md, made from the records and from nothing else."""

from pathlib import Path

from endurance import figures

from bam_jax.system import jsonl

PAGE = figures.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: made by tests/endurance/run.py --page -->", "<!-- end -->"
USUAL = {"figure", "seed", "count", "failures", "examples", "seconds", "commit", "machine", "load", "crc32"}
"""Fields that every record has."""
HEAD = "| | tried | failed | minutes | commit |\n| --- | ---: | ---: | ---: | --- |"


def table(records: Path = figures.RECORDS) -> str:
    """A row for each figure; a figure of which parts are missing, and what failed, is bold.

    Args:
        records: the folder of the records.
    """
    rows, notes, machines = [], [], set()
    for name in figures.NAMES:
        figure, found = figures.find(name), list(jsonl.read(records / f"{name}.jsonl"))
        count, failed = (sum(record[field] for record in found) for field in ("count", "failures"))
        tried = f"{count:,}" if len(found) >= figure.parts else f"**{count:,} of {figure.wanted:,}**"
        said = f"**{failed:,}**" if failed else "0"
        commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(record["commit"] for record in found)) or "-"
        minutes = f"{sum(record['seconds'] for record in found) / 60:,.0f}"
        rows.append(f"| [{name}](#{name}): {figure.what} | {tried} {figure.unit} | {said} | {minutes} | {commits} |")
        notes.append(f"## {name}\n\n{_details(name, found)}")
        machines |= {record["machine"] for record in found}
    on = f"Measured on {'; '.join(sorted(machines))}." if machines else "Nothing is measured yet."
    return "\n".join([HEAD, *rows, "", on, "", "\n\n".join(notes)])


def _details(name: str, found: list[dict]) -> str:
    """The module's own words, the command, and the numbers of each record."""
    module = __import__(f"endurance.{name}", fromlist=["FIGURE"])
    words = "\n".join(line.strip() for line in module.__doc__.strip().splitlines())
    lines = [words, "", f"    python tests/endurance/run.py {name}"]
    if found:
        lines += ["", *_tables(found)]
    for record in found:
        more = "; ".join(f"{field.replace('_', ' ')}: {_said(value)}" for field, value in _own(record, found))
        lines.append(
            f"- part {record['seed'] + 1}, {record['count']:,}, failed {record['failures']}{': ' if more else ''}{more}"
        )
        lines += [f"  - failed: `{example[:300].replace('`', '')}`" for example in record["examples"]]
    return "\n".join(lines)


def _grouped(found: list[dict]) -> dict[str, list[dict]]:
    """The fields that are groups of values, with those of every part."""
    fields = {field: None for record in found for field, value in record.items() if isinstance(value, dict)}
    return {field: [record[field] for record in found if field in record] for field in fields}


def _own(record: dict, found: list[dict]) -> list[tuple[str, object]]:
    """The fields of a part that no table has."""
    return [(field, value) for field, value in record.items() if field not in USUAL | _grouped(found).keys()]


def _tables(found: list[dict]) -> list[str]:
    """A table of the groups of values: a column each, numbers added up over the parts."""
    groups = _grouped(found)
    if not groups:
        return []
    names = dict.fromkeys(name for parts in groups.values() for part in parts for name in part)
    lines = [
        f"| {'all parts' if len(found) > 1 else ''} | {' | '.join(field.replace('_', ' ') for field in groups)} |",
        f"| --- |{''.join(' --- |' if _worded(parts) else ' ---: |' for parts in groups.values())}",
    ]
    for name in names:
        cells = ([part[name] for part in parts if name in part] for parts in groups.values())
        lines.append(f"| {name} | {' | '.join(_added(values) for values in cells)} |")
    return [*lines, ""]


def _worded(parts: list[dict]) -> bool:
    return any(isinstance(value, str) for part in parts for value in part.values())


def _added(values: list) -> str:
    """Values of all parts as one: numbers are added up, words stand as they are."""
    if all(isinstance(value, int | float) for value in values):
        return _said(sum(values))
    return "; ".join(dict.fromkeys(f"`{value}`" for value in values))


def _said(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def made(text: str, records: Path = figures.RECORDS) -> str:
    """The page with the table of today.

    Args:
        text: of the page.
        records: the folder of the records.
    """
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{rest.partition(END)[2]}"


def write() -> None:
    """Writes the table into the page."""
    PAGE.write_text(made(PAGE.read_text()))
