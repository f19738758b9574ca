"""Dropout of weights: the same bits in every backend and pass, on every device; their statistics; what is refused."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bam_jax import attend, biases
from bam_jax.attention import Dropout, Mask, Scoring, Tokens, attention
from bam_jax.models import per_device
from tests.attention.common import EACH, close, kept_by_definition, normals, slopes

B, T, H = 2, 13, 4
SEED = 2**32 - 5


def scoring(dropout, bias=None, causal=False):
    """Rows of two documents, whose positions are far from 0."""
    segment = 1 + (jnp.arange(T) >= jnp.asarray([[4], [9]]))
    tokens = Tokens(2**30 + jnp.arange(T)[None], segment)
    return Scoring(bias or biases.Uniform(), tokens, tokens, mask=Mask(causal=causal), dropout=dropout)


@pytest.fixture
def qkv(rng):
    return normals(rng, (B, T, H, 8), (B, T, 2, 8), (B, T, 2, 8))


@pytest.mark.parametrize("backend", [name for name in EACH if name != "cudnn"])
def test_every_backend_drops_the_same_weights_in_both_passes(backend, rng, small_tiles):
    """With the identity as values the output is the table of weights; as the output's cotangent, the values' is."""
    q, k = normals(rng, (B, T, H, T), (B, T, H, T))
    eye = jnp.broadcast_to(jnp.eye(T)[None, :, None], (B, T, H, T))

    @jax.jit
    def weights(dropout):
        of_values = lambda v: attention(q / 8, k / 8, v, scoring(dropout), backend=backend)
        out, d_values = slopes(of_values, eye, d_results=eye)
        return out.transpose(0, 2, 1, 3), d_values.transpose(0, 2, 3, 1)  # [B, H, T, S]

    whole = scoring(None).queries
    position, segment = np.asarray(whole.position)[0], np.asarray(whole.segment)
    expected = np.zeros((B, H, T, T), bool)
    for b, h, i, j in np.ndindex(expected.shape):
        words = b, h, segment[b, i], position[i]
        same = segment[b, i] == segment[b, j]
        expected[b, h, i, j] = same and kept_by_definition(0.3, SEED, *words, key=position[j])
    kept, plain = weights(Dropout(0.3, jnp.uint32(SEED))), weights(None)
    for made, undropped in zip(kept, plain, strict=True):
        np.testing.assert_array_equal(made > 0, expected)
        close(made, expected * undropped / 0.7)


def standardised(rate, seed, batch=2, heads=4, length=256):
    """Whether each weight is kept, less the mean and divided by the deviation that it should have, [B, H, T, S]."""
    tokens = Tokens(jnp.arange(length)[None])
    kept = Dropout(rate, seed).per_head(batch, heads).factor(tokens, tokens, jnp.dtype("float32")) > 0
    return (np.asarray(kept, np.float64) - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_bits_are_as_good_as_drawn(rate):
    """Each statistic within five deviations of what independent bits have."""
    x = standardised(rate, 0)
    shifted = {
        "mean": np.ones_like(x),
        "i": np.roll(x, 1, 2),
        "j": np.roll(x, 1, 3),
        "diagonal": np.roll(x, (1, 1), (2, 3)),
        "transposed": x.swapaxes(2, 3),
        "head": np.roll(x, 1, 1),
        "batch": x[::-1],
        "head and batch": np.roll(x, 1, 1)[::-1],
        "seed": standardised(rate, 1),
        "high bits of the seed": standardised(rate, 2**31),
        "squares": np.roll(x, 1, 2) * np.roll(x, 1, 3) * np.roll(x, (1, 1), (2, 3)),
    }
    for name, y in shifted.items():
        product = x * y
        if name == "transposed":  # a diagonal is its own
            product = product[..., ~np.eye(x.shape[2], dtype=bool)]
        independent = product.size / (2 if name in ("transposed", "batch") else 1)  # both have each pair twice
        assert abs(product.mean()) < 5 / np.sqrt(independent), name
    for size, y in itertools.product((8, 256), (x, x.swapaxes(2, 3))):  # chi-square of runs, along either side
        squares = np.square(y.reshape(-1, size).sum(1)) / size
        variance = 2 + (1 / (rate * (1 - rate)) - 6) / size  # of the square of a standardised binomial
        assert abs(squares.mean() - 1) < 5 * np.sqrt(variance / squares.size), size


def test_rate_0_is_the_program_without_dropout(qkv):
    program = lambda **options: str(jax.make_jaxpr(functools.partial(attend, **options))(*qkv))
    plain = program()
    assert program(dropout_rate=0.0, dropout_seed=3) == plain == program(dropout_rate=0)
    assert program(dropout_rate=0.1, dropout_seed=3) != plain


def test_seeds_are_integers_or_keys_and_map(qkv):
    run = jax.jit(functools.partial(attend, *qkv, dropout_rate=0.4))
    keys = jax.random.split(jax.random.key(3), 2)
    seeds = jax.vmap(jax.random.bits)(keys)
    first, second = (run(dropout_seed=seed) for seed in seeds)
    assert jnp.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(run(dropout_seed=keys[1]), second)
    for same in (int(seeds[1]), int(seeds[1]) - 2**32, np.int64(seeds[1])):
        np.testing.assert_allclose(attend(*qkv, dropout_rate=0.4, dropout_seed=same), second, atol=1e-5)
    close(jax.vmap(lambda seed: run(dropout_seed=seed))(seeds), jnp.stack([first, second]), 1e-6)
    alike = run(dropout_seed=jnp.full((B, H), 7))
    swapped = attend(*(x[::-1] for x in qkv), dropout_rate=0.4, dropout_seed=jnp.full((B, H), 7))
    close(swapped[::-1], alike, 1e-6)


def test_a_cached_query_drops_what_it_drops_in_the_whole_text(qkv):
    q, k, v = qkv
    whole = attend(q, k, v, dropout_rate=0.4, dropout_seed=1)
    close(attend(q[:, -3:], k, v, dropout_rate=0.4, dropout_seed=1), whole[:, -3:], 1e-6)


def test_every_device_drops_its_part_of_the_same_weights(rng):
    """Rows, heads and the text are cut, and the text goes round a ring."""
    q, k, v = normals(rng, (B, 8, H, 8), (B, 8, 2, 8), (B, 8, 2, 8))
    tokens, prior = Tokens(jnp.arange(8)[None]), biases.ALiBi(jnp.ones(H) / 2)
    mesh = jax.make_mesh((2, 1, 2, 2), ("data", "fsdp", "tensor", "context"), axis_types=(AxisType.Auto,) * 4)

    def of(attend, q, k, v, seed):
        return attend(q, k, v, Scoring(prior, tokens, tokens, dropout=Dropout(0.4, seed)))

    expected = slopes(functools.partial(of, functools.partial(attention, backend="reference")), q, k, v, 5)
    cut = functools.partial(per_device.mesh_attention, tiling=attention.__kwdefaults__["tiling"])
    with jax.set_mesh(mesh):
        made = jax.jit(functools.partial(slopes, functools.partial(of, cut)))(q, k, v, jnp.uint32(5))
    close(made, expected)


def test_a_device_does_not_count_rows_by_itself():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    x, rows = jnp.ones((2, 3, 1, 4)), P("data")
    mapped = functools.partial(jax.shard_map, mesh=mesh, out_specs=rows)
    of = lambda x, seed: attend(x, x, x, dropout_rate=0.5, dropout_seed=seed)
    for seed in (3, jax.random.key(3)):
        with pytest.raises(ValueError, match=r"Dropout\(rate, seed\).per_head\(B, H\) outside"):
            mapped(functools.partial(of, seed=seed), in_specs=rows)(x)
    seeds = Dropout(0.5, 3).per_head(2, 1).seed
    np.testing.assert_array_equal(mapped(of, in_specs=(rows, rows))(x, seeds), of(x, 3))


@pytest.mark.parametrize(
    ("rate", "seed", "says"),
    [
        *(
            (rate, 1, "rate is a number of Python's from 0 to below 1, got")
            for rate in (-0.1, 1.0, float("nan"), "0.1")
        ),
        (jnp.float32(0.1), 1, r"from 0 to below 1, got Array\(0.1"),
        (0.1, None, r"rate 0.1 needs a seed: an integer or a key, such as jax.random.key\(0\)"),
        (0.1, jnp.ones(()), "an integer or a key of jax.random, not float32"),
        (0.1, jax.random.PRNGKey(0), r"seed \(2,\) is neither .* \[2, 4\]; of a raw key give jax.random.bits\(key\)"),
        (0.1, jnp.ones((4, 2), int), r"seed \(4, 2\) is neither"),
        (0.1, "1", "seed must be an array, not str"),
    ],
)
def test_what_is_no_rate_or_seed_is_named(qkv, rate, seed, says):
    with pytest.raises((TypeError, ValueError), match=says) as caught:
        attend(*qkv, dropout_rate=rate, dropout_seed=seed)
    assert "\n" not in str(caught.value)


def test_only_a_dropout_is_one(qkv):
    with pytest.raises(TypeError, match=r"scoring.dropout is a Dropout\(rate, seed\), got 0.1"):
        attention(*qkv, dataclasses.replace(scoring(None), dropout=0.1))
    for name in ("dropout", "dropout_p", "dropout_rng"):
        with pytest.raises(TypeError, match="give dropout_rate= and dropout_seed="):
            attend(*qkv, **{name: 0.1})
