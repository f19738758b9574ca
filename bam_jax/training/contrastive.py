"""Contrastive training: the loss of a batch of triplets, and its gradient in the memory of a micro-batch.

A query learns to be nearer to its own positive than to any other text of the whole batch, over all devices of the mesh: the
positives of the other queries, and all hard negatives. One model embeds queries and texts.

Source: Henderson et al. 2017 (arXiv 1705.00652), the loss, known as multiple negatives ranking; van den Oord et al. 2018
(arXiv 1807.03748), as InfoNCE; Gao et al. 2021 (arXiv 2101.06983), cached gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bam_jax.config.sections import TRIPLET
from bam_jax.models.embedding import embed_texts
from bam_jax.models.transformer import Decoder
from bam_jax.parallel import sharding

# Square of the smallest norm that an embedding is divided by. The embedding of a text without tokens is 0 and stays 0.
TINY = 1e-24


def ranking_loss(
    embeddings: Float[Array, "B 3 E"], excluded: Bool[Array, "B 2*B"], scale: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean cross-entropy of each query's own positive among its candidates, and the share of queries that find it.

        loss = mean_i (logsumexp_c s_ic - s_ii),   s_ic = scale cos(query_i, candidate_c),   c not excluded for i

    The candidates are all positives, then all negatives. A query finds its positive if no other candidate is as near.
    """
    squares = jnp.sum(embeddings**2, axis=-1, keepdims=True)
    # The bound is inside the root, because the gradient of the root at 0 is infinite.
    directions = embeddings * jax.lax.rsqrt(jnp.maximum(squares, TINY))
    query, candidates = directions[:, 0], jnp.concatenate([directions[:, 1], directions[:, 2]])
    # Fast products on an accelerator have three digits, and the scale multiplies the error of a cosine by 20.
    cosines = jnp.matmul(query, candidates.T, precision=jax.lax.Precision.HIGHEST)
    own = jnp.arange(len(query))[:, None] == jnp.arange(len(candidates))
    scores = jnp.where(excluded & ~own, -jnp.inf, scale * cosines)
    positive = jnp.sum(jnp.where(own, scores, 0), axis=1)
    others = jnp.max(jnp.where(own, -jnp.inf, scores), axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - positive), jnp.mean(positive > others)


def known_positives(batch: dict[str, Array]) -> Bool[Array, "B 2*B"]:
    """The candidates that the batch marks as correct for each query: the positives of all queries that equal it.

    They do not count as negatives, whichever triplet they come from. Texts are equal if all their tokens are.
    """
    query, positive, negative = ((batch[name], batch[f"{name}_length"]) for name in TRIPLET)
    candidates = jnp.concatenate([positive[0], negative[0]]), jnp.concatenate([positive[1], negative[1]])
    same_query = _equal_texts(query, query).astype(jnp.float32)
    same_text = _equal_texts(positive, candidates).astype(jnp.float32)
    return same_query @ same_text > 0  # sums of zeros and ones: the comparison with 0 is exact in any precision


def make_gradient(
    graph: nnx.GraphDef, count: int, scale: float, cut: Callable[[Any], Any]
) -> Callable[..., tuple[tuple[Array, ...], Any]]:
    """The function (params, frozen, batch) -> ((loss, accuracy), gradient) of a contrastive step.

    With several micro-batches (`count`), the gradient is cached, with the same result. Each micro-batch is embedded without a
    backward pass. The loss of all embeddings, which are small, gives its gradient with respect to them. Each micro-batch is then
    embedded again, to the same embeddings because there is no dropout, and backpropagates its part of that gradient.
    """

    def embed(params: Any, frozen: Any, part: dict[str, Array]) -> Float[Array, "R 3 E"]:
        # The three texts of a row stay together: rows are sharded over devices, and none is moved.
        tokens, length = (jnp.stack([part[name + end] for name in TRIPLET], axis=1) for end in ("", "_length"))
        rows = sharding.shard_activations(tokens.reshape(-1, tokens.shape[-1]))
        model: Decoder = nnx.merge(graph, params, frozen)
        return embed_texts(model, rows, length.reshape(-1)).reshape(*length.shape, -1)

    def gradient_of(params: Any, frozen: Any, batch: dict[str, Array], _: None = None) -> tuple[tuple[Array, ...], Any]:
        excluded = known_positives(batch)
        if count == 1:
            loss = lambda params: ranking_loss(embed(params, frozen, batch), excluded, scale)
            values, gradient = jax.value_and_grad(loss, has_aux=True)(params)
            return values, cut(gradient)
        parts = sharding.micro_batches(batch, count)
        embeddings = jax.lax.map(lambda part: embed(params, frozen, part), parts)
        loss = lambda embeddings: ranking_loss(sharding.join_micro_batches(embeddings), excluded, scale)
        values, cotangents = jax.value_and_grad(loss, has_aux=True)(embeddings)

        def add(total: Any, part: tuple[dict[str, Array], Array]) -> tuple[Any, None]:
            rows, cotangent = part
            _, pull_back = jax.vjp(lambda params: embed(params, frozen, rows), params)
            return jax.tree.map(jnp.add, total, cut(*pull_back(cotangent))), None

        gradient, _ = jax.lax.scan(add, cut(jax.tree.map(jnp.zeros_like, params)), (parts, cotangents))
        return values, gradient

    return gradient_of


def _equal_texts(
    texts: tuple[Int[Array, "B T"], Int[Array, " B"]], others: tuple[Int[Array, "C T"], Int[Array, " C"]]
) -> Bool[Array, "B C"]:
    """True where two texts have the same tokens; every pair is compared, at little cost compared with embedding them."""
    (tokens, length), (other_tokens, other_length) = texts, others

    def compare(equal: Bool[Array, "B C"], column: tuple[Int[Array, " B"], Int[Array, " C"]]) -> tuple[Array, None]:
        return equal & (column[0][:, None] == column[1]), None

    # Lengths are compared as well, because the padding id is a token in some vocabularies. Tokens are compared column by column,
    # because not every compiler fuses a comparison of all [B, C, T], 17 GB for a batch of 4096 with 512 tokens; a few columns at
    # a time, to pass over memory less often.
    equal = length[:, None] == other_length
    return jax.lax.scan(compare, equal, (tokens.T, other_tokens.T), unroll=min(8, tokens.shape[1]))[0]
