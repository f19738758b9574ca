"""Measures the figures of reliability, and makes their table.

python tests/endurance/run.py                       # all of them, some hours; stopped, the same command goes on
python tests/endurance/run.py configurations bombs  # these alone
python tests/endurance/run.py --short               # few cases of each in a minute; leaves no record
python tests/endurance/run.py --page                # writes the tables of docs/reliability.md from the records
"""

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path[0] = str(Path(__file__).parents[1])

from endurance import figures, page  # noqa: E402
from endurance.figures import NAMES  # noqa: E402

from bam_jax.system import git  # noqa: E402
from bam_jax.system.errors import nearest  # noqa: E402


def main() -> None:
    """Measures the figures that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--short", action="store_true", help="few cases, no record")
    parser.add_argument("--parts", help="only these parts of a figure, as in 0,1: several processes share its work")
    parser.add_argument("--cases", type=int, help="of --short, so many cases instead")
    parser.add_argument(
        "--page", action="store_true", help="write the table of docs/reliability.md, and measure nothing"
    )
    asked = parser.parse_args()
    if asked.page:
        page.write()
        return
    for name in asked.names:
        if name not in NAMES:
            parser.error(f"unknown figure {name!r}; {nearest(name, NAMES)}")
    if not asked.short and str(git.describe()).endswith("-dirty"):
        parser.error("this code has changes that no commit holds; commit them, or measure a clone")
    failed = 0
    for name in asked.names or NAMES:
        figure = figures.find(name)
        count = (asked.cases or figure.short) if asked.short else figure.wanted
        time = "" if asked.short else f", about {figure.minutes} minutes in all"
        print(f"{name}: {figure.what}: {count:,} {figure.unit}{time}", flush=True)
        try:
            if not asked.short:
                parts = None if asked.parts is None else [int(part) for part in asked.parts.split(",")]
                failed += figures.measure(name, figure, lambda line: print(line, flush=True), parts=parts)
                continue
            with tempfile.TemporaryDirectory() as folder:
                outcome = figure.measure(0, count, Path(folder))
            print(
                f"{name}: {outcome.count} {figure.unit}, {len(outcome.failures)} failed {dict(outcome.more)}",
                flush=True,
            )
            for failure in outcome.failures:
                print(f"{name}:   {failure}")
            failed += len(outcome.failures)
        except figures.Unavailable as reason:
            print(f"{name}: not measured: {reason}", flush=True)
            failed += bool(asked.names)
        except Exception:  # a fault of the harness: the other figures are measured all the same
            traceback.print_exc()
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
