"""Long texts read in chunks, one or several with a common beginning, and text written on: all through the cache."""

import collections
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from bam_jax.attention import EMPTY
from bam_jax.models import per_device
from bam_jax.models.sampling import GREEDY, Sampling
from bam_jax.models.transformer import Caches, Decoder
from bam_jax.system.errors import UserError

SLOTS = 128
"""Tokens of which short prompts are padded to a multiple, and a cache has room for a multiple."""
CHUNK = 4096
"""Tokens of a prompt that are read at once."""


def read_in_chunks(
    model: Decoder,
    tokens: Int[Array, "B T"],
    *,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
    read: int = 1,
    slots: int = 0,
) -> Iterator[tuple[Float[Array, "B R V"], Caches]]:
    """Read a text chunk by chunk, in O(T) memory, and give the logits of each chunk's last rows.

    The text is padded to whole chunks on the left. Texts of different lengths share one compiled program as long as their
    batch, `chunk`, `read` and `slots` are the same.

    Args:
        lengths: tokens of each row's text, which are its last, those before being no text; None: all of them.
        read: number of last rows R of each chunk whose logits are wanted; a chunk is at least as long.
        slots: room in the caches, in tokens, the padding on the left included; at least what the text takes.

    Yields:
        The logits and the caches after each chunk, the caches being gone once the next chunk is read.

    Raises:
        UserError: more rows are wanted than the text has, or the text is longer than a learned position table.
    """
    batch, length = tokens.shape
    model.check_length(length)
    if not 0 <= read <= length:
        raise UserError(f"read={read} must be from 0 to the {length} tokens of the text: each row is that of a token")
    chunk = _in_parts(max(chunk, read))
    pad = -length % chunk  # on the left, so that the last chunk is whole and ends with the rows that are wanted
    tokens = jnp.pad(tokens, ((0, 0), (pad, 0)))
    position = jnp.arange(-pad, length, dtype=jnp.int32)[None]
    if lengths is not None:
        position = position - length + jnp.asarray(lengths, jnp.int32)[:, None]
    position = jnp.where(position < 0, EMPTY, position)
    slots = math.ceil(max(slots, length) / chunk) * chunk
    graph, state = nnx.split(model)
    caches = _empty(graph, state, batch, slots, lengths is None)
    for start in range(0, length + pad, chunk):
        piece = slice(start, start + chunk)
        logits, caches = _read(graph, state, tokens[:, piece], position[:, piece], caches, read)
        yield logits, caches


def prefill(
    model: Decoder,
    tokens: Int[Array, "B T"],
    *,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
    read: int = 1,
    slots: int = 0,
) -> tuple[Float[Array, "B R V"], Caches]:
    """Logits of a prompt's last `read` rows, and the caches filled with it; arguments as in `read_in_chunks`."""
    chunk = min(chunk, max(slots, tokens.shape[1]))
    chunks = read_in_chunks(model, tokens, lengths=lengths, chunk=chunk, read=read, slots=slots)
    (last,) = collections.deque(chunks, maxlen=1)
    return last


def generate(
    model: Decoder,
    tokens: Int[Array, "B T"],
    steps: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    vocab: int | None = None,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
    progress: Callable[[int], object] = lambda count: None,
) -> Iterator[Int[Array, " B"]]:
    """Tokens after a prompt, one after another, each drawn as soon as it is asked for.

    Args:
        tokens: a prompt in each row, one token at least.
        steps: tokens that are written, at most: caches have room for so many.
        vocab: ids below it are written; None: all of the model's, among them those that only pad its vocabulary.
        lengths, chunk: see `read_in_chunks`.
        progress: called with the number of tokens, padding included, of each chunk of the prompt that has been read.

    Yields:
        The next token of each row.

    Raises:
        UserError: prompt and steps together are longer than a learned position table, or there is no prompt.
    """
    if steps < 1:
        return
    length = tokens.shape[1]
    model.check_length(length + steps - 1)
    # In blocks, prompts and room: those of about one length share what is compiled.
    chunk = _in_parts(max(1, min(chunk, math.ceil(length / SLOTS) * SLOTS)))
    room = math.ceil(steps / SLOTS) * SLOTS * per_device.text_parts()  # a token takes a slot on every device
    slots = length + -length % chunk + room
    for last in read_in_chunks(model, tokens, lengths=lengths, chunk=chunk, slots=slots):
        jax.block_until_ready(last[0])
        progress(chunk)
    logits, caches = last
    end = jnp.full(1, length, jnp.int32) if lengths is None else jnp.asarray(lengths, jnp.int32)
    graph, state = nnx.split(model)
    layers = _layer_states(graph, state)
    key = jax.random.key(seed)
    token = _draw(logits, key, sampling, vocab)
    yield token
    for n in range(steps - 1):
        at, key_of_step = end[:, None] + n, jax.random.fold_in(key, n)
        token, caches = _write(graph, state, layers, token, at, caches, key_of_step, sampling, vocab)
        yield token


