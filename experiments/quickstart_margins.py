"""The margins of the quickstart's claims: its claimed rows with fresh training seeds and under other arithmetic.

Command:  python experiments/quickstart_margins.py
Hardware: a CPU; the command says at its start how many models there are and how long they take.
Expected: experiments/quickstart_margins.json, which has a line for each set of seeds under each arithmetic, and
          experiments/records/quickstart_margins/, which has what was measured: killed at any moment and started again, on any
          machine, the command goes on from there.

A set has as many seeds as the quickstart, none of them the quickstart's own. An arithmetic is the widest vector instructions
that XLA may use and the number of its threads: both change the order of sums, and so the last bits of every step.

The first arithmetic has eight sets and shows what seeds do; each other has two and shows what the order of sums does.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import quickstart

from bam_jax import config
from bam_jax.evals.passkey import Passkey
from bam_jax.experiments import jobs, results, tables
from bam_jax.experiments.experiment import Experiment
from bam_jax.experiments.runner import find_slots
from bam_jax.experiments.sweep import Sweep
from bam_jax.system import errors, files
from bam_jax.system.errors import UserError
from bam_jax.system.machine import machine

QUICKSTART = quickstart.get_experiment()
MARGINS = Path(__file__).with_name("quickstart_margins.json")
RECORDS = Path(__file__).with_name("records") / "quickstart_margins"
SETS, OTHER_SETS = 8, 2
"""The sets under the first arithmetic, and under each other."""
APART = 1000
"""The seeds of the first set are the quickstart's plus this, those of the second plus twice this, and so on."""
MINUTES = 1.6
"""A core's, for one model with its evaluations."""


class Arithmetic(NamedTuple):
    """The widest vector instructions that XLA may use, and its threads; a machine without them uses its own widest."""

    isa: str
    threads: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which XLA is told."""
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


def describe() -> dict[str, Any]:
    """The claims, and all that decides what is measured."""
    rows = {
        row.label: {
            "config": config.digest(config.load(row.config, row.overrides)),
            "seeds": list(row.seeds),
            "evaluations": [" ".join(each.arguments()) for each in row.evaluations],
        }
        for row in get_experiment().rows
    }
    return {"claims": [dataclasses.asdict(claim) for claim in QUICKSTART.expected], "rows": rows}


def read_margins(described: Mapping[str, Any]) -> dict[str, Any]:
    """The file's margins; empty ones if there is no file, or if it is about other rows or claims than `describe` gives."""
    if MARGINS.is_file():
        kept = json.loads(MARGINS.read_text())
        if {name: kept[name] for name in described} == described:
            return kept
        print(f"{MARGINS.name} is about other rows or claims than the quickstart has now, and begins anew")
    return {"command": "python experiments/quickstart_margins.py", **described, "arithmetics": [], "table": []}


def write_margins(margins: Mapping[str, Any]) -> None:
    """Write the file, a line for each entry of a list."""
    fields = []
    for name, value in margins.items():
        lines = ",\n  ".join(json.dumps(each) for each in value) if isinstance(value, list) else ""
        fields.append(f' "{name}": ' + (f"[\n  {lines}\n ]" if lines else json.dumps(value)))
    files.write_atomically(MARGINS, "{\n" + ",\n".join(fields) + "\n}\n")


