"""The search for the peak learning rates of the quickstart's baselines, by their worst accuracy at 1x the training context.

Command:  python experiments/quickstart_rates.py
Hardware: a CPU; 42 models took 47 core-minutes.
Expected: experiments/quickstart_rates.json, which experiments/quickstart.py reads.
"""

import json
import math
import runpy
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bam_jax import sweep
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import results
from bam_jax.experiments.experiment import Experiment, Row
from bam_jax.report.run_curves import length_curves
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError

QUICKSTART = runpy.run_path(str(Path(__file__).with_name("quickstart.py")))
CONTEXT = QUICKSTART["CONTEXT"]
RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (100, 101)
"""The seeds of training, and so of the prompts; the quickstart uses neither. A single seed may miss a fragile rate."""


def get_experiment() -> Experiment:
    """Every baseline with every rate, evaluated at the training context only."""
    evaluations = (
        Passkey((CONTEXT,), trials=10),
        Perplexity((CONTEXT,)),
    )
    rows = tuple(
        Row(
            f"{label}, {rate:g}",
            QUICKSTART["CONFIG"],
            {**overrides, "optimizer.rate": rate},
            SEEDS,
            evaluations,
        )
        for label, overrides in QUICKSTART["BASELINES"].items()
        for rate in RATES
    )
    return Experiment(title="Peak rates of the quickstart's baselines", rows=rows)


def main(argv: Sequence[str]) -> None:
    """Runs the search and writes the JSON file.

    Raises:
        UserError: bad arguments, or a run that failed.
    """
    parser = errors.Parser(prog="python experiments/quickstart_rates.py", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/quickstart_rates"), help="folder of the runs")
    folder = parser.parse_args(argv).runs
    if sweep.main([__file__, f"--runs={folder}"]):
        raise UserError(f"the search is not complete; see {folder / 'logs'}, then run the same command again")
    _, runs = results.read_sweep(folder)
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for run in runs:
        label, _, rate = run.label.rpartition(", ")
        value = lambda name, run=run: length_curves([run], name)[run.label].seeds[0].values[CONTEXT]
        worst = found[label].setdefault(rate, {"accuracy": math.inf, "perplexity": 0.0})
        worst["accuracy"] = min(worst["accuracy"], round(value("passkey"), 4))
        worst["perplexity"] = max(worst["perplexity"], round(value("perplexity"), 4))
    best = {
        label: min(each, key=lambda rate: (-each[rate]["accuracy"], each[rate]["perplexity"]))
        for label, each in found.items()
    }
    result = {
        "command": "python experiments/quickstart_rates.py",
        "rule": f"highest accuracy at {CONTEXT} tokens, then lowest perplexity there, the worse of seeds {SEEDS}",
        "found": found,
        "rates": {label: float(rate) for label, rate in best.items()},
    }
    path = Path(__file__).with_name("quickstart_rates.json")
    files.write_atomically(path, json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}: {result['rates']}")


if __name__ == "__main__":
    errors.run(main)
