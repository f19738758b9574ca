import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.models import transformer
from bam_jax.models.layers import look_up
from bam_jax.system.errors import UserError
from bam_jax.training.step import define_training, make_gradient, make_step

VOCAB, ROWS, CONTEXT = 64, 8, 512


def make(family, encoding, dtype, **model):
    """A model's gradient function, its parameters, and a batch in which few tokens make up most of the text."""
    sizes = {"layers": 1, "width": 32, "heads": 2, "hidden": 32, "vocab": VOCAB, **model}
    sizes |= {"family": family, "causal": family != "bert", "dtype": dtype}
    config = configs.from_dict({"encoding": encoding, "context": CONTEXT, "batch": ROWS, "model": sizes})
    graph, tree = transformer.split(transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0)))
    often = 1 / np.arange(1, VOCAB + 1)
    text = np.random.default_rng(0).choice(VOCAB, (ROWS, CONTEXT + 1), p=often / often.sum()).astype(np.int32)
    batch = {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": np.ones((ROWS, CONTEXT), np.float32)}
    return make_gradient(config, graph), (tree["params"], tree["frozen"], batch)


@pytest.mark.full
def test_gradients_in_bfloat16_are_those_in_float32_where_thousands_are_summed():
    def gradients(dtype):
        gradient_of, arguments = make("bert", "learned", dtype)
        return dict(jax.tree.leaves_with_path(jax.tree.map(np.float64, jax.jit(gradient_of)(*arguments)[1])))

    wide, narrow = gradients("float32"), gradients("bfloat16")
    size = {path: np.linalg.norm(x) for path, x in wide.items()}
    # What a softmax does not see, as one number more for all keys, has a gradient of 0 and rounding.
    seen = [path for path in wide if size[path] > 1e-4 * max(size.values())]
    assert len(seen) > len(wide) - 5, set(wide) - set(seen)
    errors = {jax.tree_util.keystr(path): np.linalg.norm(narrow[path] - wide[path]) / size[path] for path in seen}
    assert max(errors.values()) < 0.012, errors  # .018 with an embedding's sum in bfloat16, .07 with a bias's


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("family", "encoding", "model"),
    [
        ("llama", "bam", {"qk_norm": True, "gate": True, "sinks": True, "soft_cap": 30.0}),
        ("gpt2", "learned", {}),
        ("bert", "cable", {}),
        ("llama", "t5", {}),
    ],
)
def test_no_sum_over_tokens_is_in_bfloat16(family, encoding, model, restart):
    gradient_of, (params, frozen, batch) = make(family, encoding, "bfloat16", **model)
    if restart:
        batch["position"] = np.broadcast_to(np.arange(CONTEXT, dtype=np.int32), (ROWS, CONTEXT))
    assert not list(narrow_sums(jax.make_jaxpr(gradient_of)(params, frozen, batch).jaxpr))


