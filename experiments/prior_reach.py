"""The reach of near heads in trained ladders, beside the perplexity and the keys found at 64 times the training context.

Command:  python experiments/prior_reach.py
Hardware: a CPU, a moment: all is in the records.
Expected: a line for each model of 2 layers with a ladder over positions, by the reach of the last layer's widest near head: the
          distance in tokens within which a prior holds nine tenths of its mass among 64 keys.
"""

import math
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bam_jax import biases
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import record_file
from bam_jax.experiments.record_file import RecordedRun
from bam_jax.system import errors

RECORDS = Path(__file__).with_name("records")
FILES = (
    "prior_study.jsonl",
    "prior_slopes.jsonl",
    "prior_shapes.jsonl",
    "prior_patterns.jsonl",
    *(f"small/prior_confirmation{mark}.jsonl" for mark in ("_2", "_3", "")),
)
CONTEXT: int = runpy.run_path(str(Path(__file__).with_name("prior_confirmation.py")))["CONTEXT"]
LAYERS, ASKED = 2, (Perplexity.name, Passkey.name)


class Model(NamedTuple):
    """A trained ladder: where it started, how far it reaches, and its two measurements."""

    reach: int
    shape: float
    nats: float
    rate: float
    seed: int
    perplexity: float
    found: float


def reach(run: RecordedRun) -> int:
    """The distance within which the widest near prior of the last layer holds nine tenths of its mass.

    Args:
        run: of a ladder, whose first head looks far.
    """
    shape, log_scale, loc = (jnp.asarray(run.heads[name][-1, 1:]) for name in ("shape", "log_scale", "loc"))
    back = jnp.arange(CONTEXT, dtype=jnp.float32)
    table = biases.table(biases.GeneralisedGaussian(shape, log_scale, loc), jnp.zeros((1, 1, 1)), -back[None, None])
    mass = jnp.cumsum(jnp.exp(table - table.max(-1, keepdims=True)), axis=-1)[0, :, 0]
    return int((mass < 0.9 * mass[:, -1:]).sum(-1).max())


def models() -> Iterator[Model]:
    """The ladders over positions in the records of screenings and confirmations."""
    for file in FILES:
        for run in record_file.read(RECORDS / file).values():
            config, places = run.config, run.config.places()
            options = places[-1]["options"]
            ladder = all(place["name"] == "bam" and place["ssmax"] == "effective" for place in places)
            if not ladder or config.model.layers != LAYERS or options.get("init") != "ladder":
                continue
            far = {
                name: [c["value"] for c in run.cells if (c["eval"], c["length"]) == (name, 64 * CONTEXT)]
                for name in ASKED
            }
            yield Model(
                reach(run),
                options["near_shape"],
                options["near_decay"] or CONTEXT * math.exp(-3),
                config.optimizer.rate,
                config.seed,
                *(float(np.mean(far[name])) for name in ASKED),
            )


def main(argv: Sequence[str]) -> None:
    """Print the table.

    Args:
        argv: nothing.
    """
    errors.Parser(prog="python experiments/prior_reach.py", description=__doc__).parse_args(argv)
    print("reach shape   nats  rate seed  perplexity  keys found")
    for reach, shape, nats, rate, seed, perplexity, found in sorted(models()):
        print(f"{reach:5} {shape:5g} {nats:6.4g} {rate:5g} {seed:4} {perplexity:11.2f} {found:11.2f}")


if __name__ == "__main__":
    errors.run(main)
