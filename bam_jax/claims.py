"""Hold the papers' claims against what our runs measured.

python -m bam_jax.claims experiments/claims.py [--scale=paper] [--runs=runs] [--out=docs/claims.md]

It prints a page of Markdown. Each claim is checked against cells of the papers' tables and figures, as `bam_jax.tables` finds
them in the runs, seed by seed: it holds, is contradicted, or the seeds do not tell. No verdict is written by hand. The toy scale
gives none.
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
    """Prints the page, or writes it.

    Raises:
        UserError: bad arguments, a file without claims, or a run that cannot be read.
    """
    parser = errors.Parser(prog="python -m bam_jax.claims", description=__doc__)
    parser.add_argument("claims", type=Path, help="a Python file with get_claims() and NOTES, beside the experiments")
    # The greatest scale below the papers' own.
    default = experiment.SCALES[-2]
    parser.add_argument(
        "--scale", choices=experiment.SCALES, default=default, help=f"{' or '.join(experiment.SCALES)} ({default})"
    )
    parser.add_argument("--runs", type=files.local_path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--out", type=files.local_path, help="file to write (default: print)")
    given = parser.parse_args(argv)
    results.refuse_file(given.runs)
    if given.out:
        files.keep_other(given.out, f"# {claims.load(given.claims).title}\n")
        if given.out.exists() and claims_page.of_scale(given.scale).encode() not in files.read_small(given.out):
            raise errors.UserError(f"{given.out} is of another scale than --scale={given.scale}; give another path")
    text = claims_page.to_markdown(given.claims, given.runs, given.scale)
    if given.out:
        files.write_atomically(given.out, text)
        print(f"wrote {given.out}", file=sys.stderr)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    errors.run(main)
