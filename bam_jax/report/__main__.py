"""The command `python -m bam_jax.report FOLDER`; see `bam_jax.report`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import bam_jax.report
from bam_jax.experiments import experiment
from bam_jax.report import folder, site
from bam_jax.system import errors
from bam_jax.system.errors import UserError

EXPERIMENTS = Path("experiments")
CLAIMS = EXPERIMENTS / "claims.py"
PAPERS = ("bam_*.py", "cable_*.py")


def main(argv: Sequence[str]) -> None:
    """Writes a report.

    Raises:
        UserError: bad arguments, or nothing in the folder to report on.
    """
    parser = errors.Parser(
        prog="python -m bam_jax.report",
        description=bam_jax.report.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the sweep's --runs, such as runs or runs/quickstart")
    usual = ", ".join(str(EXPERIMENTS / each) for each in PAPERS)
    parser.add_argument("experiments", nargs="*", type=Path, help=f"of a site: experiment files with tables ({usual})")
    parser.add_argument("--scale", help="of a site: toy (the default) or paper")
    parser.add_argument("--out", type=Path, help="of a site: its folder (default: report, in that of the runs)")
    given = parser.parse_args(argv)
    if (given.folder / "experiment.json").exists():
        if given.experiments or given.scale or given.out:
            raise UserError(f"{given.folder} holds one experiment, whose report has no options; give the folder alone")
        print(f"wrote {folder.write(given.folder)}, with report.md and figures beside it")
        return
    known = [path for each in PAPERS for path in EXPERIMENTS.glob(each)]
    files = given.experiments or [path for path in known if experiment.load(path, runs=given.folder).tables]
    said = CLAIMS if CLAIMS.exists() and not given.experiments else None
    out = given.out or given.folder / "report"
    print(f"wrote {site.write(given.folder, files, out, scale=given.scale, said=said)}")


if __name__ == "__main__":
    errors.run(main)
