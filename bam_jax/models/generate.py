"""Reading long texts in chunks, one or several with a common beginning, and continuing them: all through the cache.

With `model.prune_cache` ("exact", or a share of a row's mass) heads keep only as many tokens as their prior reaches. Each step
checks that what was dropped is negligible. If it may not be, the heads in question keep twice as much and the text is read again.
"""

import argparse
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

from bam_jax.attention import EMPTY, PrunedCache
from bam_jax.attention.pruned import Groups, grouped
from bam_jax.models import per_device
from bam_jax.models.sampling import GREEDY, Sampling
from bam_jax.models.transformer import Caches, Decoder
from bam_jax.system.errors import UserError

SLOTS = 128
"""Short prompts are padded to a multiple of this many tokens, and a cache has room for a multiple of it."""
CHUNK = 4096
"""Tokens of a prompt that are read at once."""


def prune_option(parser: argparse.ArgumentParser) -> None:
    """Add --prune-cache to a command line; `tolerance` reads its value."""
    parser.add_argument(
        "--prune-cache",
        default="off",
        metavar="off|exact|SHARE",
        help="keep only keys that a head's prior reaches; SHARE: of attention that dropped keys may hold, such as 1e-4 (off)",
    )


def tolerance(text: str) -> float | str:
    """The value of --prune-cache: "off", "exact", or a share of attention between 0 and 1.

    >>> tolerance("1e-4")
    0.0001
    """
    if text in ("off", "exact"):
        return text
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(
            f"prune_cache={text} must be exact, off, or a share of attention above 0 and below 1, such as 1e-4"
        )
    return share


