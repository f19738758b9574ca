"""Write HTML pages about your runs and experiments."""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence
from pathlib import Path

import bam_jax.report
from bam_jax.experiments.experiment_json import DESCRIPTION
from bam_jax.report import folder_page, site
from bam_jax.system import files
from bam_jax.system.errors import UserError


def main(argv: Sequence[str]) -> None:
    """Writes a report."""
    parser = errors.Parser(prog="python -m bam_jax.report", description=bam_jax.report.__doc__)
    parser.add_argument("folder", type=files.local_path, help="the sweep's --runs, such as runs or runs/quickstart")
    parser.add_argument("experiments", nargs="*", type=Path, help="of a site: experiment files, whose tables get pages")
    parser.add_argument(
        "--scale", help="of experiment files: toy, small or paper, the size at which their tables are read"
    )
    parser.add_argument(
        "--out", type=files.local_path, help="of a site: its folder (default: report, in that of the runs)"
    )
    given = parser.parse_args(argv)
    if (given.folder / DESCRIPTION).exists():
        if given.experiments or given.scale or given.out:
            raise UserError(f"{given.folder} holds one experiment, whose report has no options; give the folder alone")
        print(f"wrote {folder_page.write(given.folder)}, with report.md and figures beside it")
        return
    if given.scale and not given.experiments:
        raise UserError(
            f"--scale={given.scale} is that of experiment files; give them after the folder, such as experiments/bam_*.py"
        )
    out = given.out or given.folder / "report"
    print(f"wrote {site.write(given.folder, given.experiments, out, scale=given.scale)}")


if __name__ == "__main__":
    errors.run(main)
