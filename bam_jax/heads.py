"""Show what each head of a trained model has learned and does.

    python -m bam_jax.heads --run=runs/x [--keys=64,32000] [--tokens=256]
    python -m bam_jax.heads --run=runs/x --passkey=64,1024,4096 [--prompts=5]
    python -m bam_jax.heads --run=runs/x --ablate=64,1024,4096 [--tokens=32768]

The first command prints a line for each head: the reach of its prior, its class according to BAM's shape, and the contributions
of content and position along held-out text. The second asks for passkeys and prints the heads that find them: the attention
weight of the next digit, and its lead over the other keys, which must grow as the logarithm of their number. The third removes
one head at a time, and prints by how much the loss of held-out text rises. Records are written to `heads.jsonl`,
`retrieval_heads.jsonl` and `ablation.jsonl` in the run's folder, except for quickstart, which comes with the package.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
from collections.abc import Sequence
from types import ModuleType

from bam_jax import config as configs
from bam_jax.analysis import ablation, heads, retrieval_heads
from bam_jax.system import console, programs
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, remote

PROMPTS = 5
"""Prompts at each length of --passkey."""


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.heads", description=__doc__)
    parser.add_argument("--run", required=True, help="a trained run here or in a bucket, or quickstart")
    parser.add_argument("--keys", default="", help="of the queries whose priors are measured, as in 64,32000")
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help=f"of held-out text (four training contexts; of --ablate {ablation.TOKENS})",
    )
    parser.add_argument("--passkey", metavar="LENGTHS", default="", help="of prompts whose key the heads are to find")
    parser.add_argument("--prompts", type=int, help=f"of --passkey, at each length ({PROMPTS})")
    parser.add_argument(
        "--ablate", metavar="LENGTHS", default="", help="of sequences whose loss is measured without each head"
    )
    configs.allow_option(parser)
    console.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    common = {"overrides": overrides, "allow": configs.allowed(given.allow), "progress": given.progress}
    _check_one(given)
    programs.keep()
    measured: ModuleType
    if given.passkey:
        prompts = PROMPTS if given.prompts is None else given.prompts
        measured = retrieval_heads
        records = retrieval_heads.measure(
            given.run, configs.lengths_of(given.passkey, "--passkey"), prompts=prompts, **common
        )
    elif given.ablate:
        measured = ablation
        records = ablation.measure(
            given.run, configs.lengths_of(given.ablate, "--ablate"), tokens=given.tokens, **common
        )
    else:
        measured = heads
        keys = configs.lengths_of(given.keys, "--keys") if given.keys else ()
        records = heads.measure(given.run, keys=keys, tokens=given.tokens, **common)
    print(measured.to_text(records))
    run = bundled.find(given.run)
    if run.parent != bundled.FOLDER:
        with remote.uploading(run):
            path = heads.write(run, records, measured.FILE)
        print(f"wrote {errors.aliased(str(path))}")


def _check_one(given: argparse.Namespace) -> None:
    """Raise UserError if options of several measurements are given."""
    if given.passkey and given.ablate:
        raise UserError(
            "--passkey asks which heads find a key, --ablate what text loses without each; give one of the two"
        )
    if given.passkey and (given.keys or given.tokens):
        raise UserError(
            "--keys and --tokens are of the priors, --passkey of the heads that find a key; give one of the two"
        )
    if given.ablate and given.keys:
        raise UserError("--keys are of the priors, --ablate has lengths of its own; give one of the two")
    if given.prompts is not None and not given.passkey:
        raise UserError(f"--prompts={given.prompts} are those of --passkey; give --passkey=LENGTHS as well, or neither")


if __name__ == "__main__":
    errors.run(main)
