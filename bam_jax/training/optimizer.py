"""RAdam and AdamW with the papers' parameter groups, which depend on a parameter's name and never on its rank."""

from typing import Any

import jax
import optax
from jax.tree_util import keystr

from bam_jax.config import OptimizerConfig

DECAYED = ("kernel", "embedding")  # a scanned stack makes vectors two-dimensional, so the rank means nothing
PRIOR = "encoding"


def decays(name: str) -> bool:
    """True if the parameter `name` decays: kernels and embeddings do, everything else does not.

    >>> decays("layers/mlp/up/kernel"), decays("norm/scale"), decays("layers/attention/encoding/shape")
    (True, False, False)
    """
    return name.split("/")[-1] in DECAYED


def group(name: str) -> str:
    """The learning-rate group of the parameter `name`: 'prior' or 'rest'.

    The prior's parameters are those of an encoding that do not decay; a kernel in an encoding (CABLE's w,
    FIRE's MLP) is a matrix like any other.

    >>> group("attention/encoding/shape"), group("attention/encoding/kernel"), group("norm/scale")
    ('prior', 'rest', 'rest')
    """
    return "prior" if PRIOR in name.split("/")[:-1] and not decays(name) else "rest"


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Linear warm-up to `config.rate`, then cosine or linear decay to `config.final` times that rate.

    rate(t) = peak t / warmup for t < warmup, then peak (final + (1 - final) f(u)) with u = (t - warmup) / (steps - warmup),
    where f(u) is (1 + cos(pi u)) / 2 or 1 - u.

    Source: BAM appendix C and the authors' code (cosine to 0.1 x peak, warm-up 0).
    """
    left = max(1, steps - config.warmup)
    if config.schedule == "linear":
        down = optax.linear_schedule(config.rate, config.final * config.rate, left)
    else:
        down = optax.cosine_decay_schedule(config.rate, left, alpha=config.final)
    if config.warmup == 0:
        return down
    return optax.join_schedules([optax.linear_schedule(0.0, config.rate, config.warmup), down], [config.warmup])


def make(config: OptimizerConfig, steps: int, params: Any) -> optax.GradientTransformation:
    """The optimiser of a run: clip, (R)Adam, decoupled decay by name, schedule, rate of the group.

    p <- p - rate(t) m_g (u + decay [p decays] p), with u the (R)Adam direction of the gradient clipped by its
    global norm and m_g the multiplier of the group, `config.prior_rate` for 'prior' and 1 for 'rest'.
    RAdam uses plain momentum while its rho is at most 5, as in PyTorch. It differs from PyTorch's only in
    adding epsilon (1e-8) after the bias correction of the second moment, as Adam does.

    Source: BAM appendix C and the authors' code; Liu et al. 2020, "On the variance of the adaptive learning
    rate and beyond" (RAdam).
    """
    scale = {"adamw": optax.scale_by_adam, "radam": optax.scale_by_radam}[config.name]
    names = jax.tree.map_with_path(lambda keys, _: keystr(keys, simple=True, separator="/"), params)
    rate = schedule(config, steps)
    rates = {"rest": 1.0, "prior": config.prior_rate}
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        scale(b1=config.b1, b2=config.b2),
        optax.add_decayed_weights(config.decay, mask=jax.tree.map(decays, names)),
        optax.scale_by_learning_rate(rate),
        optax.stateless(lambda updates, _: jax.tree.map(lambda name, u: rates[group(name)] * u, names, updates)),
    )
