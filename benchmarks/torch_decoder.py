"""A plain dense decoder in PyTorch, as authors of positional encodings write it, for comparison with this package's.

Every layer computes its tables of biases and of logits, [H, T, T], and keeps all activations for the backward pass.
"""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bam_jax.biases import alibi_slopes
from bam_jax.config import Config
from bam_jax.system.errors import UserError
from bam_jax.training import optimizer
from benchmarks.workloads import Contender, Workload, micro_batch

BACKEND = "torch"
"""The backend's name in contenders."""

ENCODINGS = ("nope", "alibi", "bam")

_EPSILON = 1e-5  # of norms


def require(config: Config) -> None:
    """Check that PyTorch is installed, that JAX also runs on the CPU, and that the decoder supports the configuration."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("--torch needs PyTorch, which no extra installs: pip install torch")
    backend = jax.default_backend()
    if backend != "cpu":
        raise UserError(f"--torch times PyTorch on the CPU, and JAX has a {backend} here; set JAX_PLATFORMS=cpu")
    model = config.model
    plain = model.family == "llama" and model.causal and model.kv_heads in (0, model.heads)
    if not plain or model.qk_norm or model.gate or model.sinks or model.soft_cap:
        raise UserError(
            "--torch has a plain decoder of the family llama: no grouped heads, gates, sinks, caps or norms of queries"
        )
    if config.encoding not in ENCODINGS or config.encoding_options or config.ssmax not in ("off", "on"):
        raise UserError(
            f"--torch has the encodings {', '.join(ENCODINGS)} without options, SSMax off or on: got encoding="
            f"{config.encoding!r}, ssmax={config.ssmax!r}"
        )


def training(contender: Contender, length: int) -> Workload:
    """Take optimiser steps on the rows of `workloads.training`, from the same parameters, at the highest learning rate."""
    import torch

    config, rows = micro_batch(contender.config, length)
    batch = {name: torch.from_numpy(np.array(x)).long() for name, x in contender.batch(rows, length).items()}

    def start() -> tuple[dict[str, Any], Any]:
        tensors = parameters(contender)
        return tensors, make_optimizer(config, tensors)

    def call(state: tuple[dict[str, Any], Any]) -> tuple[dict[str, Any], Any]:
        tensors, tx = state
        tx.zero_grad()
        loss(config, tensors, batch["tokens"], batch["targets"]).backward()
        torch.nn.utils.clip_grad_norm_(tensors.values(), config.optimizer.clip)
        tx.step()
        return state

    return Workload(start, call, work=rows * length)


def parameters(contender: Contender) -> dict[str, Any]:
    """The contender's parameters as tensors by name, matrices as in `torch.nn.Linear`; frozen ones have no gradient."""
    import torch

    tree = contender.parameters()
    tensors = {}
    for part in ("params", "frozen"):
        for keys, leaf in jax.tree.leaves_with_path(tree[part]):
            name = jax.tree_util.keystr(keys, simple=True, separator="/")
            x = np.array(leaf)
            x = np.ascontiguousarray(x.swapaxes(-1, -2)) if name.endswith("kernel") else x
            tensors[name] = torch.from_numpy(x).requires_grad_(part == "params")
    return tensors


def make_optimizer(config: Config, tensors: dict[str, Any]) -> Any:
    """PyTorch's version of the run's optimiser, with weight decay on the same parameters."""
    import torch

    groups: dict[bool, list] = {True: [], False: []}
    for name, x in tensors.items():
        if x.requires_grad:
            groups[optimizer.decays(name)].append(x)
    given = config.optimizer
    parts = [{"params": some, "weight_decay": given.decay * decays} for decays, some in groups.items()]
    common = {"lr": given.rate, "betas": (given.b1, given.b2)}
    if given.name == "radam":
        return torch.optim.RAdam(parts, decoupled_weight_decay=True, **common)
    return torch.optim.AdamW(parts, fused=True, **common)


def loss(config: Config, tensors: dict[str, Any], tokens: Any, targets: Any) -> Any:
    """The mean cross-entropy of a batch, in nats.

    Args:
        tokens, targets: [B, T].
    """
    from torch.nn import functional

    x = functional.embedding(tokens, tensors["embed/embedding"])
    for layer in range(config.model.layers):
        of = lambda name, layer=layer: tensors[f"layers/{name}"][layer]
        x = x + _attention(config, of, _norm(x, of("attention_norm/scale")))
        h = _norm(x, of("mlp_norm/scale"))
        gate = functional.silu(functional.linear(h, of("mlp/gate/kernel")))
        x = x + functional.linear(gate * functional.linear(h, of("mlp/up/kernel")), of("mlp/down/kernel"))
    logits = functional.linear(_norm(x, tensors["norm/scale"]), tensors["head/kernel"])
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _norm(x: Any, scale: Any) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, scale.shape, scale, _EPSILON)


def _attention(config: Config, of: Callable[[str], Any], x: Any) -> Any:
    import torch
    from torch.nn import functional

    batch, length, width = x.shape
    project = lambda name: (
        functional.linear(x, of(f"attention/{name}/kernel")).unflatten(2, (config.model.heads, -1)).transpose(1, 2)
    )
    q, k, v = map(project, ("query", "key", "value"))
    logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    count = torch.arange(1, length + 1, dtype=torch.float32)
    factor = of("attention/ssmax/scale")[:, None, None] * torch.log(count)[:, None] if config.ssmax == "on" else 1.0
    offset = count - count[:, None]
    if config.encoding == "bam":
        logits = factor * (logits + _generalised_gaussian(of, offset))
    elif config.encoding == "alibi":
        slopes = torch.from_numpy(alibi_slopes(config.model.heads)).float()[:, None, None]
        logits = factor * logits - slopes * offset.abs()
    else:
        logits = factor * logits
    weights = torch.softmax(logits.masked_fill(offset > 0, -math.inf), -1)
    out = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    return functional.linear(out, of("attention/out/kernel"))


def _generalised_gaussian(of: Callable[[str], Any], offset: Any) -> Any:
    """The table of BAM's prior, [H, T, T], as in the authors' training code."""
    import torch

    power, log_scale, loc = (of(f"attention/encoding/{name}")[:, None, None] for name in ("shape", "log_scale", "loc"))
    centre = torch.exp(loc) - torch.exp(-loc)
    return -torch.exp(log_scale) * ((offset - centre).abs() + 1e-5) ** power
