"""Compare runs: what each has measured, by method and length, with 95% intervals over seeds.

python -m bam_jax.compare runs/* [--by=encoding,model.layers] [--out=runs/compare]

Methods are found automatically from the differences between configurations; runs that differ only in their seed are one method.
The tables are printed, and written with figures as HTML, Markdown, CSV and LaTeX. Commands for missing measurements are listed.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments import frame
from bam_jax.report import comparison
from bam_jax.system import files


def main(argv: Sequence[str]) -> None:
    """Prints the tables and writes them into files."""
    parser = errors.Parser(prog="python -m bam_jax.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", help="folders of runs or of records, or folders that hold them")
    parser.add_argument("--by", help="fields that make a method, with commas (default: all that differ)")
    parser.add_argument("--out", type=files.local_path, default=Path("runs/compare"), help="folder (runs/compare)")
    given = parser.parse_args(argv)
    by = () if given.by is None else [name.strip() for name in given.by.split(",")]
    places = [place for pattern in given.runs for place in frame.matches(pattern)]
    measured = [place for place in places if frame.has_results(place)]
    runs = {place: frame.find_runs(place) for place in places}
    unmeasured = dict.fromkeys(
        errors.aliased(str(run)) for found in runs.values() for run in found if not frame.has_results(run)
    )
    cells = frame.results(measured or places)
    sys.stdout.write(comparison.write(cells, given.out, by, [*unmeasured]))
    for place in places:  # such as the tables of an earlier comparison
        if place not in measured and not runs[place]:
            print(f"left out {errors.aliased(str(place))}, which has no runs", file=sys.stderr)
    print(f"wrote {given.out / 'compare'}.html, .md, .csv and .tex", file=sys.stderr)


if __name__ == "__main__":
    errors.run(main)
