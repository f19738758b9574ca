"""Generate text with a trained model.

    python -m bam_jax.generate --run=quickstart --prompt="the module defines" [--tokens=200 --temperature=0.8 --seed=0]
    python -m bam_jax.generate --run=runs/x --file=story.txt --stop="The end"

RUN is the folder of a run or of converted or exported weights, the name of a model that comes with the package, or a model that
`python -m bam_jax.convert` reads: a Hugging Face folder, a .gguf file, or hf:ORGANISATION/NAME on the hub. The text is streamed
to stdout, and its speed is logged to stderr. `--config.a.b=value` changes the model, as in evaluate.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bam_jax import config as configs
from bam_jax.analysis.language_model import load
from bam_jax.models.generate import CHUNK, Kept, prune_option, tolerance
from bam_jax.models.sampling import Sampling
from bam_jax.parallel import sharding
from bam_jax.system import console, files, programs
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, run_folder


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m bam_jax.generate", description=__doc__)
    parser.add_argument(
        "--run", required=True, help="a run here or in a bucket, or quickstart, which comes with the package"
    )
    parser.add_argument("--prompt", help="the text to go on with; <KEY> and <END> are those of the tokenizer char")
    parser.add_argument("--file", help="a file with that text; -: standard input")
    parser.add_argument("--tokens", type=int, default=200, help="that are written, at most (200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the most likely token (0.8)")
    parser.add_argument("--top-k", type=int, default=0, help="draw among the k most likely tokens (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw among those that make up this probability (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument("--stop", action="append", default=[], help="end before this text; may be given several times")
    prune_option(parser)
    configs.allow_option(parser)
    given, overrides = configs.parse(argv, parser)
    sampling = Sampling(given.temperature, given.top_k, given.top_p)
    if not 0 <= given.seed < 2**32:
        raise UserError(f"--seed={given.seed} must be between 0 and {2**32 - 1}")
    if (given.prompt is None) == (given.file is None):
        raise UserError("give --prompt=TEXT or --file=PATH to go on with, one of the two")
    prune_cache = tolerance(given.prune_cache)
    prompt = _read(given.file) if given.prompt is None else given.prompt
    programs.keep()
    model = load(given.run, overrides=overrides, allow=given.allow)
    model.decoder.prune_cache = prune_cache
    if model.step < (steps := model.config.steps):
        run = bundled.find(given.run)
        state = "is being trained" if run_folder.is_claimed(run) else "was stopped"
        console.log(f"{run} {state}: this is its checkpoint of step {model.step:,} of {steps:,}")
    if lacking := model.lacks(prompt):
        console.log(lacking)
    length = len(model.ids(prompt))
    if length > CHUNK:
        console.log(f"reading {length:,} tokens of prompt")
    if prune_cache != "off":
        with sharding.active(model.mesh):
            share = Kept(model.decoder, length + given.tokens).share()
        console.log(
            f"the cache keeps {share:.1%} of all keys" + (", and more where a check fails" if share < 1 else "")
        )
    bar = console.progress(length, unit="token", label="prompt", show=None if length > CHUNK else False)
    start, times = time.perf_counter(), []

    def timed(tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            bar.close()
            times.append(time.perf_counter() - start)
            yield token

    tokens = timed(model.tokens(prompt, given.tokens, sampling=sampling, seed=given.seed, progress=bar.update))
    for piece in model.text(tokens, given.stop):
        print(piece, end="", flush=True)
    print()
    speed = f"{len(times):,} tokens after {length:,} of prompt"
    if len(times) > 2:  # the first includes the prompt and its compilation, the second the compilation of a step
        rate = (len(times) - 2) / (times[-1] - times[1])
        speed += f"; {times[1]:.1f} s until the second token, compilation included, then {rate:,.0f} a second"
    console.log(speed)


def _read(path: str) -> str:
    if path != "-" and not Path(path).is_file():
        raise UserError(f"--file={path} is not a file; give the path of a text, or - for standard input")
    try:
        raw = sys.stdin.buffer.read() if path == "-" else files.read_small(path)
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"--file={path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it"
        ) from error


if __name__ == "__main__":
    errors.run(main)
