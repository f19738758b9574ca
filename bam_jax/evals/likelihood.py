"""The likelihood of continuations after contexts of any length, with few compiled shapes.

Source: the requests of the LM Evaluation Harness; truncation in the middle as in LongBench (Bai et al. 2023).
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bam_jax.evals.plan import rows_within
from bam_jax.models import transformer
from bam_jax.models.layers import head_logits
from bam_jax.retrieval.embedding import padded_length
from bam_jax.system.errors import UserError
from bam_jax.training import losses

LEAST = 32
"""Tokens that the shortest texts are padded to."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A continuation whose likelihood after a context of at least one token is requested, both [tokens] int32."""

    context: np.ndarray
    continuation: np.ndarray


def middle(tokens: np.ndarray, most: int) -> np.ndarray:
    """A text [tokens], without its middle if it has more than `most` tokens: the rest is half beginning, half end.

    Source: LongBench, whose prompts explain the task at the beginning and ask the question at the end.

    >>> middle(np.arange(9), 5)
    array([0, 1, 6, 7, 8])
    """
    if len(tokens) <= most:
        return tokens
    return np.concatenate([tokens[: most // 2], tokens[len(tokens) - (most - most // 2) :]])


def fitting(request: Request, budget: int) -> Request:
    """A request that reads at most `budget` tokens; its context is cut in the middle. The last token is not read."""
    room = budget + 1 - len(request.continuation)
    if room < 1:
        raise UserError(
            f"a continuation of {len(request.continuation)} tokens does not fit into {budget}; give more, as in "
            f"--lengths={len(request.continuation)}"
        )
    return Request(middle(request.context, room), request.continuation)


def batches(
    lengths: Sequence[int], budget: int, rows_of: Callable[[int], int]
) -> Iterator[tuple[int, list[tuple[list[int], int]]]]:
    """For each padded length, the longest first: batches of texts, each with its padded number of rows.

    >>> list(batches([40, 100, 45, 41], 512, lambda length: 2))
    [(128, [([1], 1)]), (48, [([0, 2], 2), ([3], 1)])]
    """
    groups = collections.defaultdict(list)
    for number, length in enumerate(lengths):
        groups[padded_length(max(length, LEAST), budget)].append(number)
    for length in sorted(groups, reverse=True):
        rows = _power(rows_of(length) + 1) // 2
        yield length, [(list(batch), _power(len(batch))) for batch in itertools.batched(groups[length], rows)]


def score(
    decoder: transformer.Decoder, requests: Sequence[Request], *, budget: int, memory: float
) -> list[tuple[float, bool]]:
    """The log-likelihood of each continuation after its context, and whether greedy decoding would write it.

        sum_t log p(continuation[t] | context, continuation[< t])

    Requests with the same input tokens, such as the answers A, B, C and D of one question, are read once.
    """
    read: dict[bytes, list[int]] = collections.defaultdict(list)
    fit = [fitting(request, budget) for request in requests]
    inputs = [np.concatenate([r.context, r.continuation[:-1]]).astype(np.int32) for r in fit]
    for number, tokens in enumerate(inputs):
        read[tokens.tobytes()].append(number)
    rows = [_Row(inputs[numbers[0]], [(n, fit[n].continuation) for n in numbers]) for numbers in read.values()]
    sums, greedy = np.zeros(len(requests)), np.ones(len(requests), bool)
    graph, state = nnx.split(decoder)
    lengths = [len(row.tokens) for row in rows]
    for length, group in batches(lengths, budget, lambda length: rows_within(memory, length, decoder.config)):
        asked = _power(max(rows[number].asked for batch, _ in group for number in batch))
        for batch, size in group:
            tokens, places, targets = (np.zeros((size, n), np.int32) for n in (length, asked, asked))
            owner = np.full((size, asked), -1)
            for row, number in enumerate(batch):
                tokens[row, : lengths[number]] = rows[number].tokens
                rows[number].ask(places[row], targets[row], owner[row])
            # Padding is at the end of a row, where no token of a causal model sees it.
            found, best = map(np.asarray, _logprobs(graph, state, tokens, places, targets))
            real = owner >= 0
            np.add.at(sums, owner[real], found[real])
            np.logical_and.at(greedy, owner[real], best[real])
    return list(zip(sums.tolist(), greedy.tolist(), strict=True))


@dataclasses.dataclass(frozen=True)
class _Row:
    """Tokens that are read once, and the continuations to score after them, by number of the request."""

    tokens: np.ndarray
    continuations: list[tuple[int, np.ndarray]]

    @property
    def asked(self) -> int:
        return sum(len(continuation) for _, continuation in self.continuations)

    def ask(self, places: np.ndarray, targets: np.ndarray, owner: np.ndarray) -> None:
        """Fill in the position, the id and the request of each token to score."""
        stop = 0
        for number, continuation in self.continuations:
            start, stop = stop, stop + len(continuation)
            here = slice(start, stop)
            places[here] = np.arange(len(self.tokens) - len(continuation), len(self.tokens))
            targets[here], owner[here] = continuation, number


@functools.partial(jax.jit, static_argnums=0, static_argnames="read")
def most_likely(
    graph: nnx.GraphDef,
    state: nnx.State,
    tokens: Int[Array, "B T"],
    position: Int[Array, "#B T"] | None = None,
    *,
    read: int,
) -> Int[Array, "B read"]:
    """The most likely token after each of the last ones."""
    logits, _ = nnx.merge(graph, state)(tokens, position=position, read=read)
    return jnp.argmax(logits, axis=-1)


def _power(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


@functools.partial(jax.jit, static_argnums=0)
def _logprobs(
    graph: nnx.GraphDef,
    state: nnx.State,
    tokens: Int[Array, "B T"],
    places: Int[Array, "B C"],
    targets: Int[Array, "B C"],
) -> tuple[Float[Array, "B C"], Bool[Array, "B C"]]:
    decoder = nnx.merge(graph, state)
    hidden, _ = decoder.hidden(tokens)
    picked = jnp.take_along_axis(hidden, places[..., None], axis=1).reshape(-1, hidden.shape[-1])
    picked, kernel, bias = decoder.unembedding(picked)
    kernel = kernel.astype(picked.dtype)

    def head(row: tuple[Array, Array]) -> tuple[Array, Array]:
        vector, target = row
        logits = head_logits(vector, kernel, bias)
        return logits[target] - jax.nn.logsumexp(logits), jnp.argmax(logits) == target

    # The batch size limits how many rows of logits exist at once.
    found, best = jax.lax.map(head, (picked, targets.ravel()), batch_size=losses.chunk_rows(kernel.shape[1]))
    return found.reshape(targets.shape), best.reshape(targets.shape)
