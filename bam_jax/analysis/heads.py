"""Measures the heads of a trained model: the reach of their priors, and the coupling of content and position in a text."""

import dataclasses
import functools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from bam_jax import theory
from bam_jax.analysis.opened import open_run
from bam_jax.attention import Scoring, Tokens, document_count
from bam_jax.biases import GeneralisedGaussian
from bam_jax.encodings import SSMax
from bam_jax.models.blocks import Attention
from bam_jax.models.transformer import Decoder
from bam_jax.system import console, files
from bam_jax.system.errors import UserError

FILE = "heads.jsonl"
SHARES = (0.5, 0.9, 0.99)
"""Shares of the prior's mass for which distances are reported."""
WINDOWS = 16
"""Windows of the text over which measurements are averaged."""
BLOCK = 2**22
"""Entries of a table of logits computed at once."""


def take_queries(scoring: Scoring, start: int, stop: int) -> Scoring:
    """The scoring of some of the queries."""
    cut = lambda axis: lambda x: jax.lax.slice_in_dim(x, start, stop, axis=axis)
    tokens = scoring.queries
    segment, coordinate = jax.tree.map(cut(1), tokens.segment), jax.tree.map(cut(2), tokens.coordinate)
    queries = Tokens(cut(1)(tokens.position), segment, coordinate)
    return dataclasses.replace(scoring, queries=queries, temperature=jax.tree.map(cut(2), scoring.temperature))


def logits(
    q: Float[Array, "1 T H D"], k: Float[Array, "1 S K D"], scoring: Scoring
) -> tuple[Float[Array, "H T S"], Float[Array, "H T S"], Bool[Array, "1 T S"]]:
    """Content, position and visibility, the arguments of `theory.factors`, of one layer and one text."""
    content, position, seen = theory.logits(q, k, scoring)
    return content[0], jnp.broadcast_to(position, content.shape)[0], seen[0]


@jax.jit
def _coupling(q: Array, k: Array, scoring: Scoring) -> theory.Terms:
    return theory.coupling(*logits(q, k, scoring))


