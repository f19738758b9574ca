"""Heads that retrieve a passkey: each head's weight on the next digit, and that digit's lead over all other keys.

With scores s_j of n keys, m of which (the set M) hold the digit, a head's weight on the digit and its lead are

    w = sum_{j in M} exp(s_j) / sum_j exp(s_j) = 1 / (1 + (n - m) exp(-lead)),
    lead = ln sum_{j in M} exp(s_j) - ln mean_{j not in M} exp(s_j)

Half of the weight therefore needs a lead of ln(n - m), so the lead must grow with the logarithm of the length.
"""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bam_jax.analysis.heads import logits, score_text, take_queries
from bam_jax.analysis.opened import open_run
from bam_jax.attention import Scoring
from bam_jax.evals.passkey import FORCED, Passkey, make_prompts
from bam_jax.system import console
from bam_jax.system.errors import UserError

FILE = "retrieval_heads.jsonl"
LEAST = 0.2
"""The least weight of a head that is listed individually."""


class Found(NamedTuple):
    """A head's weight on the next digit's keys, and their lead in nats, each [..., H, Q]; see the module's docstring."""

    weight: Array | np.ndarray
    lead: Array | np.ndarray


def find(scores: Float[Array, "H Q S"], seen: Bool[Array, "#H Q S"], holds: Bool[Array, "Q S"]) -> Found:
    """Weight and lead of the keys that hold the digit of each query."""
    among = jax.nn.logsumexp(scores, axis=-1, where=seen & holds)
    others = jax.nn.logsumexp(scores, axis=-1, where=seen & ~holds)
    return Found(jax.nn.sigmoid(among - others), among - others + jnp.log((seen & ~holds).sum(-1)))


@jax.jit
def _find(q: Array, k: Array, scoring: Scoring, holds: Array) -> Found:
    content, position, seen = logits(q, k, scoring)
    return find(content + position, seen, holds)


def holders(tokens: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The keys that hold each digit of the answer [5], [5, T] bool: wherever the whole answer occurs in the prompt.

    `tokens` [T] are a prompt followed by all digits of the answer but the last.
    """
    prompt = len(tokens) - FORCED
    windows = np.lib.stride_tricks.sliding_window_view(tokens[:prompt], len(answer))
    starts = np.flatnonzero((windows == answer).all(axis=1))
    held = np.zeros((len(answer), len(tokens)), bool)
    for digit in range(len(answer)):
        held[digit, starts + digit] = True
    return held


def measure(
    run: str | os.PathLike,
    lengths: Sequence[int],
    *,
    prompts: int = 5,
    overrides: Mapping[str, Any] = {},
    allow: Collection[str] = (),
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Measures the passkey retrieval of a run's heads, teacher-forced, over depths of the key.

    A record has `layer`, `head`, `length`, `keys` that the first query sees, `prompts`, their kind `prompt`, and `seed`. Over
    digits and prompts, `weight` is the mean, and `lead` the median, because a few leads of a short-range head are far below all
    others. `lead` is None if a window ends before the key. A sink's share of the weights is ignored.
    """
    if prompts < 1:
        raise UserError(f"--prompts={prompts} must be 1 or more")
    opened = open_run(run, overrides=overrides, allow=allow)
    opened.require_decoder("which goes on from no key")
    decoder = opened.model
    asked = Passkey(tuple(sorted({*lengths})), depths=prompts)
    identity = asked.required({}, opened.config)
    make = make_prompts(identity["prompt"], opened.tokenizer, identity["seed"], opened.held_out)
    for length in lengths:
        decoder.check_length(len(make(length, 0.0, 0)[0]) + FORCED)  # before anything is measured
    common = {**opened.origin, "prompts": prompts, **identity}
    records: list[dict[str, Any]] = []
    with console.progress(
        len(asked.lengths) * prompts, unit="prompt", label=f"{opened.path.name} passkeys", show=progress
    ) as bar:
        for length in asked.lengths:
            looks: list[Found] = []
            for depth, _ in asked.places():
                tokens, answer = make(length, depth or 0.0, 0)
                tokens = np.concatenate([tokens, answer[:FORCED]])
                looks.append(_look(score_text(decoder, tokens), holders(tokens, answer)))
                bar.update()
            found = Found(*(np.concatenate(each, axis=2) for each in zip(*looks, strict=True)))
            for layer, head in np.ndindex(found.weight.shape[:2]):
                view = summarise(Found(found.weight[layer, head], found.lead[layer, head]))
                seen = {"length": length, "keys": len(tokens) - FORCED, **view}
                records.append({"layer": layer, "head": head, **seen, **common})
    return records


def summarise(found: Found) -> dict[str, float | None]:
    """The mean of a head's weights and the median of its leads [N]; a lead that is not finite is None."""
    lead = float(np.median(found.lead))
    return {"weight": round(float(found.weight.mean()), 6), "lead": round(lead, 6) if math.isfinite(lead) else None}


def _look(scored: Sequence[tuple[Array, Array, Scoring]], holds: np.ndarray) -> Found:
    found = []
    digits, length = holds.shape
    for q, k, scoring in scored:
        found.append(_find(q[:, -digits:], k, take_queries(scoring, length - digits, length), jnp.asarray(holds)))
    return Found(*(np.stack(each) for each in zip(*found, strict=True)))


def to_text(records: Sequence[Mapping[str, Any]]) -> str:
    lengths = list(dict.fromkeys(record["length"] for record in records))
    by_head: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
    for record in records:
        by_head.setdefault((record["layer"], record["head"]), {})[record["length"]] = record
    needed = {record["length"]: math.log(record["keys"] - 1) for record in records}
    finders = [name for name, each in by_head.items() if max(record["weight"] for record in each.values()) >= LEAST]
    rows = [["layer, head", *(f"{length:,} tokens" for length in lengths)]]
    for layer, head in finders:
        found = [by_head[layer, head][length] for length in lengths]
        leads = ["unseen" if record["lead"] is None else f"{record['lead']:.1f}" for record in found]
        cells = [f"{record['weight']:.2f}, {lead}" for record, lead in zip(found, leads, strict=True)]
        rows.append([f"{layer}, {head}", *cells])
    rows.append(["half needs", *(f"{needed[length]:.1f}" for length in lengths)])
    lines = console.columns(rows)
    rest = [record["weight"] for name, each in by_head.items() if name not in finders for record in each.values()]
    if rest:
        lines.append(f"every other head gives the digit a weight of {max(rest):.2f} or less")
    lines.append("weight of the digit that comes next, and its lead over the mean of the other keys in nats;")
    lines.append(
        f"means and medians over {records[0]['prompts']} prompts; half needs: the lead that gives a digit half of the weight"
    )
    return "\n".join(lines)
