"""The findings of preflight, as JSON values and as text."""

import dataclasses
from typing import Any

from bam_jax.parallel.sharding import FSDP
from bam_jax.preflight import estimate
from bam_jax.preflight.chips import Slice
from bam_jax.preflight.collectives import KINDS
from bam_jax.preflight.compiled import Compiled
from bam_jax.preflight.step import Step


def record(step: Step, made: Compiled, where: Slice, utilisation: float) -> dict[str, Any]:
    """All that is known of a step on a slice; bytes are those of one device.

    Args:
        step: the step.
        made: what the compiler says of it.
        where: the slice.
        utilisation: share of the chips' peak that is reckoned with.
    """
    config, mesh, share = step.config, dict(step.mesh.shape), step.share
    by_kind = step.bytes()
    sent = sum(each.bytes for each in made.collectives)
    if made.refused:
        sent = estimate.sent(config, step.state, share, mesh)
    read = estimate.traffic(config, step.state, share, mesh[FSDP])
    rates = estimate.estimate(where, step.operations, read, sent, utilisation)
    tokens = config.sequences * config.context
    return {
        "topology": where.name,
        "devices": len(where.devices),
        "mesh": mesh,
        "micro_batches": config.optimizer.accumulate,
        "rows": config.batch // config.optimizer.accumulate,
        "context": config.context,
        "remat": config.model.remat,
        "bytes": by_kind,
        "phase": step.phase,
        "sum": sum(by_kind.values()),
        "compiled": {**dataclasses.asdict(made), "collectives": _by_kind(made), "total": made.total},
        "memory": None if where.chip is None else where.chip.memory,
        "fits": not made.refused and (where.chip is None or made.total <= where.chip.memory),
        "tokens": tokens,
        "operations": step.operations,
        "utilisation": utilisation,
        "peak": where.peak,
        "read": read,
        "sent": sent,
        "seconds": None if rates is None else {**dataclasses.asdict(rates), "step": rates.step, "bound": rates.bound},
        "tokens_per_second": None if rates is None else tokens / rates.step,
    }


def _by_kind(made: Compiled) -> dict[str, dict[str, float]]:
    found = {kind: [each for each in made.collectives if each.kind == kind] for kind in KINDS}
    return {
        kind: {"times": sum(each.times for each in some), "bytes": sum(each.bytes for each in some)}
        for kind, some in found.items()
        if some
    }


def to_text(found: dict[str, Any]) -> str:
    """Write a record as lines to read.

    Args:
        found: of `record`.
    """
    mesh = " ".join(f"{axis}={size}" for axis, size in found["mesh"].items())
    lines = [
        f"{found['topology']}: {found['devices']} devices, mesh {mesh}",
        f"a step: {found['micro_batches']} x {found['rows']} rows of {found['context']:,} tokens, remat "
        f"{'on' if found['remat'] else 'off'}, {found['operations']:.3g} operations",
        "",
        *_bytes(found),
    ]
    if not found["compiled"]["refused"]:
        lines += _sent(found["compiled"])
    if found["seconds"] is not None:
        lines += _seconds(found)
    return "\n".join([*lines, f"compiled in {found['compiled']['seconds']:.0f} s"])


def _bytes(found: dict[str, Any]) -> list[str]:
    """The bytes by kind, the sum beside what the compiler says, and a line that says if they fit."""
    made, theirs = found["compiled"], found["compiled"]["arguments"]
    lines = [
        f"{'bytes of one device':22}{'sum':>12}{'compiler':>12}{'off by':>9}   at the sum's most: {found['phase']}"
    ]
    for kind, size in found["bytes"].items():
        beside = f"{_size(theirs[kind]):>12}{_off(size, theirs[kind])}" if kind in theirs else ""
        lines.append(f"  {kind:20}{_size(size):>12}{beside}")
    if made["refused"]:
        off = _off(found["sum"], made["total"])
        lines.append(f"  {'all':20}{_size(found['sum']):>12}{_size(made['total']):>12}{off}")
        return [*lines, "", f"it does not fit: {made['refused']}"]
    # The compiler does not tell the last three kinds apart.
    pooled = sum(size for kind, size in found["bytes"].items() if kind not in theirs)
    both = sum(theirs.values()) + made["temporaries"]
    lines += [
        f"  {'the last three':20}{_size(pooled):>12}{_size(made['temporaries']):>12}{_off(pooled, made['temporaries'])}",
        f"  {'all':20}{_size(found['sum']):>12}{_size(both):>12}{_off(found['sum'], both)}",
        f"  {'the program itself':20}{'':12}{_size(made['program']):>12}",
    ]
    if found["memory"] is not None:
        says = "it fits" if found["fits"] else "it does not fit"
        share = made["total"] / found["memory"]
        lines += ["", f"{says}: {_size(made['total'])} of {_size(found['memory'])}, {share:.0%}"]
    return lines


def _sent(made: dict[str, Any]) -> list[str]:
    if not made["collectives"]:
        return []
    lines = ["", f"{'collectives of a step':22}{'times':>12}{'a device sends':>17}"]
    for kind, each in made["collectives"].items():
        lines.append(f"  {kind:20}{each['times']:12,}{_size(each['bytes']):>17}")
    if made["uncounted"]:
        lines.append(f"  (loops of unknown length, counted once: {', '.join(made['uncounted'])})")
    return lines


def _seconds(found: dict[str, Any]) -> list[str]:
    rates, devices = found["seconds"], found["devices"]
    about = {
        "compute": f"{found['operations'] / devices:.3g} operations at {found['utilisation']:.0%} of {found['peak']:.3g}/s",
        "memory": f"{_size(found['read'])} read and written, counted from the model",
        "links": f"{_size(found['sent'])} sent over all links at once",
    }
    lines = ["", "seconds of a step, of each device, if nothing else took time"]
    lines += [f"  {name:8}{rates[name]:10.3g}   {what}" for name, what in about.items()]
    speed = f"{rates['step']:.3g} s a step, {found['tokens_per_second']:,.0f} tokens/s"
    return [*lines, f"at best {speed}, bound by {rates['bound']}: an estimate"]


def _off(ours: float, theirs: float) -> str:
    return f"{ours / theirs - 1:>+9.1%}"


def _size(n: float) -> str:
    """A number of bytes for people.

    >>> _size(5_020_000), _size(71_562_880_000)
    ('5.0 MB', '71.6 GB')
    """
    return f"{n / 1e9:,.1f} GB" if n >= 9.95e9 else f"{n / 1e6:,.1f} MB"