def make_sweep(arithmetic: Arithmetic, folder: Path) -> Sweep:
    """The sweep of the sets under an arithmetic, in whose environment it is to run, with records of its own."""
    name = f"{arithmetic.isa}-{arithmetic.threads}"
    # Records keep the command, with the files as a user in the clone would name them.
    records = os.path.relpath(RECORDS / name)
    whole = Sweep.load([os.path.relpath(__file__)], runs=folder / name, records=records)
    (made,) = whole.experiments
    last = sets_of(arithmetic)
    rows = [
        dataclasses.replace(row, seeds=tuple(seed for seed in row.seeds if seed // APART <= last)) for row in made.rows
    ]
    return dataclasses.replace(whole, experiments=(dataclasses.replace(made, rows=tuple(rows)),))


def judge_sets(sweep: Sweep, arithmetic: Arithmetic) -> tuple[list[dict[str, Any]], list[str]]:
    """For each set of a finished sweep the accuracy of every seed and whether the claims are met; and the measuring commits."""
    (made,) = sweep.experiments
    read = tables.results_reader(sweep.folder, made.records)
    measured = {(job.row.label, job.seed): read(job).cells for job in jobs.row_jobs(made)}
    lines = []
    for number in range(1, sets_of(arithmetic) + 1):
        claims = []
        for claim in QUICKSTART.expected:
            accuracy = {
                f"{seed}": round(results.mean([cell for cell in cells if cell["length"] == claim.length]), 4)
                for (label, seed), cells in measured.items()
                if label == claim.label and seed // APART == number
            }
            met = claim.least <= float(np.mean([*accuracy.values()])) <= claim.most
            claims.append({"label": claim.label, "length": claim.length, "accuracy": accuracy, "met": met})
        lines.append({**arithmetic._asdict(), "set": number, "claims": claims})
    return lines, sorted({cell["commit"] for cells in measured.values() for cell in cells})


def to_markdown(margins: Mapping[str, Any]) -> str:
    """A row for each claim and arithmetic: in how many sets it is met, and the least and greatest means of a set and seeds."""
    rows = ["| claim | arithmetic | met in | means of sets | seeds |", "|---|---|---|---|---|"]
    for at, claim in enumerate(margins["claims"]):
        bound = f"at least {claim['least']:g}" if claim["least"] else f"at most {claim['most']:g}"
        for made in margins["arithmetics"]:
            lines = [
                line for line in margins["table"] if (line["isa"], line["threads"]) == (made["isa"], made["threads"])
            ]
            judged = [line["claims"][at] for line in lines]
            seeds = [[*each["accuracy"].values()] for each in judged]
            cells = [
                f"{claim['label']} at {claim['length']:,}: {bound}",
                f"{made['isa']}, {made['threads']} thread{'s' if made['threads'] > 1 else ''}",
                f"{sum(each['met'] for each in judged)} of {len(judged)}",
                _ends([float(np.mean(accuracies)) for accuracies in seeds]),
                _ends([accuracy for accuracies in seeds for accuracy in accuracies]),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _ends(values: Sequence[float]) -> str:
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"


def main(argv: Sequence[str]) -> None:
    """Measure what the file lacks, one arithmetic after another, and write it after each."""
    parser = errors.Parser(prog="python experiments/quickstart_margins.py", description=__doc__)
    parser.add_argument(
        "--runs", type=files.local_path, default=Path("runs/quickstart_margins"), help="folder of the runs"
    )
    folder = parser.parse_args(argv).runs
    jax.config.update("jax_platforms", QUICKSTART.platform)  # of `machine`, as of the sweep's processes
    margins = read_margins(describe())
    known = {(each["isa"], each["threads"]) for each in margins["arithmetics"]}
    missing = [arithmetic for arithmetic in ARITHMETICS if arithmetic not in known]
    sets, cores = sum(map(sets_of, missing)), len(find_slots("cpu"))
    claimed = {claim.label for claim in QUICKSTART.expected}
    models = sum(len(row.seeds) for row in QUICKSTART.rows if row.label in claimed)
    hours = sets * models * MINUTES / 60
    print(f"{len(missing)} of {len(ARITHMETICS)} arithmetics are missing: {sets} sets x {models} models")
    print(
        f"about {hours:.1f} core-hours, {hours / cores:.1f} hours on {cores} cores, less what the records and {folder} have",
        flush=True,
    )
    for number, arithmetic in enumerate(missing, start=1):
        print(f"arithmetic {number} of {len(missing)}: {' '.join(map(str, arithmetic))}", flush=True)
        os.environ |= arithmetic.environment  # the sweep's processes inherit it
        sweep = make_sweep(arithmetic, folder)
        if sweep.run():
            raise UserError(f"some models failed; see {sweep.folder / 'logs'}, then run the same command again")
        table, commits = judge_sets(sweep, arithmetic)
        margins["arithmetics"].append({**arithmetic._asdict(), "commits": commits, "machine": machine()})
        margins["table"] += table
        write_margins(margins)
    print(to_markdown(margins))


if __name__ == "__main__":
    errors.run(main)
