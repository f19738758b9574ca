"""Test the papers' claims against measured results.

python -m bam_jax.claims experiments/claims/papers.toml [--scale=small] [--runs=runs] [--out=docs/claims.md]

It prints a Markdown page with a verdict for each claim, computed from cells of the papers' tables, seed by seed. `--format=csv`
prints a line for each criterion. The toy scale gives no verdicts.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
from collections.abc import Sequence
from pathlib import Path

from bam_jax.experiments import claims, experiment, results
from bam_jax.report import claims_page
from bam_jax.system import files


def main(argv: Sequence[str]) -> None:
    """Prints the page, or writes it."""
    parser = errors.Parser(prog="python -m bam_jax.claims", description=__doc__)
    parser.add_argument("claims", type=Path, help="a TOML file of claims")
    # The largest scale below the papers' own.
    default = experiment.SCALES[-2]
    parser.add_argument(
        "--scale", choices=experiment.SCALES, default=default, help=f"{' or '.join(experiment.SCALES)} ({default})"
    )
    parser.add_argument("--runs", type=files.local_path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="markdown or csv (markdown)")
    parser.add_argument("--out", type=files.local_path, help="file to write (default: print)")
    given = parser.parse_args(argv)
    results.refuse_file(given.runs)
    as_csv = given.format == "csv"
    if given.out:
        head = ",".join(claims_page.CSV_HEAD) if as_csv else f"# {claims.load(given.claims).file.title}"
        files.keep_other(given.out, f"{head}\n")
        if (
            given.out.exists()
            and not as_csv
            and claims_page.of_scale(given.scale).encode() not in files.read_small(given.out)
        ):
            raise errors.UserError(f"{given.out} is of another scale than --scale={given.scale}; give another path")
    judged = claims_page.judge(given.claims, given.runs, given.scale)
    text = claims_page.to_csv(judged) if as_csv else claims_page.to_markdown(judged, given.scale)
    if given.out:
        files.write_atomically(given.out, text)
        print(f"wrote {given.out}", file=sys.stderr)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    errors.run(main)
