"""The margins of the quickstart's claims: the rows with claims, with other training seeds and other arithmetic.

Command:  python experiments/quickstart_margins.py
Hardware: a CPU, about two core-hours for 72 models.
Expected: experiments/records/quickstart_margins/, a folder for each arithmetic, and the table of docs/quickstart.md, printed from
          them. If the command is killed, running it again continues, on any machine.

A set has as many seeds as the quickstart, none of them the quickstart's own. An arithmetic is the widest vector instructions
that XLA may use and the number of its threads: both change the order of sums, and so the last bits of every step.

The first arithmetic has eight sets and shows the effect of seeds; the others have two each and show that of the order of sums.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import quickstart

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.experiment import Expected, Experiment
from bam_jax.experiments.sweep import Sweep
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError

QUICKSTART = quickstart.get_experiment()
RECORDS = Path(__file__).with_name("records") / "quickstart_margins"
SETS, OTHER_SETS = 8, 2
"""The sets under the first arithmetic, and under each other."""
APART = 1000
"""The seeds of the first set are the quickstart's plus this, those of the second plus twice this, and so on."""


class Arithmetic(NamedTuple):
    """The widest vector instructions that XLA may use, and its threads; a machine without them uses its own widest."""

    isa: str
    threads: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables that set it."""
        return {"XLA_FLAGS": f"--xla_cpu_max_isa={self.isa}", "NPROC": f"{self.threads}"}


ARITHMETICS = [Arithmetic(isa, threads) for threads in (1, 2) for isa in ("AVX2", "AVX", "SSE4_2")]
"""AVX2 multiplies and adds in one rounding, the others in two; AVX512 gives the same bits as AVX2 here, since XLA prefers
vectors of 256 bits."""


def sets_of(arithmetic: Arithmetic) -> int:
    return SETS if arithmetic == ARITHMETICS[0] else OTHER_SETS


def get_experiment() -> Experiment:
    """The rows that the quickstart claims something of, with the seeds of all sets, evaluated where it does."""
    rows = []
    for row in QUICKSTART.rows:
        claimed = {claim.length for claim in QUICKSTART.expected if claim.label == row.label}
        if claimed:
            asked = [
                dataclasses.replace(each, lengths=tuple(sorted(claimed.intersection(each.lengths))))
                for each in row.evaluations
                if each.name == Passkey.name and not each.label
            ]
            seeds = tuple(seed + APART * number for number in range(1, SETS + 1) for seed in row.seeds)
            evaluations = tuple(each for each in asked if each.lengths)
            rows.append(dataclasses.replace(row, seeds=seeds, evaluations=evaluations))
    return Experiment("Margins of the quickstart's claims", tuple(rows), platform=QUICKSTART.platform)


def make_sweep(arithmetic: Arithmetic, folder: Path) -> Sweep:
    """The sweep of the sets under an arithmetic, in whose environment it is to run, with records of its own."""
    name = f"{arithmetic.isa}-{arithmetic.threads}"
    # Records contain the command, with file names relative to the clone.
    records = os.path.relpath(RECORDS / name)
    whole = Sweep.load([os.path.relpath(__file__)], runs=folder / name, records=records)
    (made,) = whole.experiments
    last = sets_of(arithmetic)
    rows = [
        dataclasses.replace(row, seeds=tuple(seed for seed in row.seeds if seed // APART <= last)) for row in made.rows
    ]
    return dataclasses.replace(whole, experiments=(dataclasses.replace(made, rows=tuple(rows)),))


def accuracies(sweep: Sweep, claim: Expected, sets: int) -> list[list[float]]:
    """The accuracy that a claim is about, of every seed of every set of a finished sweep."""
    (made,) = sweep.experiments
    read = tables.results_reader(sweep.folder, made.records)
    found: list[list[float]] = [[] for _ in range(sets)]
    for job in jobs.row_jobs(made):
        if job.row.label == claim.label:
            cells = [cell for cell in read(job).cells if cell["length"] == claim.length]
            found[job.seed // APART - 1].append(results.mean(cells))
    return found


def to_markdown(sweeps: Sequence[tuple[Arithmetic, Sweep]]) -> Iterator[str]:
    """A row for each claim and arithmetic: in how many sets it is met, and the range of the sets' means and of the seeds."""
    yield "| claim | arithmetic | met in | means of sets | seeds |"
    yield "|---|---|---|---|---|"
    for claim in QUICKSTART.expected:
        bound = f"at least {claim.least:g}" if claim.least else f"at most {claim.most:g}"
        for arithmetic, sweep in sweeps:
            by_set = accuracies(sweep, claim, sets_of(arithmetic))
            means = [float(np.mean(seeds)) for seeds in by_set]
            met = sum(claim.least <= mean <= claim.most for mean in means)
            threads = f"{arithmetic.threads} thread{'s' if arithmetic.threads > 1 else ''}"
            seeds = format_range([each for seeds in by_set for each in seeds])
            yield (
                f"| {claim.label} at {claim.length:,}: {bound} | {arithmetic.isa}, {threads} | {met} of {len(means)} "
                f"| {format_range(means)} | {seeds} |"
            )


def format_range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"


def main(argv: Sequence[str]) -> None:
    """Measure what the records lack, one arithmetic after another, and print the table."""
    parser = errors.Parser(prog="python experiments/quickstart_margins.py", description=__doc__)
    parser.add_argument(
        "--runs", type=files.local_path, default=Path("runs/quickstart_margins"), help="folder of the runs"
    )
    folder = parser.parse_args(argv).runs
    jax.config.update("jax_platforms", QUICKSTART.platform)
    sweeps = [(arithmetic, make_sweep(arithmetic, folder)) for arithmetic in ARITHMETICS]
    for number, (arithmetic, sweep) in enumerate(sweeps, start=1):
        if sweep.find_unrecorded():
            print(f"arithmetic {number} of {len(sweeps)}: {' '.join(map(str, arithmetic))}", flush=True)
            os.environ |= arithmetic.environment  # the sweep's processes inherit it
            if sweep.run():
                raise UserError(f"some models failed; see {sweep.folder / 'logs'}, then run the same command again")
    print("\n".join(to_markdown(sweeps)))


if __name__ == "__main__":
    errors.run(main)
