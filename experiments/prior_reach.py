"""The reach of near heads in trained ladders, with perplexity and passkey accuracy at 64 times the training context.

Command:  python experiments/prior_reach.py [--out=docs/figures/prior-reach.svg]
          python experiments/prior_reach.py --near-heads
Hardware: a CPU, seconds: everything is in the records.
Expected: a line for each model of 2 layers with a ladder over positions, by the reach of the last layer's widest near head: the
          distance in tokens within which a prior holds nine tenths of its mass among 64 keys. With --out it is also drawn.
          With --near-heads, the trained ladders of near_heads.py and null_models.py are used instead.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import near_heads
import null_models
import numpy as np
from prior_confirmation import CONTEXT

from bam_jax import biases
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import recorded_runs
from bam_jax.experiments.recorded_runs import RecordedRun
from bam_jax.render import style
from bam_jax.system import errors, files

RECORDS = Path(__file__).with_name("records")
FILES = (
    "prior_study",
    "prior_slopes",
    "prior_shapes",
    "prior_patterns",
    *(f"small/prior_confirmation{mark}" for mark in ("_2", "_3", "")),
)
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
    records: str


def reach(run: RecordedRun) -> int:
    """The distance within which the widest near prior of a ladder's last layer holds nine tenths of its mass."""
    shape, log_scale, loc = (jnp.asarray(run.heads[name][-1, 1:]) for name in ("shape", "log_scale", "loc"))
    back = jnp.arange(CONTEXT, dtype=jnp.float32)
    table = biases.table(biases.GeneralisedGaussian(shape, log_scale, loc), jnp.zeros((1, 1, 1)), -back[None, None])
    mass = jnp.cumsum(jnp.exp(table - table.max(-1, keepdims=True)), axis=-1)[0, :, 0]
    return int((mass < 0.9 * mass[:, -1:]).sum(-1).max())


def models(files: Sequence[str] = FILES, seeds: Sequence[int] = ()) -> Iterator[Model]:
    """The ladders over positions in records, of some seeds or of all."""
    for file in files:
        for run in recorded_runs.read(RECORDS / file).values():
            config, places = run.config, run.config.layer_pattern()
            options = places[-1]["options"]
            ladder = all(place["name"] == "bam" and place["ssmax"] == "effective" for place in places)
            if not ladder or config.model.layers != LAYERS or options.get("init") != "ladder":
                continue
            if seeds and (config.seed not in seeds or not options.get("train_shape", True)):
                continue
            far = {
                name: [
                    c["value"]
                    for c in run.cells
                    if (c["eval"], c["length"]) == (name, 64 * CONTEXT) and not c.get("overrides")
                ]
                for name in ASKED
            }
            yield Model(
                reach(run),
                options["near_shape"],
                options["near_decay"] or CONTEXT * math.exp(-3),
                config.optimizer.rate,
                config.seed,
                *(float(np.mean(far[name])) for name in ASKED),
                records=Path(file).name,
            )


@style.styled
def draw(found: Sequence[Model]) -> style.Figure:
    """A point for each model: the keys that it finds above its reach, and below them its perplexity."""
    figure = style.sheet(3.6)
    panels = figure.subplots(2, 1, sharex=True)
    for lost, label, colour in ((False, "9 of 10 keys or more", "#3d7fc4"), (True, "fewer", "#d0505a")):
        chosen = [model for model in found if (model.found < 0.9) == lost]
        for panel, field in zip(panels, ("found", "perplexity"), strict=True):
            values = [getattr(model, field) for model in chosen]
            panel.scatter([model.reach for model in chosen], values, s=14, c=colour, alpha=0.6, lw=0, label=label)
    panels[0].set(ylabel="keys found at 64×", ylim=(-0.05, 1.05))
    panels[0].legend(loc="center", frameon=False)
    ticks = (2, 4, 8, 16, 32)
    panels[1].set(
        ylabel="perplexity at 64×", xlabel="reach of the widest near head in the last layer, tokens", xscale="log"
    )
    panels[1].set_xticks(ticks, labels=[str(tick) for tick in ticks])
    panels[1].set_xticks([], minor=True)
    return figure


def main(argv: Sequence[str]) -> None:
    """Print the table, and draw the figure where it is asked for."""
    parser = errors.Parser(prog="python experiments/prior_reach.py", description=__doc__)
    parser.add_argument("--out", type=files.local_path, help="file of the figure, .svg or .png")
    parser.add_argument(
        "--near-heads", action="store_true", help="the trained ladders of near_heads.py and null_models.py"
    )
    given = parser.parse_args(argv)
    if given.out:
        style.keep_other(given.out)
    seeds = near_heads.SEEDS["small"] + null_models.SEEDS["small"]
    found = sorted(models(("small/shared",), seeds) if given.near_heads else models())
    print("reach shape   nats  rate seed  perplexity  keys found  records")
    for reach, shape, nats, rate, seed, perplexity, share, records in found:
        print(f"{reach:5} {shape:5g} {nats:6.4g} {rate:5g} {seed:4} {perplexity:11.2f} {share:11.2f}  {records}")
    print("# shape and nats that the widest near head starts with, nats from a key one training context away;")
    print("# perplexity and keys found at 64 times the training context; records name the file that has the model")
    if given.out:
        style.save(draw(found), given.out)


if __name__ == "__main__":
    errors.run(main)
