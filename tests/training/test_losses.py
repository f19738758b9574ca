import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.config import MeshConfig
from bam_jax.parallel.sharding import make_mesh
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


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_and_products_with_the_hessian_do_not_depend_on_the_chunks(rows, recompute, platform, monkeypatch):
    def slopes(chunk):
        monkeypatch.setattr(losses, "platform", lambda: platform if chunk == 4 else "cpu")
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


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_target_of_weight_0_may_be_any_number(rows, platform, monkeypatch):
    monkeypatch.setattr(losses, "platform", lambda: platform)
    hidden, kernel, bias, targets, weights = rows
    beyond = np.where(weights == 0, 10**6, targets).astype(np.int32)
    assert (beyond != targets).any()
    loss = lambda targets, hidden, kernel: losses.cross_entropy(hidden, kernel, bias, targets, weights, chunk=4)[0]
    for made, right in zip(
        jax.value_and_grad(loss, (1, 2))(beyond, hidden, kernel),
        jax.value_and_grad(loss, (1, 2))(targets, hidden, kernel),
        strict=True,
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), made, right)


@pytest.mark.parametrize(("spread", "offset"), [(1.0, 0.0), (1e4, 0.0), (1.0, 1e4)])
def test_the_sum_in_one_pass_is_logsumexp(spread, offset):
    logits = offset + spread * np.random.default_rng(1).normal(size=(6, 300)).astype(np.float32)
    logits[1, [3, 5]], logits[2, [0, 7]], logits[3, 4] = -np.inf, np.inf, np.nan
    logits[4] = -np.inf
    in_one_pass = lambda logits: sum(losses._log_of_sum(logits))
    np.testing.assert_allclose(in_one_pass(logits), jax.nn.logsumexp(logits, axis=1), rtol=1e-6)
    finite = logits[[0, 1, 5]]
    slopes, expected = (
        jax.grad(lambda x, f=f: f(x).sum())(finite) for f in (in_one_pass, lambda x: jax.nn.logsumexp(x, 1))
    )
    np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("tensor", [1, 2])
def test_gpus_read_whole_rows_of_logits_once(tensor, monkeypatch):
    monkeypatch.setattr(losses, "platform", lambda: "gpu")
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=1, tensor=tensor), jax.devices()[: 2 * tensor])):
        given = jnp.zeros((4, 8)), jnp.zeros(8), jnp.zeros((5, 4)), jnp.zeros(5, jnp.int32), jnp.ones(5)
        made = str(jax.make_jaxpr(losses._sum_of_losses)(*given))
    assert ("reduce_max" in made) == (tensor == 2)


@pytest.mark.parametrize("tensor", [1, 2])
def test_gpus_look_targets_up_where_they_do_not_share_the_vocabulary(tensor, monkeypatch):
    """And no gradient is a scatter."""
    monkeypatch.setattr(losses, "platform", lambda: "gpu")
    mesh = make_mesh(MeshConfig(data=2, fsdp=1, tensor=tensor), jax.devices()[: 2 * tensor])
    given = jnp.zeros((2, 8, 4)), jnp.zeros((4, 16)), None, jnp.zeros((2, 8), jnp.int32), jnp.ones((2, 8))
    with jax.set_mesh(mesh):
        loss = jax.jit(jax.value_and_grad(lambda *x: losses.sharded_cross_entropy(*x)[0], (0, 1)))
        lowered = loss.lower(*given).as_text()
    assert ("stablehlo.gather" in lowered) == (tensor == 1) and "stablehlo.scatter" not in lowered


@pytest.mark.parametrize("count", [20, 21, 22, 23, 24, 25])
def test_chunks_are_alike(count, monkeypatch):
    """Twelve rows at most, in multiples of two: of 25 rows there are three times 10, and not 12, 12 and 1 with 11 of padding."""
    monkeypatch.setattr(losses, "_ROWS", 2)
    given = jnp.zeros((count, 4)), jnp.zeros((4, 16)), None, jnp.zeros(count, jnp.int32), jnp.ones(count)
    loss = str(jax.make_jaxpr(lambda *x: losses.cross_entropy(*x, chunk=12)[0])(*given))
    chunk = {20: 10, 21: 12, 22: 12, 23: 12, 24: 12, 25: 10}[count]
    assert f"f32[{-(-count // chunk)},{chunk},4]" in loss


@pytest.mark.parametrize(("kind", "rows"), [("cpu", 1024), ("TPU v5 lite", 1024), ("NVIDIA H100 80GB HBM3", 8192)])
def test_a_chunk_has_as_many_rows_as_the_chips_memory_allows(kind, rows, monkeypatch):
    monkeypatch.setattr(losses, "device_kind", lambda: kind)
    assert losses.chunk_rows(32_768) == rows
