"""Time the data loader.

    python -m benchmarks.loader_speed [--source=FOLDER]

Batches are made from a prepared folder or from generated documents (with lengths like web pages: log-normal, 700 tokens on
average), with each packing, in the process itself and ahead of time by worker processes. The tokens per second are compared
with the rate that a TPU v5e-8, one host, needs to train the 120M model.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import contextlib
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax.config import Config, DataConfig
from bam_jax.data import loader
from bam_jax.data.prepared import manifest, shards
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.system.errors import UserError

PARAMETERS = 95_963_904
"""The 120M model's parameters, without its embedding."""
FLOPS = 8 * 197e12
"""A v5e-8's peak in bfloat16, in floating-point operations per second."""
UTILISATION = 0.4
NEED = FLOPS * UTILISATION / (6 * PARAMETERS)
"""Tokens per second that training consumes, with 6 operations per parameter and token."""


def make_up(folder: Path, tokens: int, *, documents: int = 2**14, seed: int = 0) -> None:
    """Write a prepared folder of random bytes."""
    rng = np.random.default_rng(seed)
    lengths = (rng.lognormal(6, 1.05, max(tokens // 700, 1)) + 2).astype(int).tolist()
    byte = tokenizer("byte")
    finished: tuple[manifest.Shard, ...] = ()
    for number, some in enumerate(itertools.batched(lengths, documents)):
        writer = shards.ShardWriter(folder, "train", finished, number, "<u2")
        for length in some:
            writer.append(rng.integers(0, 255, length))
        finished = (*finished, writer.close())
    held_out = shards.ShardWriter(folder, "held_out", (), 0, "<u2").close()
    about = {"spec": "byte", "name": byte.name, "hash": byte.hash, "size": byte.size, "eos": byte.eos}
    splits = {"train": finished, "held_out": (held_out,)}
    manifest.Manifest({"source": "made up"}, ("text",), about, "<u2", splits, {}, None).write(folder)


def measure(config: Config, seconds: float) -> dict[str, Any]:
    """Make batches for a while."""
    start = time.perf_counter()
    made = find_tokenizer(config.data.tokenizer, config.data.sources())
    with contextlib.closing(loader.batches(config, made)) as batches:
        next(batches)
        opening = time.perf_counter() - start
        for _ in range(3 * config.data.workers):  # do not count batches that were made during startup
            next(batches)
        start, tokens, places = time.perf_counter(), 0, 0
        while (took := time.perf_counter() - start) < seconds:
            segment = next(batches)["segment"]
            tokens += int(np.count_nonzero(segment))
            places += segment.size
    data = config.data
    speed = {"tokens_per_second": tokens / took, "fill": tokens / places}
    return {"packing": data.packing, "workers": data.workers, "opening": opening} | speed


def main(argv: Sequence[str]) -> None:
    """Run the command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.loader_speed", description=__doc__)
    parser.add_argument("--source", help="a prepared folder (made-up documents)")
    parser.add_argument("--tokens", type=int, default=2 * 10**7, help="of made-up documents (20 million)")
    parser.add_argument("--context", type=int, default=512, help="tokens of a row (512)")
    parser.add_argument("--batch", type=int, default=128, help="rows (128)")
    parser.add_argument("--workers", default="0,2", help="worker processes, with commas (0,2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    given = parser.parse_args(argv)
    if given.tokens <= 0 or given.seconds <= 0:
        raise UserError(f"--tokens={given.tokens} and --seconds={given.seconds} must be above 0")
    try:
        counts = [int(count) for count in given.workers.split(",")]
    except ValueError as error:
        raise UserError(f"--workers={given.workers} must be numbers with commas, as in --workers=0,2") from error
    with tempfile.TemporaryDirectory() as scratch:
        if given.source is None:
            make_up(Path(scratch), given.tokens)
        source = given.source or scratch
        spec = manifest.read_manifest(source).tokenizer["spec"]
        print(f"{'packing':>10} {'workers':>8} {'tokens/s':>12} {'of need':>8} {'fill':>6} {'first batch, s':>15}")
        for packing, workers in itertools.product(("concat", "first_fit"), counts):  # "framed" reads like "concat"
            data = DataConfig(source=source, tokenizer=spec, packing=packing, workers=workers)
            record = measure(Config(data=data, context=given.context, batch=given.batch), given.seconds)
            speed = record["tokens_per_second"]
            print(
                f"{packing:>10} {workers:>8} {speed:>12,.0f} {speed / NEED:>8.1f} {record['fill']:>6.3f} "
                f"{record['opening']:>15.2f}",
                flush=True,
            )
    print(f"need of a v5e-8 training the 120M model, at {UTILISATION:.0%} of its peak: {NEED:,.0f} tokens/s")


if __name__ == "__main__":
    errors.run(main)