def coupling(q: Float[Array, "1 T H D"], k: Float[Array, "1 S K D"], scoring: Scoring) -> theory.Terms:
    """`theory.coupling` of every head and query of a layer, each term [H, T]; the tables are made in blocks of rows."""
    length, heads = q.shape[1:3]
    size = max(1, BLOCK // (heads * k.shape[1]))
    starts = range(0, length, size)
    parts = [_coupling(q[:, at : at + size], k, take_queries(scoring, at, min(at + size, length))) for at in starts]
    return theory.Terms(*(jnp.concatenate(each, axis=1) for each in zip(*parts, strict=True)))


def last_prior(attention: Attention, q: Array, k: Array, scoring: Scoring, keys: int) -> Float[Array, "H N"] | None:
    """The prior of a query with `keys` keys over their distances; None if it depends on text that was not scored.

    `q`, `k` and `scoring` are those of a text [1, T] from `Decoder.scorings`.
    """
    if scoring.queries.coordinate is None and scoring.rowwise is None:
        temperature = None
        if scoring.temperature is not None and isinstance(attention.ssmax, SSMax):
            count = document_count(Tokens(jnp.array([[keys - 1]])), attention.mask)
            temperature = attention.ssmax(count, scoring.bias)[0, :, 0]
        return theory.prior_by_distance(scoring.bias, keys, temperature, attention.mask)
    if keys > q.shape[1] or (keys < q.shape[1] and not scoring.mask.causal):
        return None
    _, position, seen = logits(q[:, keys - 1 : keys], k, take_queries(scoring, keys - 1, keys))
    return jax.nn.softmax(position, axis=-1, where=seen)[:, 0, keys - 1 :: -1]


def measure(
    run: str | os.PathLike,
    *,
    keys: Sequence[int] = (),
    tokens: int = 0,
    overrides: Mapping[str, Any] = {},
    allow: Collection[str] = (),
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Measures the heads of a run's newest checkpoint.

    A record has `layer` and `head`; for BAM, `shape`, `log_scale`, `loc` and `class`; under Scalable Softmax, `scale`; `reach`,
    by number of keys, the distances that contain `shares` of the prior's mass; and, for a held-out text of `tokens` tokens, the
    means of `theory.Terms`, which add up to -ln Z, over windows that end at `positions`. Scalable Softmax's factor is part of the
    prior if the model applies it inside. A sink's share of the weights is ignored. In a pattern of layers, `encoding` is the
    layer's own.
    """
    opened = open_run(run, overrides=overrides, allow=allow)
    config, decoder = opened.config, opened.model
    places = [place["name"] for place in config.layer_pattern()]
    wanted = sorted({*keys} or {config.context, 64 * config.context, 500 * config.context})
    if not 1 <= wanted[0] <= wanted[-1] < 2**31:
        raise UserError(f"--keys={','.join(map(str, wanted))} counts tokens: give 1 or more, and less than 2^31")
    if tokens < 0:
        raise UserError(f"--tokens={tokens} must be 1 or more")
    limit = getattr(decoder.position, "limit", None)
    tokens = tokens or min(4 * config.context, limit or 4 * config.context)
    ids = opened.first_tokens(tokens)
    common = {**opened.origin, "shares": SHARES, "tokens": tokens}
    with console.progress(config.model.layers, unit="layer", label=f"{opened.path.name} heads", show=progress) as bar:
        records = []
        for layer, each in enumerate(zip(decoder.blocks(), score_text(decoder, ids), strict=True)):
            encoding = places[layer % len(places)]
            for head, record in enumerate(_layer(each[0].attention, *each[1], keys=wanted)):
                for number in keys:
                    if str(number) not in record["reach"]:
                        raise UserError(
                            f"--keys={number}: the prior of {encoding!r} depends on the text, of which {tokens} "
                            f"tokens are read; give --tokens={number}"
                        )
                records.append({"layer": layer, "head": head} | record | common | {"encoding": encoding})
            bar.update()
    return records


def score_text(decoder: Decoder, tokens: np.ndarray) -> list[tuple[Array, Array, Scoring]]:
    """`Decoder.scorings` of one text [T], compiled."""
    return _scored(*nnx.split(decoder), jnp.asarray(tokens)[None])


@functools.partial(jax.jit, static_argnums=0)
def _scored(graph: nnx.GraphDef, state: nnx.State, tokens: Array) -> list[tuple[Array, Array, Scoring]]:
    return nnx.merge(graph, state).scorings(tokens)


def _layer(attention: Attention, q: Array, k: Array, scoring: Scoring, *, keys: Sequence[int]) -> list[dict[str, Any]]:
    heads = q.shape[2]
    records: list[dict[str, Any]] = [{} for _ in range(heads)]
    if isinstance(scoring.bias, GeneralisedGaussian):
        for name in ("shape", "log_scale", "loc"):
            _put(records, name, getattr(scoring.bias, name))
        for record in records:
            record["class"] = theory.head_class(record["shape"])
    if isinstance(attention.ssmax, SSMax):
        _put(records, "scale", attention.ssmax.scale[...])
    for record in records:
        record["reach"] = {}
    for number in keys:
        prior = last_prior(attention, q, k, scoring, number)
        if prior is not None:
            distances = np.stack([theory.effective_length(prior, share) for share in SHARES], -1)
            for record, each in zip(records, np.broadcast_to(distances, (heads, len(SHARES))), strict=True):
                record["reach"][str(number)] = each.tolist()
    length = q.shape[1]
    edges = np.unique(np.linspace(0, length, WINDOWS + 1).round().astype(int))
    for record in records:
        record["positions"] = edges[1:].tolist()
    for name, values in coupling(q, k, scoring)._asdict().items():
        means = np.add.reduceat(np.asarray(values, np.float64), edges[:-1], axis=1) / np.diff(edges)
        _put(records, name, means)
    return records


def _put(records: list[dict[str, Any]], name: str, values: Any) -> None:
    for record, value in zip(records, np.asarray(values, np.float64).round(6), strict=True):
        record[name] = value.tolist()


def write(run: Path, records: Sequence[dict[str, Any]], name: str = FILE) -> Path:
    """Write records into the run's folder, replacing earlier ones."""
    files.write_atomically(run / name, "".join(json.dumps(record) + "\n" for record in records))
    return run / name


def to_text(records: Sequence[dict[str, Any]]) -> str:
    """The table of heads for a terminal, and the meaning of its columns."""
    head, rows = heads_table(records)
    lines = console.columns([head, *rows])
    if any("class" in record for record in records):
        lines.append("class, by the shape: retrieval to 0, long-tail between, local from about 1;")
    if any("scale" in record for record in records):
        lines.append("scale: the s of Scalable Softmax's factor of a head's scores, 1 before training;")
    lines.append("distances in tokens within which the prior holds 50, 90, 99% of its mass;")
    lines.append(
        "−ln Z: the two divergences and attention's entropy; KL ‖ content: of attention from that of content alone,"
    )
    lines.append(
        "which position adds; KL ‖ prior: of attention from the prior, which content adds (docs/theory.md, section 6);"
    )
    lines.append(f"divergences in nats, means over {records[0]['tokens']} tokens of held-out text")
    return "\n".join(lines)


def heads_table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    bam, ssmax = (any(name in record for record in records) for name in ("shape", "scale"))
    names = [*(("shape", "log_scale", "loc") if bam else ()), *(("scale",) if ssmax else ())]
    shares = " ".join(f"{share:.0%}" for share in SHARES)
    terms = theory.Terms._fields
    reaches = list(dict.fromkeys(n for record in records for n in record["reach"]))
    head = ["layer, head", *(["class"] if bam else []), *(name.replace("_", " ") for name in names)]
    head += [*(f"{shares} of {int(n):,} keys" for n in reaches), "−ln Z", "KL ‖ content", "KL ‖ prior"]
    lines = []
    for record in records:
        line = [
            f"{record['layer']}, {record['head']}",
            *([record["class"] if "class" in record else ""] if bam else []),
        ]
        line += [f"{record[name]:.2f}" if name in record else "" for name in names]
        reach = record["reach"]
        line += [" ".join(f"{distance:,}" for distance in reach[n]) if n in reach else "" for n in reaches]
        means = [np.mean(record[name]) for name in terms]
        line += [f"{value:.2f}" for value in (sum(means), *means[:2])]
        lines.append(line)
    return head, lines
