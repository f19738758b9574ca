"""Measure what the heads of a trained model do.

    python -m bam_jax.heads --run=runs/x [--keys=64,32000] [--tokens=256]
    python -m bam_jax.heads --run=runs/x --passkey=64,1024,4096 [--prompts=5]

The first prints a line for each head: how far its prior reaches, what BAM's shapes make of it, and what content and position
add along a held-out text. The second asks for passkeys, and prints the heads that find them: the weight of the digit that comes
next, and its lead over the other keys, which must grow as the logarithm of their number. Records go into the run's folder,
`heads.jsonl` and `retrieval_heads.jsonl`, unless that is quickstart, which comes with the code.
"""

from collections.abc import Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.analysis import heads, retrieval_heads
from bam_jax.system import console, errors
from bam_jax.system.errors import UserError

PROMPTS = 5
"""At each length of --passkey."""


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: arguments of both measurements; see `heads.measure` and `retrieval_heads.measure`.
    """
    parser = errors.Parser(prog="python -m bam_jax.heads", description=__doc__)
    parser.add_argument("--run", required=True, help="the folder of a trained run, or quickstart")
    parser.add_argument("--keys", default="", help="of the queries whose priors are measured, as in 64,32000")
    parser.add_argument("--tokens", type=int, default=0, help="of held-out text (four training contexts)")
    parser.add_argument("--passkey", metavar="LENGTHS", default="", help="of prompts whose key the heads are to find")
    parser.add_argument("--prompts", type=int, help=f"of --passkey, at each length ({PROMPTS})")
    configs.allow_option(parser)
    console.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    allow = configs.allowed(given.allow)
    if given.passkey:
        if given.keys or given.tokens:
            raise UserError(
                "--keys and --tokens are of the priors, --passkey of the heads that find a key; give one of the two"
            )
        prompts = PROMPTS if given.prompts is None else given.prompts
        asked = configs.lengths_of(given.passkey, "--passkey")
        records = retrieval_heads.measure(
            given.run, asked, prompts=prompts, overrides=overrides, allow=allow, progress=given.progress
        )
        print(retrieval_heads.to_text(records))
        name = retrieval_heads.FILE
    else:
        if given.prompts is not None:
            raise UserError(
                f"--prompts={given.prompts} are those of --passkey; give --passkey=LENGTHS as well, or neither"
            )
        keys = configs.lengths_of(given.keys, "--keys") if given.keys else ()
        records = heads.measure(
            given.run, keys=keys, tokens=given.tokens, overrides=overrides, allow=allow, progress=given.progress
        )
        print(heads.to_text(records))
        name = heads.FILE
    if Path(given.run).exists():  # else it is a model that comes with the package
        print(f"wrote {heads.write(Path(given.run), records, name)}")


if __name__ == "__main__":
    errors.run(main)