def greedy(
    model: Decoder,
    tokens: Int[Array, "B T"],
    steps: int,
    *,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
) -> Int[Array, "B N"]:
    """The `steps` most likely tokens after a prompt, one after another; arguments as in `read_in_chunks`."""
    tokens = jnp.asarray(tokens, jnp.int32)
    if tokens.ndim != 2 or steps < 0:
        raise UserError(f"tokens {tokens.shape} and steps={steps} must be ids [rows, tokens] and 0 or more")
    written = list(generate(model, tokens, steps, lengths=lengths, chunk=chunk))
    return jnp.stack(written, axis=1) if written else jnp.zeros((len(tokens), 0), jnp.int32)


class TextReader:
    """Reads texts one after another, each from where it parts from the one before, in O(T) memory.

    What two texts have in common at their beginnings is computed once, in whole chunks. Of texts that share a trunk, such as
    prompts whose needle stands deeper and deeper in one haystack, the deepest is best read first.

    Args:
        length: tokens that texts are padded to, on the left, besides what whole chunks need.
        chunk: tokens read at once, at most; those of a length are as equal as blocks of 256 allow.
        read: number of last rows R whose logits are wanted; a chunk is at least as long.

    Raises:
        UserError: the length is longer than a learned position table.
    """

    def __init__(self, model: Decoder, length: int, *, chunk: int, read: int):
        model.check_length(length)
        block = min(256, chunk)
        equal = math.ceil(length / math.ceil(length / chunk))
        self.chunk, self.read = _in_parts(max(read, math.ceil(equal / block) * block)), read
        self.slots = math.ceil(length / self.chunk) * self.chunk
        self._graph, self._state = nnx.split(model)
        # The text before in its slots, the number of slots before it, and the caches.
        self._last: tuple[np.ndarray, int, Caches] | None = None
        self._states: list[Any] = []  # of the caches before each chunk of that text

    def __call__(self, tokens: Int[np.ndarray, " T"]) -> Float[Array, "R V"]:
        """Logits of the last rows of a text, of at most as many tokens as the reader was made for and at least `read`."""
        pad = self.slots - len(tokens)
        text = np.pad(tokens, (pad, 0))
        start = 0
        if self._last is None:
            caches = _empty(self._graph, self._state, 1, self.slots, True)
        else:
            before, pad_before, caches = self._last
            if (
                pad_before == pad
            ):  # from the chunk on that differs; the last is always read, since its logits are wanted
                differs = text[: -self.chunk] != before[: -self.chunk]
                start = int(np.append(differs, True).argmax()) // self.chunk * self.chunk
            state = self._states[start // self.chunk]
            caches, self._last = _rewind(caches, start, state), None  # donated: they are not to be used again
        del self._states[start // self.chunk :]
        for at in range(start, self.slots, self.chunk):
            position = np.arange(at, at + self.chunk, dtype=np.int32)[None] - pad
            position = np.where(position < 0, EMPTY, position)
            piece = text[None, at : at + self.chunk]
            self._states.append(jax.tree.map(np.array, [cache.state for cache in caches]))  # copies: caches are donated
            # Every chunk gives logits: a second program, for chunks without them, would cost more to compile.
            logits, caches = _read(self._graph, self._state, piece, position, caches, self.read)
        self._last = text, pad, caches
        return logits[0]


def _in_parts(chunk: int) -> int:
    """The tokens of a chunk, of which every device that shares a text has as many."""
    parts = per_device.text_parts()
    return math.ceil(chunk / parts) * parts


@functools.partial(jax.jit, donate_argnums=0)
def _rewind(caches: Caches, length: int, states: list[Any]) -> Caches:
    return tuple(per_device.rewound(cache, length, state) for cache, state in zip(caches, states, strict=True))


# The unused state commits the caches to its devices. Without it `_read`, which returns committed ones, is compiled twice.
@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4), keep_unused=True)
def _empty(graph: nnx.GraphDef, state: nnx.State, batch: int, slots: int, common: bool) -> Caches:
    return nnx.merge(graph, state).caches(batch, slots, common_positions=common)


@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=(4,))
def _read(
    graph: nnx.GraphDef, state: nnx.State, tokens: Array, position: Array, caches: Caches, read: int
) -> tuple[Array, Caches]:
    return nnx.merge(graph, state)(tokens, position=position, caches=caches, read=read)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _draw(logits: Array, key: Array, sampling: Sampling, vocab: int | None) -> Array:
    return sampling(logits[:, -1, :vocab], key)


@functools.partial(jax.jit, static_argnums=0)
def _layer_states(graph: nnx.GraphDef, state: nnx.State) -> list[nnx.State]:
    return nnx.merge(graph, state).layer_states()


@functools.partial(jax.jit, static_argnums=(0, 7, 8), donate_argnums=(5,))
def _write(
    graph: nnx.GraphDef,
    state: nnx.State,
    layers: list[nnx.State],
    token: Array,
    position: Array,
    caches: Caches,
    key: Array,
    sampling: Sampling,
    vocab: int | None,
) -> tuple[Array, Caches]:
    model = nnx.merge(graph, state)
    logits, caches = model(token[:, None], position=position, caches=caches, read=1, layers=layers)
    return _draw(logits, key, sampling, vocab), caches
