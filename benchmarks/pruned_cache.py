"""Time decoding one token after a long text, alternating between pruned and whole caches.

    python -m benchmarks.pruned_cache --config=configs/lm_120m.py --config.model.vocab=32768 --config.model.dtype=float32 \\
        --config.encoding=alibi --config.ssmax=off --tokens=131072 \\
        --out=benchmarks/records/pruned_cache_cpu.json

    python -m benchmarks.pruned_cache --config=configs/lm_120m.py --config.model.vocab=32768 --config.encoding=alibi \\
        --config.ssmax=off --sizes=32768,131072,524288

Parameters are random. Cached keys and values are random with unit variance, and the same in both caches. The whole cache is
measured twice: with blocks of negligible keys skipped, which is the default, and with every key read. The record has the bytes
of each cache, the seconds per token (the median of --repetitions), and the largest difference of the first token's logits.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from bam_jax import config as configs
from bam_jax.attention import Cache, Scoring, Tiling, Tokens
from bam_jax.attention.pruned import LayerCache
from bam_jax.biases import Uniform
from bam_jax.models import generate, transformer
from bam_jax.models.sampling import GREEDY
from bam_jax.system import console, files
from bam_jax.system.errors import UserError
from bam_jax.system.machine import machine

CHUNK = 8192


def filled(cache: LayerCache, key: jax.Array, tokens: int, like: tuple[int, int, int]) -> LayerCache:
    """A layer's cache after `tokens` random keys, with `like` = [rows, heads, width]."""

    def add(cache: LayerCache, start: jax.Array, key: jax.Array) -> LayerCache:
        rows, heads, width = like
        draw = lambda key: jax.random.normal(key, (rows, CHUNK, heads, width))
        k, v = map(draw, jax.random.split(key))
        new = Tokens(start + jnp.arange(CHUNK, dtype=jnp.int32)[None])
        if isinstance(cache, Cache):
            kinds = jax.tree.map(lambda _: jnp.zeros((1, CHUNK), jnp.int32), cache.tokens.kinds)
            return cache.append(k, v, Tokens(new.position, kinds=kinds))
        return cache.attend(k[:, :0], k, v, Scoring(Uniform(), new, new), tiling=Tiling())[1]

    add = jax.jit(add, donate_argnums=0)
    for start in range(0, tokens, CHUNK):
        cache = add(cache, start, jax.random.fold_in(key, start))
    return cache


class Filled:
    """The caches of a model after a text of random keys."""

    def __init__(self, model: transformer.Decoder, tokens: int, room: int):
        self.kept, self.position, sizes = generate.Kept(model, tokens + room), tokens, model.config
        caches = generate._empty(*nnx.split(model), 1, tokens + room, True, self.kept.groups)
        like = 1, sizes.kv_heads or sizes.heads, sizes.head_width
        keys = jax.random.split(jax.random.key(1), len(caches))
        self.caches = tuple(filled(cache, key, tokens, like) for cache, key in zip(caches, keys, strict=True))
        self.bytes = sum(x.nbytes for x in jax.tree.leaves(self.caches))


class Contender:
    """A model that decodes token after token after a text."""

    def __init__(self, model: transformer.Decoder, filled: Filled, skip: str):
        for stack in model.stacks():
            stack.attention.tiling = Tiling(skip=skip)
        self.graph, self.state = nnx.split(model)
        self.layers, self.filled = generate._layer_states(self.graph, self.state), filled

    def logits(self) -> jax.Array:
        """Logits of the next token."""
        text = self.filled
        at = jnp.full((1, 1), text.position, jnp.int32)
        logits, text.caches = generate._read(self.graph, self.state, jnp.zeros((1, 1), jnp.int32), at, text.caches, 1)
        text.position += 1
        return logits

    def step(self) -> float:
        """Decode one token, and return the seconds it took."""
        text, token = self.filled, jnp.zeros(1, jnp.int32)
        at, key = jnp.full((1, 1), text.position, jnp.int32), jax.random.key(0)
        start = time.perf_counter()
        token, text.caches = generate._write(
            self.graph, self.state, self.layers, token, at, text.caches, key, GREEDY, None
        )
        if text.kept.grow(text.caches):
            raise SystemExit("dropped keys may matter: the text would have been read again")
        token.block_until_ready()
        text.position += 1
        return time.perf_counter() - start


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.pruned_cache", description=__doc__)
    parser.add_argument("--config", type=files.local, required=True, help="a configuration file")
    parser.add_argument("--tokens", type=int, default=131_072, help="of the text (131072)")
    parser.add_argument("--sizes", help="only print what is kept of texts of these lengths, as in 32768,131072")
    parser.add_argument("--repetitions", type=int, default=9, help="tokens that each contender decodes (9)")
    parser.add_argument("--out", type=files.local, help="a JSON file, to which the record is added")
    given, overrides = configs.parse(argv, parser)
    config = configs.load(given.config, overrides)
    model = transformer.build(config, vocab=config.model.vocab or 32_768, rngs=nnx.Rngs(0))
    if given.sizes is not None:
        model.prune_cache = "exact"
        for text in given.sizes.split(","):
            if not text.isdecimal() or not (tokens := int(text)):
                raise UserError(
                    f"--sizes={given.sizes} must be numbers of tokens, 1 or more, as in --sizes=32768,131072"
                )
            print(f"{tokens:,} tokens: {generate.Kept(model, tokens).share():.2%} of the keys")
        return
    texts = {}
    for prune in ("exact", "off"):
        console.log(f"filling a cache of {given.tokens:,} tokens, prune_cache={prune}")
        model.prune_cache = prune
        texts[prune] = Filled(model, given.tokens, 4 * given.repetitions + 4)
    pruned, whole = texts["exact"], texts["off"]
    contenders = {
        "pruned": Contender(model, pruned, "exact"),
        "whole": Contender(model, whole, "exact"),
        "whole, every key read": Contender(model, whole, "off"),
    }
    expected, got = contenders["whole"].logits(), contenders["pruned"].logits()
    for name, contender in contenders.items():
        console.log(f"compiling a step, {name}")
        contender.step()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(given.repetitions):
        for name, contender in contenders.items():
            seconds[name].append(contender.step())
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    record = {
        "encoding": config.encoding,
        "encoding_options": dict(config.encoding_options),
        "model": {name: getattr(config.model, name) for name in ("layers", "width", "heads", "hidden", "dtype")},
        "tokens": given.tokens,
        "bytes": {"pruned": pruned.bytes, "whole": whole.bytes},
        "share_of_bytes": pruned.bytes / whole.bytes,
        "seconds": medians,
        "times_as_long": {name: median / medians["pruned"] for name, median in medians.items()},
        "largest_difference": float(jnp.abs(expected - got).max()),
        "largest_logit": float(jnp.abs(expected).max()),
        "slots": sorted({kept for groups in pruned.kept.groups or () for _, kept in groups}),
        **machine(),
    }
    print(json.dumps(record, indent=1))
    if given.out:
        records = files.read_json(given.out) if Path(given.out).exists() else []
        files.write_atomically(given.out, json.dumps([*records, record], indent=1) + "\n")


if __name__ == "__main__":
    errors.run(main)
