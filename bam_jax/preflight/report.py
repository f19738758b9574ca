"""The findings of preflight, as JSON values and as text."""

import dataclasses
from typing import Any

from bam_jax.preflight import estimate
from bam_jax.preflight.chips import Slice
from bam_jax.preflight.step import Compiled, Step


def record(step: Step, made: Compiled, where: Slice, utilisation: float) -> dict[str, Any]:
    """The record of a step on a slice; bytes and operations are those of one device."""
    config, work = step.config, estimate.work(step)
    seconds = work.seconds(where, utilisation)
    tokens = config.sequences * config.context
    return {
        "topology": where.name,
        "devices": len(where.devices),
        "mesh": dict(step.mesh.shape),
        "micro_batches": config.optimizer.accumulate,
        "rows": config.batch // config.optimizer.accumulate,
        "context": config.context,
        "remat": config.model.remat,
        "remat_keep": config.model.remat_keep,
        "bytes": step.bytes(),
        "compiled": {**dataclasses.asdict(made), "total": made.total},
        "memory": None if where.chip is None else where.chip.memory,
        "fits": fits(made, where),
        "work": dataclasses.asdict(work),
        "utilisation": utilisation,
        "peak": where.peak,
        "seconds": seconds,
        "options": [],
        "tokens": tokens,
        "tokens_per_second": None if seconds is None else tokens / max(seconds.values()),
    }


def fits(made: Compiled, where: Slice) -> bool:
    """Whether a program fits into the memory of a chip."""
    return not made.refused and (where.chip is None or made.total <= where.chip.memory)


def to_text(found: dict[str, Any]) -> str:
    """Format the record of a step, or of a `Reading`, as text."""
    mesh = " ".join(f"{axis}={count}" for axis, count in found["mesh"].items())
    made, step, seconds = found["compiled"], "work" in found, found.get("seconds")
    if step:
        kept = f"that keeps {found['remat_keep']}" if found["remat"] else "off"
        what = f"a step: {found['micro_batches']} x {found['rows']} rows of {found['context']:,} tokens, remat {kept}"
    else:
        what = f"a cache for {found['tokens']:,} tokens, read in chunks of {found['chunk']:,}"
    head = f"{'one device':34}{'':>12}   seconds, if nothing else took time" if step else "one device"
    lines = [f"{found['topology']}: {found['devices']} devices, mesh {mesh}", what, "", head]
    rows = [(kind, gigabytes(count)) for kind, count in found["bytes"].items()]
    if not made["refused"]:
        arguments = f"{'all three' if step else 'both'}, as laid out"
        about = {"arguments": arguments, "temporaries": "temporaries", "program": "the program"}
        rows += [(text, gigabytes(made[kind])) for kind, text in about.items()]
    if step:
        work = found["work"]
        rows += [("operations", f"{work['operations']:.3g}"), ("read and written", gigabytes(work["read"]))]
        rows += [("sent", gigabytes(work["sent"]))]
    taken = [f"{seconds[kind]:12.3g}" for kind in ("compute", "memory", "links")] if step and seconds else []
    behind = [""] * (len(rows) - len(taken)) + taken
    lines += [f"  {text:32}{amount:>12}{more}" for (text, amount), more in zip(rows, behind, strict=True)]
    lines.append("")
    if made["refused"]:
        lines.append(f"it does not fit: {made['refused']}")
    elif found["memory"] is not None:
        share = f"{gigabytes(made['total'])} of {gigabytes(found['memory'])}, {made['total'] / found['memory']:.0%}"
        lines.append(f"{'it fits' if found['fits'] else 'it does not fit'}: {share}")
    if seconds is not None:
        bound, longest = max(seconds.items(), key=lambda item: item[1])
        assumed = f"{found['utilisation']:.0%} of {found['peak']:.3g} operations/s"
        lines.append(
            f"at best {longest:.3g} s a step, {found['tokens_per_second']:,.0f} tokens/s, bound by {bound}: an estimate, at "
            f"{assumed}"
        )
    if found.get("options"):
        lines.append(f"with {' '.join(found['options'])}")
    return "\n".join([*lines, f"compiled in {made['seconds']:.0f} s"])


def gigabytes(n: float) -> str:
    """A number of bytes in a readable unit.

    >>> gigabytes(5_020_000), gigabytes(71_562_880_000)
    ('5.0 MB', '71.6 GB')
    """
    return f"{n / 1e9:,.1f} GB" if n >= 9.95e9 else f"{n / 1e6:,.1f} MB"