class Kept:
    """The number of tokens that each key head keeps, per layer. It grows for heads whose check fails.

    Args:
        slots: capacity of a whole cache.
        most: tokens above which a head keeps everything; None: no limit.
    """

    def __init__(self, model: Decoder, slots: int, most: int | None = None):
        # Each device stores buffers whole, and these are no longer than its part of a whole cache.
        self.parts, self.devices = per_device.text_parts(), per_device.head_parts()
        self.slots, self.most, self._grown = slots, min(most or slots, slots // self.parts), 0
        self._reach: list[np.ndarray] | None = None
        if tolerance(str(model.prune_cache)) != "off":
            self._reach = [np.array(reach) for reach in _reach(*nnx.split(model), slots)]

    @property
    def groups(self) -> tuple[Groups, ...] | None:
        """Head groups per layer; () if the layer keeps everything; None if pruning is off."""
        if self._reach is None:
            return None
        limited = (np.where(reach > self.most, self.slots, reach) for reach in self._reach)
        found = (grouped(reach.tolist(), self.slots, self.devices) for reach in limited)
        return tuple(() if all(not kept for _, kept in groups) else groups for groups in found)

    def grow(self, caches: Caches) -> bool:
        """Double the buffers of heads whose check failed, and return whether there are any."""
        if self._reach is None or self.groups is None:
            return False
        missed = jax.device_get([cache.missed if isinstance(cache, PrunedCache) else False for cache in caches])
        if not any(np.any(heads) for heads in missed):
            return False
        self._grown += 1
        for reach, groups, heads in zip(self._reach, self.groups, missed, strict=True):
            for members, kept in groups:
                if kept:  # a group's buffer may be longer than what a head asked for
                    reach[list(members)] = kept
            # Each growth reads the text again. After a few, a layer's heads no longer grow one by one.
            reach[heads if self._grown <= 3 else np.any(heads) & (reach < self.slots)] *= 2
        return True

    def share(self) -> float:
        """The share of a whole cache's slots that each device keeps."""
        if self._reach is None or self.groups is None:
            return 1.0
        layers = zip(self.groups, self._reach, strict=True)
        kept = [
            sum((kept * self.parts or self.slots) * len(heads) for heads, kept in groups) or self.slots * len(reach)
            for groups, reach in layers
        ]
        return sum(kept) / (self.slots * sum(map(len, self._reach)))


def read_in_chunks(
    model: Decoder,
    tokens: Int[Array, "B T"],
    *,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
    read: int = 1,
    slots: int = 0,
    kept: Kept | None = None,
) -> Iterator[tuple[Float[Array, "B R V"], Caches]]:
    """Read a text chunk by chunk, in O(T) memory, and yield the logits of each chunk's last rows.

    The text is padded to whole chunks on the left. Texts of different lengths share one compiled program as long as their
    batch, `chunk`, `read` and `slots` are the same.

    Args:
        lengths: number of tokens of each row's text, which ends the row; anything before it is ignored. None: all tokens.
        read: number of last rows R of each chunk whose logits are wanted; a chunk is at least as long.
        slots: room in the caches, in tokens, including the padding on the left; at least what the text takes.
        kept: how many tokens heads keep, if that is known from an earlier text.

    Yields:
        The logits and the caches after each chunk. The caches are no longer valid once the next chunk is read.

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
    kept, done = kept or Kept(model, slots), 0
    while done < length + pad:
        caches = logits = None  # freed before there are new ones
        caches = _empty(graph, state, batch, slots, lengths is None, kept.groups)
        for start in range(0, length + pad, chunk):
            piece = slice(start, start + chunk)
            logits, caches = _read(graph, state, tokens[:, piece], position[:, piece], caches, read)
            if kept.grow(caches):
                break  # start again, with more room
            if start >= done:
                yield logits, caches
                done = start + chunk


def prefill(
    model: Decoder,
    tokens: Int[Array, "B T"],
    *,
    lengths: Int[Array, " B"] | None = None,
    chunk: int = CHUNK,
    read: int = 1,
    slots: int = 0,
    kept: Kept | None = None,
) -> tuple[Float[Array, "B R V"], Caches]:
    """Logits of a prompt's last `read` rows, and the caches filled with it; arguments as in `read_in_chunks`."""
    chunk = min(chunk, max(slots, tokens.shape[1]))
    chunks = read_in_chunks(model, tokens, lengths=lengths, chunk=chunk, read=read, slots=slots, kept=kept)
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
    """Generate tokens after a prompt, one after another, each drawn when it is requested.

    Args:
        tokens: a prompt in each row, of at least one token.
        steps: number of tokens to generate, at most: caches have room for this many.
        vocab: only ids below it are generated; None: all of the model's, including those that only pad its vocabulary.
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
    # Prompts and room are whole blocks, so that similar lengths share compiled programs.
    chunk = _in_parts(max(1, min(chunk, math.ceil(length / SLOTS) * SLOTS)))
    # On a mesh, each token takes a slot on every device that shares the text.
    room = lambda tokens: math.ceil(tokens / SLOTS) * SLOTS * per_device.text_parts()
    kept = Kept(model, math.ceil((length + chunk + room(steps)) / chunk) * chunk)
    for last in read_in_chunks(
        model, tokens, lengths=lengths, chunk=chunk, slots=length + -length % chunk + room(steps), kept=kept
    ):
        jax.block_until_ready(last[0])
        progress(chunk)
    logits, caches = last
    end = jnp.full(1, length, jnp.int32) if lengths is None else jnp.asarray(lengths, jnp.int32)
    graph, state = nnx.split(model)
    layers = _layer_states(graph, state)
    key = jax.random.key(seed)
    token = _draw(logits, key, sampling, vocab)
    yield token
    text = [jnp.asarray(tokens, jnp.int32)]
    for n in range(steps - 1):
        text.append(token[:, None])
        at, key_of_step = end[:, None] + n, jax.random.fold_in(key, n)
        token, caches = _write(graph, state, layers, token, at, caches, key_of_step, sampling, vocab)
        if kept.grow(caches):
            caches = ()  # freed before there are new ones
            so_far = jnp.concatenate(text, 1)
            slots = so_far.shape[1] + -so_far.shape[1] % chunk + room(steps - n - 1)
            of_rows = None if lengths is None else end + n + 1
            logits, caches = prefill(model, so_far, lengths=of_rows, chunk=chunk, slots=slots, kept=kept)
            token = _draw(logits, key_of_step, sampling, vocab)
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
    """Reads texts one after another, each from where it differs from the text before, in O(T) memory.

    The common beginning of two texts is computed once, in whole chunks. For texts that share a trunk, such as prompts with a
    needle at increasing depths of one haystack, read the deepest first.

    Args:
        length: number of tokens that texts are padded to, on the left, before rounding up to whole chunks.
        chunk: largest number of tokens read at once; the chunks of a text are as equal as blocks of 256 allow.
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
        # Buffers are copied before each chunk, to rewind to it. Longer ones would take more memory than whole caches.
        self.kept = Kept(model, self.slots, most=self.chunk)
        # The previous text in its slots, the number of slots before it, and the caches.
        self._last: tuple[np.ndarray, int, Caches] | None = None
        self._states: list[Any] = []  # of the caches before each chunk of that text

    def __call__(self, tokens: Int[np.ndarray, " T"]) -> Float[Array, "R V"]:
        """Logits of the last rows of a text, which has at most `length` tokens and at least `read`."""
        pad = self.slots - len(tokens)
        text = np.pad(tokens, (pad, 0))
        logits = self._logits(text, pad)
        while logits is None:
            logits = self._logits(text, pad)
        return logits

    def _logits(self, text: np.ndarray, pad: int) -> Float[Array, "R V"] | None:
        """Logits of the last rows; None if heads may have missed something, and will keep more from now on."""
        start = 0
        if self._last is None:
            caches = _empty(self._graph, self._state, 1, self.slots, True, self.kept.groups)
        else:
            before, pad_before, caches = self._last
            if (
                pad_before == pad
            ):  # from the first chunk that differs; the last one is always read, because its logits are wanted
                differs = text[: -self.chunk] != before[: -self.chunk]
                start = int(np.append(differs, True).argmax()) // self.chunk * self.chunk
            state = self._states[start // self.chunk]
            state = jax.tree.map(per_device.OnHost.array, state)
            caches, self._last = _rewind(caches, start, state), None  # donated: they must not be used again
        del self._states[start // self.chunk :]
        for at in range(start, self.slots, self.chunk):
            position = np.arange(at, at + self.chunk, dtype=np.int32)[None] - pad
            position = np.where(position < 0, EMPTY, position)
            piece = text[None, at : at + self.chunk]
            saved = [cache.to_save for cache in caches]
            self._states.append(jax.tree.map(per_device.OnHost.of, saved))  # copies: caches are donated
            # Every chunk computes logits: a second program, for chunks without them, would cost more to compile.
            logits, caches = _read(self._graph, self._state, piece, position, caches, self.read)
            if self.kept.grow(caches):
                return None
        self._last = text, pad, caches
        return logits[0]


def _in_parts(chunk: int) -> int:
    """The tokens of a chunk, rounded up so that every device that shares a text has equally many."""
    parts = per_device.text_parts()
    return math.ceil(chunk / parts) * parts


@functools.partial(jax.jit, donate_argnums=0)
def _rewind(caches: Caches, length: int, states: list[Any]) -> Caches:
    return tuple(per_device.rewound(cache, length, state) for cache, state in zip(caches, states, strict=True))


# The unused state commits the caches to its devices. Without it `_read`, which returns committed ones, is compiled twice.
@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4, 5), keep_unused=True)
def _empty(
    graph: nnx.GraphDef, state: nnx.State, batch: int, slots: int, common: bool, groups: tuple[Groups, ...] | None
) -> Caches:
    return nnx.merge(graph, state).caches(batch, slots, common_positions=common, groups=groups)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _reach(graph: nnx.GraphDef, state: nnx.State, slots: int) -> list[Array]:
    return nnx.merge(graph, state).reach(slots)


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
