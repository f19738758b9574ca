import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.tree_util import keystr

from bam_jax.config import Config, OptimizerConfig
from bam_jax.config.sections import SCHEDULES
from bam_jax.models import transformer
from bam_jax.training import optimizer

PRIOR = {"layers/attention/encoding/shape", "layers/attention/encoding/log_scale"}
PLAIN = {"layers/attention/ssmax/scale", "layers/attention_norm/scale", "layers/mlp_norm/scale", "norm/scale"}
DECAYED = {
    "embed/embedding",
    "head/kernel",
    *(f"layers/attention/{name}/kernel" for name in ("query", "key", "value", "out")),
    *(f"layers/mlp/{name}/kernel" for name in ("gate", "up", "down")),
}


def test_groups_and_decay_of_the_decoder_by_name():
    build = lambda: transformer.build(Config(encoding="bam", ssmax="on"), vocab=11, rngs=nnx.Rngs(0))
    tree = transformer.split(nnx.eval_shape(build))[1]
    names = lambda part: {keystr(keys, simple=True, separator="/") for keys, _ in jax.tree.leaves_with_path(part)}
    trained, frozen = names(tree["params"]), names(tree["frozen"])
    assert trained == PRIOR | PLAIN | DECAYED and frozen == {"layers/attention/encoding/loc"}
    assert {name for name in trained if optimizer.group(name) == "prior"} == PRIOR
    assert {name for name in trained if optimizer.decays(name)} == DECAYED


def rate(config, steps, t):
    if t < config.warmup:
        return config.rate * t / config.warmup
    u = min(1, (t - config.warmup) / (steps - config.warmup))
    left = 1 - u if config.schedule == "linear" else (1 + np.cos(np.pi * u)) / 2
    return config.rate * (config.final + (1 - config.final) * left)


@pytest.mark.parametrize(("warmup", "schedule"), [*itertools.product((0, 5), SCHEDULES)])
def test_schedule(warmup, schedule):
    config = OptimizerConfig(warmup=warmup, schedule=schedule)
    ours = [optimizer.schedule(config, 20)(t) for t in range(25)]
    np.testing.assert_allclose(ours, [rate(config, 20, t) for t in range(25)], rtol=1e-5)


def direction(name, b1, b2, gradients):
    """PyTorch's Adam and RAdam, step by step."""
    mean = square = 0.0
    for t, g in enumerate(gradients, start=1):
        mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * g * g
        corrected = mean / (1 - b1**t)
        if name == "adamw":
            yield corrected / (np.sqrt(square / (1 - b2**t)) + 1e-8)
            continue
        rho_inf = 2 / (1 - b2) - 1
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        if rho > 5:
            rectified = np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            yield corrected * rectified * np.sqrt(1 - b2**t) / (np.sqrt(square) + 1e-8)
        else:
            yield corrected


@pytest.mark.parametrize("name", ["adamw", "radam"])
@pytest.mark.parametrize("b2", [0.95, 0.99])
def test_updates_against_a_loop(name, b2):
    config = OptimizerConfig(name=name, b2=b2, prior_rate=20.0, warmup=3, clip=0.5)
    rng = np.random.default_rng(0)
    params = {"mlp": {"kernel": np.ones(4)}, "encoding": {"shape": np.ones(3)}, "norm": {"scale": np.ones(2)}}
    gradients = [jax.tree.map(lambda p: rng.normal(size=p.shape), params) for _ in range(20)]
    norms = [np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient))) for gradient in gradients]
    ours = jax.tree.map(jnp.float32, params)
    tx = optimizer.make(config, 20, ours)
    state = tx.init(ours)
    for gradient in gradients:
        updates, state = tx.update(jax.tree.map(jnp.float32, gradient), state, ours)
        ours = optax.apply_updates(ours, updates)

    groups = ("mlp", "kernel", 1, 0.1), ("encoding", "shape", 20, 0), ("norm", "scale", 1, 0)
    for part, leaf, multiplier, decay in groups:
        p = params[part][leaf]
        clipped = [g[part][leaf] * min(1, 0.5 / norm) for g, norm in zip(gradients, norms, strict=True)]
        for t, u in enumerate(direction(name, config.b1, b2, clipped)):
            p = p - multiplier * rate(config, 20, t) * (u + decay * p)
        np.testing.assert_allclose(ours[part][leaf], p, rtol=2e-4, err_msg=leaf)
