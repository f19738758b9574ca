"""Measure what the heads of a trained model do.

    python -m bam_jax.heads --run=runs/x [--keys=64,32000] [--tokens=256]

Prints a line for each head, and writes `heads.jsonl` into the run's folder, unless that is quickstart, which comes with the
code: how far each head's prior reaches, what BAM's shapes make of it, and what content and position add along a held-out text.
"""

from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.analysis.heads import measure, to_text, write
from bam_jax.system import console, errors


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: see `measure`.
    """
    parser = errors.Parser(prog="python -m bam_jax.heads", description=__doc__)
    parser.add_argument("--run", required=True, help="the folder of a trained run, or quickstart")
    parser.add_argument("--keys", default="", help="of the queries whose priors are measured, as in 64,32000")
    parser.add_argument("--tokens", type=int, default=0, help="of held-out text (four training contexts)")
    configs.allow_option(parser)
    console.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    keys = configs.lengths_of(given.keys, "--keys") if given.keys else ()
    allow = configs.allowed(given.allow)
    records = measure(
        given.run, keys=keys, tokens=given.tokens, overrides=overrides, allow=allow, progress=given.progress
    )
    print(to_text(records))
    if Path(given.run).exists():  # else it is a model that comes with the package
        print(f"wrote {write(Path(given.run), records)}")


if __name__ == "__main__":
    errors.run(main)
