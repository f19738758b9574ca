import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.training import losses


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    hidden, kernel, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 7, 8), (8, 11), 11))
    weights = rng.choice([0, 1, 1.5], (3, 7)).astype(np.float32)
    return hidden, kernel, bias, rng.integers(0, 11, (3, 7)).astype(np.int32), weights


def expected(hidden, kernel, bias, targets, weights):
    logits = np.float64(hidden) @ np.float64(kernel) + (0 if bias is None else bias)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (weights * (np.log(np.exp(logits).sum(-1)) - chosen)).sum()


@pytest.mark.parametrize("chunk", [1, 4, 7, 21, 100])
def test_sum_and_weight(rows, chunk):
    narrow = rows[0].astype(jnp.bfloat16), *rows[1:]
    for given, rtol in ((rows, 1e-5), ((*rows[:2], None, *rows[3:]), 1e-5), (narrow, 2e-2)):
        total, weight = losses.cross_entropy(*given, chunk=chunk)
        np.testing.assert_allclose(total, expected(*given), rtol=rtol)
        assert weight == rows[4].sum() and total.dtype == weight.dtype == jnp.float32


def loss_of_head(rows, **how):
    """The loss as a function of rows, kernel, bias and weights."""
    return lambda hidden, kernel, bias, weights: losses.cross_entropy(hidden, kernel, bias, rows[3], weights, **how)[0]


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_and_products_with_the_hessian_do_not_depend_on_the_chunks(rows, recompute):
    def slopes(chunk):
        gradient = jax.grad(loss_of_head(rows, chunk=chunk, recompute=recompute), (0, 1, 2, 3))
        given = *rows[:3], rows[4]
        return jax.jvp(gradient, given, (0 * rows[0], np.cos(rows[1]), 0 * rows[2], 0 * rows[4]))

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), slopes(4), slopes(1000))


def test_a_gradient_takes_three_products_of_each_chunk_and_four_where_logits_are_recomputed(rows):
    def products(recompute):
        gradient = jax.grad(loss_of_head(rows, chunk=7, recompute=recompute), (0, 1))
        return str(jax.make_jaxpr(gradient)(*rows[:3], rows[4])).count("dot_general")

    assert (products(False), products(True)) == (3, 4)


def test_logits_of_the_whole_batch_never_exist():
    rows, width, vocab, chunk = 512, 4, 1000, 16
    given = None, jnp.zeros(rows, jnp.int32), jnp.ones(rows)
    loss = lambda hidden, kernel: losses.cross_entropy(hidden, kernel, *given, chunk=chunk)[0]
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(jnp.ones((rows, width)), jnp.ones((width, vocab))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < rows * vocab * 4 / 4


@pytest.mark.parametrize("recompute", [False, True])
def test_a_bfloat16_head_has_a_bfloat16_gradient_of_products_as_narrow(rows, recompute):
    """A GPU would take twice as long for products of wider operands, or more."""
    narrow = *(jnp.asarray(x, jnp.bfloat16) for x in rows[:2]), rows[2], rows[4]
    gradient = jax.grad(loss_of_head(rows, chunk=4, recompute=recompute), (0, 1))
    exact = gradient(*rows[:3], rows[4])
    for x, right in zip(gradient(*narrow), exact, strict=True):
        assert x.dtype == jnp.bfloat16
        np.testing.assert_allclose(x.astype(np.float32), right, atol=0.1)
    lowered = jax.jit(gradient).lower(*narrow).as_text().splitlines()
    operands = [line.partition(" : (")[2].partition(") ->")[0] for line in lowered if "dot_general" in line]
    assert len(operands) >= 3 and all(x.count("bf16>") == 2 for x in operands), operands
