"""Perplexity of held-out text, over whole sequences and by windows of their positions.

Source: BAM, perplexity by position; CABLE, non-overlapping sequences of the test length.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from bam_jax.attention import EMPTY
from bam_jax.evals import schema
from bam_jax.evals.base import Evaluation, option
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, Wanted, hash_tokens, rows_within
from bam_jax.models import transformer
from bam_jax.models.layers import head_logits
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Line, Loss, Positive
from bam_jax.training import losses


class PerplexityRecord(schema.CellRecord):
    """Sequences of held-out text, of which there are `of`, with the mean loss in nats of each window of their positions.

    A window is as long as a training context. `data_hash` identifies the text; older records lack it.
    """

    value: Positive
    depth: NotRequired[None]
    window: Count
    windows: list[Loss]
    data_hash: NotRequired[Line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutText(Evaluation):
    """A perplexity of held-out text in sequences of each length, at least one."""

    sample_noun = "sequences"
    curve = "perplexity"
    unseen = True

    tokens: Count = option(2**15, "of text for each perplexity")

    def plans(self, trained: Trained) -> list[Plan]:
        stream = trained.held_out()
        wanted: Wanted = {(length, None): available(stream, length, self.tokens) for length in self.lengths}
        identity = {"data_hash": hash_tokens(stream)}
        return [Plan(identity, wanted, lambda todo: self.measure(trained, todo, stream))]

    @staticmethod
    def measure(trained: Trained, todo: Sequence[SampleRange], stream: np.ndarray) -> Results:
        """Measures sequences of the stream [tokens], shorter ones first."""
        raise NotImplementedError

    def texts(self, length: int) -> float:
        return max(1.0, self.tokens / length)

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        if record is None or "of" not in record:
            return None
        return min(max(1, self.tokens // length), record["of"])

    @staticmethod
    def mean(values: Sequence[float], weights: Sequence[float]) -> float:
        return math.exp(np.average(np.log(values), weights=weights))  # the mean of the losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Perplexity(HeldOutText):
    """Perplexity of all tokens of held-out text, each given those before it."""

    name = "perplexity"
    record = PerplexityRecord
    identity = ("window", "data_hash")
    figure = "position"

    @staticmethod
    def mismatch(record: Mapping[str, Any]) -> str:
        windows = -(-record["length"] // record["window"])
        return "" if len(record["windows"]) == windows else f"{len(record['windows'])} windows, not {windows}"

    @staticmethod
    def measure(trained: Trained, todo: Sequence[SampleRange], stream: np.ndarray) -> Results:
        row, rows = fit_rows(trained, todo)
        window = trained.config.context
        for samples in sorted(todo, key=lambda samples: samples.length):
            inputs, targets = (sequences(stream, samples, shift=shift) for shift in (0, 1))
            nll = token_losses(trained.decoder, inputs, targets, row=row, rows=rows)
            value, of = to_perplexity(nll.mean(dtype=np.float64)), (len(stream) - 1) // samples.length
            result = {"value": value, "unit": "perplexity per token", "of": of}
            yield samples, result | {"window": window, "windows": by_window(nll, window)}


def to_perplexity(loss: float) -> float:
    with np.errstate(over="ignore"):  # an infinite perplexity is refused when it is written
        return float(np.exp(loss))


def available(stream: np.ndarray, length: int, tokens: int) -> int:
    """The number of non-overlapping sequences of a length in `tokens` of a stream [tokens], at least one.

    >>> available(np.zeros(1000), 64, 512)
    8
    """
    targets = len(stream) - 1
    if targets < length:
        raise UserError(
            f"the held-out text has {len(stream)} tokens, too few for a sequence of length {length} and the token after "
            "it; give a shorter length, or more text with --config.data.source=FOLDER or --config.data.holdout"
        )
    return max(1, min(tokens, targets) // length)


def token_losses(
    decoder: transformer.Decoder, inputs: np.ndarray, targets: np.ndarray, *, row: int, rows: int
) -> np.ndarray:
    """Negative log-likelihood of each target, in nats, [sequences, length] float32.

        nll[n, t] = -log p(targets[n, t] | inputs[n]), of which a decoder sees inputs[n, 0] ... inputs[n, t]

    Sequences shorter than a row are packed into it, as documents with positions of their own, so that all lengths share a
    compiled program.

    Args:
        inputs, targets: [sequences, length] ids.
    """
    count, length = inputs.shape
    each = row // length
    position, segment = np.full((1, row), EMPTY, np.int32), np.zeros((1, row), np.int32)
    position[0, : each * length] = np.tile(np.arange(length), each)
    segment[0, : each * length] = np.repeat(np.arange(1, each + 1), length)
    graph, state = nnx.split(decoder)
    parts = []
    for first in range(0, count, rows * each):
        stop = min(first + rows * each, count)
        padded = np.zeros((2, rows, row), np.int32)
        for side, ids in zip(padded, (inputs, targets), strict=True):
            text = np.zeros((rows * each, length), np.int32)
            text[: stop - first] = ids[first:stop]
            side[:, : each * length] = text.reshape(rows, -1)
        nll = np.asarray(_nll(graph, state, *padded, position, segment))
        parts.append(nll[:, : each * length].reshape(-1, length)[: stop - first])
    return np.concatenate(parts)


def sequences(stream: np.ndarray, samples: SampleRange, *, shift: int = 0) -> np.ndarray:
    """The tokens of samples, [sequences, length]: sample n starts at n L + shift in the stream [tokens], with L the length."""
    start, stop = (number * samples.length + shift for number in (samples.first, samples.stop))
    return stream[start:stop].reshape(samples.n, samples.length)


def by_window(nll: np.ndarray, window: int) -> list[float]:
    """Mean loss in nats of each window of positions, from [sequences, length]; the last window may be shorter.

    >>> by_window(np.array([[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]), 2)
    [2.5, 5.5]
    """
    starts = range(0, nll.shape[1], window)
    return [round(float(nll[:, start : start + window].mean(dtype=np.float64)), 6) for start in starts]


def fit_rows(trained: Trained, todo: Sequence[SampleRange]) -> tuple[int, int]:
    """The length of a row, that of the longest sample, and the number of rows that are computed at once."""
    for samples in todo:
        trained.decoder.check_length(samples.length)
    row = max((samples.length for samples in todo), default=0)
    longest = max((samples.n for samples in todo if samples.length == row), default=0)
    return row, min(longest, rows_within(trained.memory, row, trained.decoder.config)) if row else 0


@functools.partial(jax.jit, static_argnums=0)
def _nll(
    graph: nnx.GraphDef, state: nnx.State, tokens: Array, targets: Array, position: Array, segment: Array
) -> Array:
    decoder = nnx.merge(graph, state)
    hidden, _ = decoder.hidden(tokens, position=position, segment=segment)
    vectors, kernel, bias = decoder.unembedding(hidden)
    kernel = kernel.astype(vectors.dtype)

    def nll(row: tuple[Array, Array]) -> Array:
        logits = head_logits(row[0], kernel, bias)
        return jax.nn.logsumexp(logits) - logits[row[1]]

    flat = vectors.reshape(-1, vectors.shape[-1]), targets.reshape(-1)
    chunk = min(losses.chunk_rows(kernel.shape[1]), targets.size)
    return jax.lax.map(nll, flat, batch_size=chunk).reshape(targets.shape)