def narrow_sums(jaxpr):
    """Every sum of bfloat16 numbers that has as many summands as the batch has rows, or more."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("reduce_sum", "scatter-add", "cumsum") and equation.outvars[0].aval.dtype == jnp.bfloat16:
            summed, out = equation.invars[-1].aval.shape, equation.outvars[0].aval.shape
            if math.prod(summed) >= ROWS * (math.prod(out) if name == "reduce_sum" else 1):
                yield f"{name} of {summed} to {out}"
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from narrow_sums(inner)


def small(batch):
    return {name: x[:2, :16] for name, x in batch.items()}


@pytest.mark.parametrize(
    "encoding", ["rope/bam", *(pytest.param(each, marks=pytest.mark.full) for each in ("bam", "rope:window=8/nope"))]
)
def test_weights_are_dropped_in_training_alone_and_in_each_layer_others(encoding):
    """One loss of a stack that is scanned and of layers one by one, whatever the pattern."""
    losses = {}
    for scan, rate in ((True, 0.5), (False, 0.5), (True, 0.0)):
        model = {"layers": 4, "scan": scan, "attention_dropout": rate}
        gradient_of, (params, frozen, batch) = make("llama", encoding, "float32", **model)
        loss = jax.jit(lambda *arguments, of=gradient_of: of(*arguments)[0][0])
        keys = (None, *jax.random.split(jax.random.key(0))) if rate else (None,)
        losses[scan, rate] = [loss(params, frozen, small(batch), key) for key in keys]
    none, first, second = losses[True, 0.5]
    assert none == losses[True, 0.0][0] and len({float(x) for x in (none, first, second)}) == 3
    np.testing.assert_allclose(losses[False, 0.5], losses[True, 0.5], rtol=1e-5)

    config = configs.from_dict({"encoding": encoding, "model": {"layers": 4, "attention_dropout": 0.5}})
    decoder = transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    scorings = lambda: [scoring for *_, scoring in decoder.scorings(jnp.ones((1, 4), int))]
    assert all(scoring.dropout is None for scoring in scorings())
    decoder.drop_weights(jax.random.key(0))
    assert len({int(scoring.dropout.seed) for scoring in scorings()}) == 4


def test_micro_batches_drop_other_weights():
    key = jax.random.key(3)
    sizes = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "vocab": VOCAB, "attention_dropout": 0.5}
    of = lambda count: configs.from_dict({"batch": 2, "model": sizes, "optimizer": {"accumulate": count}})
    graph, initialise, _ = define_training(of(1), VOCAB)
    model = initialise()["model"]
    text = np.random.default_rng(0).integers(0, VOCAB, (1, 17)).astype(np.int32)
    row = {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": np.ones((1, 16), np.float32)}
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), row)
    loss = lambda count, *arguments: make_gradient(of(count), graph)(model["params"], model["frozen"], *arguments)[0][0]
    one, other = (loss(1, row, each) for each in jax.random.split(key, 2))
    assert abs(one - other) > 1e-4
    np.testing.assert_allclose(loss(2, twice, key), (one + other) / 2, rtol=1e-6)


def test_each_step_drops_other_weights():
    """The rate of the first step is 0, so that the second has the same parameters."""
    sizes = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "vocab": VOCAB, "attention_dropout": 0.5}
    config = configs.from_dict({"model": sizes, "optimizer": {"warmup": 4}})
    graph, initialise, tx = define_training(config, VOCAB)
    text = np.random.default_rng(0).integers(0, VOCAB, (2, 17)).astype(np.int32)
    batch = {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": np.ones((2, 16), np.float32)}
    step = make_step(config, graph, tx)

    def losses():
        state, first = step(initialise(), batch)
        return first[0], step(state, batch)[1][0]

    first, second = losses()
    assert abs(first - second) > 1e-4 and losses() == (first, second)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"attention_dropout": 1.0}}, r"attention_dropout=1.0 must be at least 0 and below 1"),
        ({"model": {"attention_dropout": float("nan")}}, r"attention_dropout=nan must be finite"),
        (
            {"model": {"attention_dropout": 0.1, "causal": False}, "data": {"task": "triplets"}},
            "config.model.attention_dropout=0.1 must be 0 for the task 'triplets'",
        ),
    ],
)
def test_what_cannot_be_dropped_is_named(changes, says):
    with pytest.raises(UserError, match=says):
        configs.from_dict(changes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_look_up_and_its_gradient_are_those_of_take(dtype):
    table = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), dtype)
    index = np.array([[4, 0, -1], [2, 0, 0]], np.int32)  # NumPy's own, which a trace holds as a constant
    d_rows = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 3)), dtype)
    take = lambda x, i: jnp.take(x.astype(jnp.float32), i, axis=0).astype(dtype)
    made, expected = (jax.jit(jax.grad(lambda x, f=f: (f(x, index) * d_rows).sum()))(table) for f in (look_up, take))
    assert np.array_equal(look_up(table, index), table[index])
    np.testing.assert_allclose(np.float32(made), np.float32(expected), rtol=1e-2 if dtype == "bfloat16" else 1e-6)


@pytest.mark.full
def test_a_model_has_products_with_its_hessian():
    gradient_of, (params, frozen, batch) = make("llama", "bam", "bfloat16", width=8)
    batch = {name: x[:1, :8] for name, x in batch.items()}
    product = jax.jvp(lambda params: gradient_of(params, frozen, batch)[1], (params,), (params,))[1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(product))
