"""Print our results beside the papers' tables.

python -m bam_jax.tables experiments/cable_table*.py [--scale=paper] [--runs=runs] [--out=FOLDER]
python -m bam_jax.tables experiments/cable_table1_perplexity.py --format=markdown    # to paste into a README
python -m bam_jax.tables experiments/headline.py --scale=small --format=figures --out=docs/figures

Columns are our value, its 95% interval over seeds, the paper's value, the difference, and every seed. The tables are written as
Markdown, CSV and HTML.

Cells that are not measured, or only in part, are marked and never filled in.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments import recorded_runs, results
from bam_jax.report import tables_page
from bam_jax.system import files
from bam_jax.system.errors import UserError


def main(argv: Sequence[str]) -> None:
    """Prints the tables of experiments and writes them into files."""
    parser = errors.Parser(prog="python -m bam_jax.tables", description=__doc__)
    parser.add_argument("experiments", nargs="+", metavar="experiment", help="Python files with get_experiment()")
    parser.add_argument("--scale", help="toy (the default), small or paper")
    parser.add_argument("--runs", type=files.local_path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument(
        "--records",
        type=files.local,
        metavar="FOLDER",
        help="what sweeps recorded (default: records/SCALE/ beside the experiment)",
    )
    parser.add_argument(
        "--out", type=files.local_path, help="folder of the files (default: tables, in that of the runs)"
    )
    formats = "page: all of it, also into files (the default); markdown: only the grids, no files; figures: curves as SVG files"
    parser.add_argument("--format", choices=("page", "markdown", "figures"), default="page", help=formats)
    given = parser.parse_args(argv)
    if given.records and not [*Path(given.records).glob(recorded_runs.PARTS)]:
        raise UserError(f"--records={given.records} has no records; give what a sweep has kept, or --records= for none")
    results.refuse_file(given.runs)
    if given.format == "markdown":
        if given.out:
            raise UserError(f"--format=markdown prints and writes no files; leave --out={given.out} out")
        print(
            "\n".join(tables_page.grids_to_markdown(given.experiments, given.runs, given.scale, given.records)), end=""
        )
        return
    out = given.out or given.runs / "tables"
    if given.format == "figures":
        drawn = [*tables_page.draw(given.experiments, given.runs, out, given.scale, given.records)]
        if not drawn:
            raise UserError(
                f"no curve to draw in {' '.join(given.experiments)}: a curve needs two measured lengths of a row"
            )
        print("\n".join(f"wrote {path}" for path in drawn))
        return
    for path, markdown in tables_page.write(given.experiments, given.runs, out, given.scale, given.records):
        sys.stdout.write(markdown)
        print(f"wrote {path}.md, .html and .csv", file=sys.stderr)


if __name__ == "__main__":
    errors.run(main)
