"""A paper's tables beside what our runs measured: ours | paper | difference | seeds (spread), as Markdown, CSV and HTML.

python -m bam_jax.tables experiments/cable_table*.py [--scale=paper] [--runs=runs] [--out=FOLDER]

What has not been measured, or only in part, is marked and never filled in.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments import experiment, results
from bam_jax.experiments.tables import sections, to_csv
from bam_jax.render import page
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError


def main(argv: Sequence[str]) -> None:
    """Prints the tables of experiments and writes them into files.

    Raises:
        UserError: bad arguments, no tables in the experiment, or a file that cannot be read.
    """
    parser = errors.Parser(prog="python -m bam_jax.tables", description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="+", metavar="experiment", help="Python files with get_experiment()")
    parser.add_argument("--scale", help="toy (the default) or paper")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--out", type=Path, help="folder of the files (default: tables, in that of the runs)")
    given = parser.parse_args(argv)
    loaded = {path: experiment.load(path, runs=given.runs, scale=given.scale) for path in given.experiments}
    for path, made in loaded.items():
        if not made.tables:
            raise UserError(f"{path} has no tables of a paper; python -m bam_jax.report says what its runs found")
    if any(column.evaluation for made in loaded.values() for table in made.tables for column in table.columns):
        results.there(given.runs)
    out = given.out or given.runs / "tables"
    for path, made in loaded.items():
        parts = list(sections(made, given.runs))
        name = f"{Path(path).stem}-{given.scale or experiment.SCALES[0]}"
        markdown = page.to_markdown(made.title, parts)
        out.mkdir(parents=True, exist_ok=True)
        texts = {"md": markdown, "html": page.to_html(made.title, parts), "csv": to_csv(made, given.runs)}
        for suffix, text in texts.items():
            files.write_atomically(out / f"{name}.{suffix}", text)
        sys.stdout.write(markdown)
        print(f"wrote {out / name}.md, .html and .csv", file=sys.stderr)


if __name__ == "__main__":
    errors.run(main)
