"""The JSON and the page that `bench.accelerator` makes of its records."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bam_jax.system import files
from benchmarks import chip_peaks
from benchmarks.chip_parity import SUMMED, TOLERANCE, limit_of
from benchmarks.chip_peaks import Ceilings

WORTH = 0.03
"""The share of a time that another tile must save to be kept: less is within what two runs differ."""

Outcome = Mapping[str, Any]


def write(outcomes: Sequence[Outcome], left: Mapping[str, int], command: str, folder: Path) -> None:
    """Write accelerator.json and accelerator.md.

    Args:
        outcomes: the newest record of each case that has one; there is one of the ceilings.
        left: by stage, how many cases have none.
        command: as it was typed.
        folder: of the command.
    """
    machine = outcomes[0]["machine"]
    (measured,) = (x for x in outcomes if x["stage"] == "ceilings")
    ceilings = chip_peaks.ceilings(measured, machine["device"])
    summary = {
        "command": command,
        "machine": machine,
        "commits": sorted({str(x["commit"]) for x in outcomes}),
        "ceilings": ceilings._asdict(),
        "tolerance": {"arrays": TOLERANCE, "sums": SUMMED},
        "kernels": sorted({name for x in outcomes if "kernels" in x for name in x["kernels"]}),
        "tiles": [
            {"device": device, "dtype": dtype, "width": width, "block_q": block_q, "block_k": block_k}
            for (device, dtype, width), (block_q, block_k) in best_tiles(outcomes).items()
        ],
        "left": dict(left),
        "failed": [f"{x['stage']}: {x['case']}" for x in outcomes if x["status"] == "failed"],
        "results": [{name: value for name, value in x.items() if name != "machine"} for x in outcomes],
    }
    files.write_atomically(folder / "accelerator.json", json.dumps(summary, indent=1) + "\n")
    files.write_atomically(folder / "accelerator.md", page(outcomes, summary, ceilings))


def best_tiles(outcomes: Sequence[Outcome]) -> dict[tuple[str, str, int], tuple[int, int]]:
    """The fastest tiles by device, type and head width, where they save more than `WORTH`, as `measured_tiles` has them.

    Args:
        outcomes: of all cases.
    """
    ratios: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for x in outcomes:
        if x["stage"] == "tiles" and "best" in x:
            default, *others = x["contenders"]
            sizes = ratios.setdefault((x["machine"]["device"], x["dtype"], x["width"]), {})
            for record in others:
                ratio = record["seconds"] / default["seconds"] if "seconds" in record else math.inf
                sizes.setdefault(record["contender"], []).append(ratio)
    best = {}
    for key, sizes in ratios.items():
        # One size serves all biases: the worst of them decides.
        name, worst = min(((name, max(found)) for name, found in sizes.items()), key=lambda pair: pair[1])
        if worst < 1 - WORTH:
            block_q, _, block_k = name.removeprefix("ours ").split(" ")
            best[key] = (int(block_q), int(block_k))
    return best


def page(outcomes: Sequence[Outcome], summary: Mapping[str, Any], ceilings: Ceilings) -> str:
    """The page, in Markdown.

    Args:
        outcomes: see `write`.
        summary: what the JSON holds.
        ceilings: that shares are of.
    """
    machine = summary["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    failed = [x for x in outcomes if x["status"] == "failed"]
    left = ", ".join(f"{count} of {stage}" for stage, count in summary["left"].items() if count)
    lines = [
        f"# {machine['device']}",
        "",
        f"Made by `{summary['command']}`, commit {', '.join(summary['commits'])}, on {machine['processor']} "
        f"({machine['cores']} cores), Python {machine['python']}; {versions}.",
        "",
        f"{len(failed)} of {len(outcomes)} cases failed." + (f" Cases that have not run yet: {left}." if left else ""),
        *(f"- **failed** {x['stage']}: {x['case']}: {x['reason']}" for x in failed),
        "",
    ]
    for title, rows in (
        ("Ceilings", list(_ceilings(outcomes, ceilings))),
        ("Parity with the reference in float64", list(_parity(outcomes))),
        ("Determinism", list(_said(outcomes, "determinism"))),
        ("Times of attention, ms, and shares of the ceilings", list(_times(outcomes))),
        ("Tiles", [*_said(outcomes, "tiles"), *_committed(outcomes)]),
        ("Steps of training", list(_said(outcomes, "steps"))),
        ("A training, killed and resumed", list(_said(outcomes, "training"))),
    ):
        if rows:
            lines += [f"## {title}", "", *rows, ""]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _of(outcomes: Sequence[Outcome], stage: str) -> list[Outcome]:
    return [x for x in outcomes if x["stage"] == stage]


def _said(outcomes: Sequence[Outcome], stage: str) -> Iterator[str]:
    """A line for each case of a stage."""
    for x in _of(outcomes, stage):
        said = "".join(f", {x[name]}" for name in ("summary", "reason") if name in x)
        yield f"- {x['case']}: {x['status']}{said}"


def _ceilings(outcomes: Sequence[Outcome], ceilings: Ceilings) -> Iterator[str]:
    (measured,) = _of(outcomes, "ceilings")
    known = chip_peaks.published(measured["machine"]["device"])
    rows = [("measured", measured["operations_per_second"], measured["bytes_per_second"])]
    rows += [(known.source, known.operations, known.bandwidth)] if known else []
    cells = [[name, f"{flops / 1e12:,.3g}", f"{rate / 1e9:,.4g}"] for name, flops, rate in rows]
    yield from _table(["", f"Tflop/s ({measured['dtype']})", "GB/s"], cells)
    yield ""
    yield f"Shares on this page are of those called {ceilings.source}."


def _parity(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each backend and type: how many cases passed, and the worst error of each array."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    refused: dict[str, int] = {}
    for x in _of(outcomes, "parity"):
        if x["status"] == "refused":
            refused[x["reason"]] = refused.get(x["reason"], 0) + 1
        elif "errors" in x:
            found.setdefault((x["backend"], x["dtype"]), []).append(x)
    names = ("out", "lse", "dq", "dk", "dv", "sums")
    rows = []
    for (backend, dtype), cases in found.items():
        worst = dict.fromkeys(names, 0.0)
        for name, error in ((name, error) for x in cases for name, error in x["errors"].items()):
            kind = name if name in worst else "sums"
            worst[kind] = max(worst[kind], math.inf if error is None else error)
        passed = sum(x["status"] == "passed" for x in cases)
        cells = [f"{worst[name]:.1e} of {limit_of(name, dtype):g}" for name in names]
        rows.append([backend, dtype, f"{passed} of {len(cases)}", *cells])
    if rows:
        yield from _table(["backend", "type", "passed", *names], rows)
        yield ""
        yield 'Largest errors and tolerances; "sums": gradients of parameters, temperature, coordinates and sinks.'
        kernels = sorted({name for x in _of(outcomes, "parity") if "kernels" in x for name in x["kernels"]})
        yield f"Kernels: {', '.join(kernels) or 'none, XLA compiles all'}."
    for reason, count in refused.items():
        yield f"- {count} refused: {reason}"


def _times(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each shape and pass: ours, what it reaches, and the others."""
    timed = [x for x in _of(outcomes, "times") if "contenders" in x]
    names = list(dict.fromkeys(record["contender"] for x in timed for record in x["contenders"]))
    ran = [
        name for name in names if any(r["contender"] == name and "seconds" in r for x in timed for r in x["contenders"])
    ]
    rows = []
    for x in timed:
        by_name = {record["contender"]: record for record in x["contenders"]}
        ours = x["contenders"][0]
        shares = ["", ""]
        if "seconds" in ours:
            shares = [f"{ours['peak_share']:.1%}", f"{ours['bandwidth_share']:.1%}"]
        cells = [
            f"{by_name[name]['seconds'] * 1e3:,.3g}" if name in by_name and "seconds" in by_name[name] else ""
            for name in ran
        ]
        rows.append([x["case"], *shares, *cells])
    if rows:
        yield from _table(["", "ours, of peak", "of bandwidth", *ran], rows)
        yield ""
        yield "An empty cell did not run; the JSON has the reason. `jax.nn` and `tokamax` have no bias: theirs is less work."
    for x in timed:
        if "reason" in x:
            yield f"- {x['case']}: {x['reason']}"


def _committed(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The lines for `bam_jax/attention/logits/measured_tiles.py`."""
    found = best_tiles(outcomes)
    if found:
        yield ""
        yield "For `TILES` in `bam_jax/attention/logits/measured_tiles.py`:"
        yield ""
        for key, size in found.items():
            yield f"    {key}: {size},".replace("'", '"')
