"""The page of `benchmarks.accelerator`, from its JSON or from a committed record such as `records/h100.json`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bam_jax.models.counts import BANDWIDTHS
from bam_jax.models.counts import CHIPS as PEAKS

KINDS = {
    **{"NVIDIA RTX A6000": "a6000", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA H100 80GB HBM3": "h100"},
    **{"NVIDIA H200": "h200", "TPU v4": "v4"},
    **dict.fromkeys(("TPU v5 lite", "TPU v5e"), "v5e"),
    **dict.fromkeys(("TPU v5p", "TPU v5"), "v5p"),
    **dict.fromkeys(("TPU v6 lite", "TPU v6e"), "v6e"),
}
"""Names in `bam_jax.models.counts.CHIPS`, by JAX's name of a device."""

Outcome = Mapping[str, Any]


class Ceilings(NamedTuple):
    """The peak rates of a chip: floating-point operations, in bfloat16 on accelerators, and bytes, per second."""

    operations: float
    bandwidth: float
    source: str


def ceilings_of(measured: Outcome, device_kind: str) -> Ceilings:
    """The numbers of the data sheet or, for an unknown chip, the measured ones."""
    if device_kind not in KINDS:
        return Ceilings(measured["operations_per_second"], measured["bytes_per_second"], "measured")
    return Ceilings(PEAKS[KINDS[device_kind]], BANDWIDTHS[KINDS[device_kind]], "data sheet")


def to_page(summary: Mapping[str, Any]) -> str:
    """Write the JSON of `benchmarks.accelerator` as Markdown."""
    machine, results = summary["machine"], summary["results"]
    versions = ", ".join(map(" ".join, machine["versions"].items()))
    failed = [x for x in results if x["status"] == "failed"]
    left = ", ".join(f"{count} of {stage}" for stage, count in summary["left"].items() if count)
    lines = [
        f"# {machine['device']}",
        "",
        f"Made by `{summary['command']}`, commit {', '.join(summary['commits'])}, on {machine['processor']} "
        f"({machine['cores']} cores), Python {machine['python']}; {versions}.",
        "",
        f"{len(failed)} of {len(results)} cases failed." + (f" Cases that have not run yet: {left}." if left else ""),
        *(f"- **failed** {x['stage']}: {x['case']}: {x['reason']}" for x in failed),
        "",
    ]
    of = lambda stage: [x for x in results if x["stage"] == stage]
    for title, rows in (
        ("Ceilings", _ceilings(of("ceilings")[0], machine["device"])),
        ("Parity with the reference in float64", _counts(of("parity"))),
        ("Determinism", _each(of("determinism"))),  # in old records, from before it became part of parity
        ("Times of attention, ms, and shares of the ceilings", _times(of("times"))),
        ("Tiles", _each(of("tiles"))),
        ("Steps of training", _each(of("steps"))),
        ("A training, killed and resumed", _each(of("training"))),
    ):
        body = list(rows)
        lines += [f"## {title}", "", *body, ""] if body else []
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _each(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for x in outcomes:
        details = "".join(f", {x[name]}" for name in ("summary", "reason") if name in x)
        yield f"- {x['case']}: {x['status']}{details}"


def _ceilings(measured: Outcome, device: str) -> Iterator[str]:
    used = ceilings_of(measured, device)
    rows = [("measured", measured["operations_per_second"], measured["bytes_per_second"])]
    rows += [(used.source, used.operations, used.bandwidth)] if used.source != "measured" else []
    cells = [[name, f"{flops / 1e12:,.3g}", f"{rate / 1e9:,.4g}"] for name, flops, rate in rows]
    yield from _table(["", f"Tflop/s ({measured['dtype']})", "GB/s"], cells)
    yield from ("", f"Shares on this page are of those called {used.source}.")


def _counts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The number of cases with each status, and why some did not run; failures are at the top of the page."""
    if outcomes:
        found = Counter(x["status"] for x in outcomes)
        yield ", ".join(f"{count} {status}" for status, count in found.items()) + f", of {len(outcomes)} cases."
    for reason, count in Counter(x["reason"] for x in outcomes if x["status"] == "refused").items():
        yield f"- {count} refused: {reason}"


def _times(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each shape and pass: the shares of our attention, and the time of each contender that ran in some row."""
    timed = [x for x in outcomes if "contenders" in x]
    milliseconds = [
        {r["contender"]: f"{r['seconds'] * 1e3:,.3g}" for r in x["contenders"] if "seconds" in r} for x in timed
    ]
    ran = {name for found in milliseconds for name in found}
    names = [name for name in dict.fromkeys(r["contender"] for x in timed for r in x["contenders"]) if name in ran]
    rows = []
    for x, found in zip(timed, milliseconds, strict=True):
        ours = x["contenders"][0]
        shares = [f"{ours[name]:.1%}" if name in ours else "" for name in ("peak_share", "bandwidth_share")]
        rows.append([x["case"], *shares, *(found.get(name, "") for name in names)])
    if rows:
        yield from _table(["", "ours, of peak", "of bandwidth", *names], rows)
        yield ""
        yield "An empty cell did not run; the JSON has the reason. `jax.nn` and `tokamax` have no bias: theirs is less work."
    yield from (f"- {x['case']}: {x['reason']}" for x in timed if "reason" in x)
