"""The table of docs/reliability.md, made from the records and from nothing else."""

from pathlib import Path

from endurance import figures

from bam_jax.system import jsonl

PAGE = figures.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: made by tests/endurance/run.py --page -->", "<!-- end -->"
HEAD = "| | tried | failed | minutes | commit |\n| --- | ---: | ---: | ---: | --- |"


def table(records: Path = figures.RECORDS) -> str:
    """A row for each figure; what was tried less often than is wanted, and what failed, is bold.

    Args:
        records: the folder of the records.
    """
    rows, notes, machines = [], [], set()
    for name in figures.NAMES:
        figure, found = figures.find(name), list(jsonl.read(records / f"{name}.jsonl"))
        count, failed = (sum(record[field] for record in found) for field in ("count", "failures"))
        tried = f"{count:,}" if count >= figure.wanted else f"**{count:,} of {figure.wanted:,}**"
        said = f"**{failed:,}**" if failed else "0"
        commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(record["commit"] for record in found)) or "-"
        minutes = f"{sum(record['seconds'] for record in found) / 60:,.0f}"
        rows.append(f"| [{name}](#{name}): {figure.what} | {tried} {figure.unit} | {said} | {minutes} | {commits} |")
        notes.append(f"## {name}\n\n{_details(name, found)}")
        machines |= {record["machine"] for record in found}
    on = f"Measured on {', '.join(sorted(machines))}." if machines else "Nothing is measured yet."
    return "\n".join([HEAD, *rows, "", on, "", "\n\n".join(notes)])


def _details(name: str, found: list[dict]) -> str:
    """The module's own words, the command, and the numbers of each record."""
    module = __import__(f"endurance.{name}", fromlist=["FIGURE"])
    words = "\n".join(line.strip() for line in module.__doc__.strip().splitlines())
    lines = [words, "", f"    python tests/endurance/run.py {name}"]
    usual = {"figure", "seed", "count", "failures", "examples", "seconds", "commit", "machine", "load", "crc32"}
    if found:
        lines.append("")
    for record in found:
        more = "; ".join(
            f"{field.replace('_', ' ')}: {_said(value)}" for field, value in record.items() if field not in usual
        )
        lines.append(
            f"- part {record['seed'] + 1}, {record['count']:,}, failed {record['failures']}{': ' if more else ''}{more}"
        )
        lines += [f"  - failed: `{example[:300].replace('`', '')}`" for example in record["examples"]]
    return "\n".join(lines)


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(inner)}" for key, inner in value.items())
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
