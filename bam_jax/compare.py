"""Compare runs: what each has measured, by method and length, with 95% intervals over seeds.

python -m bam_jax.compare runs/* [--by=encoding,model.layers] [--out=runs/compare]

A method is what differs between the configurations, found automatically; runs that differ in their seed alone count together.
The tables are printed, and written with their figures as HTML, Markdown, CSV and LaTeX. Commands for what is missing are listed.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.evals import records
from bam_jax.experiments.frame import results
from bam_jax.report import comparison
from bam_jax.system import files
from bam_jax.training import run_folder


def main(argv: Sequence[str]) -> None:
    """Prints the tables and writes them into files."""
    parser = errors.Parser(prog="python -m bam_jax.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", help="folders of runs or of records, or folders that hold them")
    parser.add_argument("--by", help="fields that make a method, with commas (default: all that differ)")
    parser.add_argument("--out", type=files.local_path, default=Path("runs/compare"), help="folder (runs/compare)")
    given = parser.parse_args(argv)
    by = given.by.split(",") if given.by else ()
    unmeasured = [run for run in given.runs if _is_unmeasured(Path(run))]
    frame = results([run for run in given.runs if run not in unmeasured] or given.runs)
    sys.stdout.write(comparison.write(frame, given.out, by, unmeasured))
    print(f"wrote {given.out / 'compare'}.html, .md, .csv and .tex", file=sys.stderr)


def _is_unmeasured(run: Path) -> bool:
    return (run / run_folder.CONFIG).exists() and not (run / records.RESULTS).exists()


if __name__ == "__main__":
    errors.run(main)
