"""Draw the papers' figures of trained models.

    python -m bam_jax.figures NAME --run=runs/x [--run=runs/y] [--out=figures/x]

NAME: attention (BAM's figure 4), biases (CABLE's 4 and 8 to 15), classes and priors (BAM's 1), coupling (Z along a text),
scales (BAM's 14), scatter (17, 18).
It writes OUT.png and OUT.svg, and replaces only files that it wrote itself.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.analysis.figures import NAMES, draw
from bam_jax.render import style
from bam_jax.system import files, programs
from bam_jax.system.errors import UserError
from bam_jax.training import bundled


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.figures", description=__doc__)
    parser.add_argument("name", help=", ".join(sorted(NAMES)))
    parser.add_argument(
        "--run",
        action="append",
        required=True,
        help="a trained run here or in a bucket, or quickstart; may be given again",
    )
    parser.add_argument("--label", action="append", help="of each run, in their order (their folders' names)")
    parser.add_argument("--length", type=int, default=0, help="tokens of what is drawn (the figure's own choice)")
    parser.add_argument(
        "--out", type=files.local_path, help="the files, without suffix (NAME in the first run's folder)"
    )
    configs.allow_option(parser)
    given = parser.parse_args(argv)
    folders = [bundled.find(run) for run in given.run]
    labels = given.label or [folder.resolve().name for folder in folders]
    if len(labels) != len(folders) or len({*labels}) < len(labels):
        raise UserError(
            f"{len(folders)} runs and the labels {files.shortened(labels)}: give each run a --label of its own"
        )
    runs = dict(zip(labels, folders, strict=True))
    own = folders[0] if Path(given.run[0]).exists() else Path()  # not into the package, for a model of the package
    out = given.out or own / given.name
    if out.suffix in style.SUFFIXES:
        out = out.with_suffix("")
    for suffix in style.SUFFIXES:
        style.keep_other(Path(f"{out}{suffix}"))
    programs.keep()
    figure = draw(given.name, runs, given.length, configs.allowed(given.allow))
    out.parent.mkdir(parents=True, exist_ok=True)
    style.save_both(figure, out)
    print(f"wrote {out}.png and {out}.svg")


if __name__ == "__main__":
    errors.run(main)
