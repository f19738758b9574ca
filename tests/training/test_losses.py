import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.training import losses


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(3, 7, 8)).astype(np.float32),
        rng.normal(size=(8, 11)).astype(np.float32),
        rng.normal(size=11).astype(np.float32),
        rng.integers(0, 11, (3, 7)).astype(np.int32),
        rng.choice([0, 1, 1.5], (3, 7)).astype(np.float32),
    )


def expected(hidden, kernel, bias, targets, weights):
    logits = hidden.astype(np.float64) @ kernel.astype(np.float64) + (0 if bias is None else bias)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (weights * (np.log(np.exp(logits).sum(-1)) - chosen)).sum()


@pytest.mark.parametrize("chunk", [1, 4, 7, 21, 100])
def test_sum_and_weight(rows, chunk):
    for given in (rows, (*rows[:2], None, *rows[3:])):
        total, weight = losses.cross_entropy(*given, chunk=chunk)
        np.testing.assert_allclose(total, expected(*given), rtol=1e-5)
        assert weight == rows[4].sum()


@pytest.mark.parametrize("chunk", [4, 7])
def test_gradients_do_not_depend_on_the_chunks(rows, chunk):
    def gradients(chunk):
        loss = lambda hidden, kernel, bias: losses.cross_entropy(hidden, kernel, bias, *rows[3:], chunk=chunk)[0]
        return jax.grad(loss, (0, 1, 2))(*rows[:3])

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients(chunk), gradients(1000))


def test_targets_without_weight_do_not_matter(rows):
    hidden, kernel, bias, targets, weights = rows
    total, _ = losses.cross_entropy(*rows, chunk=5)
    other = np.where(weights == 0, (targets + 1) % 11, targets)
    assert losses.cross_entropy(hidden, kernel, bias, other, weights, chunk=5)[0] == total
    assert (other != targets).any()


def test_logits_of_the_whole_batch_never_exist():
    rows, width, vocab, chunk = 512, 4, 1000, 16
    loss = lambda hidden, kernel: losses.cross_entropy(
        hidden, kernel, None, jnp.zeros(rows, jnp.int32), jnp.ones(rows), chunk=chunk
    )[0]
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(jnp.ones((rows, width)), jnp.ones((width, vocab))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < rows * vocab * 4 / 4


def test_bfloat16_states_give_a_float32_loss(rows):
    hidden, kernel, bias, targets, weights = rows
    total, weight = losses.cross_entropy(hidden.astype(jnp.bfloat16), kernel, bias, targets, weights, chunk=4)
    assert total.dtype == weight.dtype == jnp.float32
    np.testing.assert_allclose(total, expected(*rows), rtol=2e-2)


def test_chunk_rows():
    assert losses.chunk_rows(32_768) * 32_768 * 4 == 128 * 2**20
    assert losses.chunk_rows(2**30) == 1
