"""The positional biases of a model of bam_jax, for NumPy's arrays and for PyTorch's: `xp` is either module.

    logits = q . k / sqrt(D) + bias(i, j)   in nats

`p` has an encoding's parameters, [H] or [H, n], and its constants. The coordinates i [B, #H, T, 1] and j [B, #H, 1, S] are
positions in tokens or, of encodings that read the text, running sums; a query comes no earlier than the keys that it sees.
"""

from typing import Any

EPS = 1e-5
"""Added to the distance in powers."""
CAP = 9.0
"""Largest exponent of a power, so that none overflows."""


def softplus(xp: Any, x: Any) -> Any:
    return xp.logaddexp(x, 0 * x)


def heads(x: Any) -> Any:
    return x[:, None, None]


def power(xp: Any, log_scale: Any, shape: Any, distance: Any) -> Any:
    """exp(log_scale) distance ** shape, capped."""
    return xp.exp(xp.clip(heads(log_scale) + heads(shape) * xp.log(distance), None, CAP))


def alibi(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -heads(p["slope"]) * abs(i - j)


def alibi_learned(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -heads(xp.exp(p["log_slope"])) * abs(i - j) / p["factor"]


def bam(xp: Any, p: dict, i: Any, j: Any) -> Any:
    centre = heads(xp.exp(p["loc"]) - xp.exp(-p["loc"]))
    return -power(xp, p["log_scale"], p["shape"], abs(j - i - centre) + EPS)


def bam_contextual(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -power(xp, p["log_scale"], p["shape"], abs(j - i) + EPS)


def gaussian(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -0.5 * ((i - j) * heads(xp.exp(-p["log_width"]))) ** 2


def student_t(xp: Any, p: dict, i: Any, j: Any) -> Any:
    freedom, z = heads(xp.exp(p["log_freedom"])), (i - j) * heads(xp.exp(-p["log_width"]))
    return -0.5 * (freedom + 1) * xp.log(1 + z * z / freedom)


def kerple_log(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -heads(xp.exp(p["log_r1"])) * xp.log(1 + heads(xp.exp(p["log_r2"])) * abs(i - j))


def kerple_power(xp: Any, p: dict, i: Any, j: Any) -> Any:
    distance = abs(i - j) + 0 * heads(p["log_r1"])
    exponent = 2 / (1 + xp.exp(-p["logit_r2"]))
    return xp.where(distance > 0, -power(xp, p["log_r1"], exponent, xp.where(distance > 0, distance, 1.0)), 0.0)


def additive_decay(xp: Any, p: dict, i: Any, j: Any) -> Any:
    linear, logarithmic, root = (heads(softplus(xp, p[name])) for name in ("linear", "logarithmic", "root"))
    distance = abs(i - j)
    return -(linear * distance + logarithmic * xp.log(1 + distance) + root * xp.sqrt(distance))


def sandwich(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return (xp.cos((i - j)[..., None] * p["rates"]) - 1).sum(-1) / heads(p["compression"])


def fire(xp: Any, p: dict, i: Any, j: Any) -> Any:
    psi = lambda x: xp.log(abs(p["c"]) * x + 1)
    last = xp.maximum(xp.maximum(i, j), 0 * i + abs(p["length_scale"]) * p["length"])
    progress = (psi(abs(i - j)) / psi(last))[:, 0]
    hidden = xp.clip(progress[..., None] * p["w1"] + p["b1"], 0, None)
    return xp.einsum("btsn,hn->bhts", hidden, p["w2"]) + heads(p["b2"])


def t5(xp: Any, p: dict, i: Any, j: Any) -> Any:
    """Of the table [H, n] the value of the last bucket that starts at the distance or before it."""
    bucket = xp.searchsorted(p["starts"], xp.clip(i - j, 0, None)[:, 0], side="right") - 1
    return p["table"][:, bucket].swapaxes(0, 1)


def difference(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return i - j


def cable(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -p["query_weight"] * abs(i - j)


def k_cable(xp: Any, p: dict, i: Any, j: Any) -> Any:
    return -xp.log((p["query_weight"] * (i - j)) ** 2 + 1)


BIASES = {
    "alibi": alibi,
    "alibi_learned": alibi_learned,
    "nape": alibi,
    "bam": bam,
    "bam_contextual": bam_contextual,
    "gaussian": gaussian,
    "student_t": student_t,
    "kerple_log": kerple_log,
    "kerple_power": kerple_power,
    "additive_decay": additive_decay,
    "sandwich": sandwich,
    "fire": fire,
    "t5": t5,
    "t5_distance": t5,
    "cable": cable,
    "cable_nw": difference,
    "k_cable": k_cable,
    "fox": difference,
}
"""Biases by the names of their encodings in bam_jax."""


def linear(p: dict, name: str, x: Any) -> Any:
    """x [B, T, E] times a kernel of the encoding, [B, T, H]."""
    made = x @ p[f"{name}_kernel"]
    return made + p[f"{name}_bias"] if f"{name}_bias" in p else made


def steps(xp: Any, name: str, p: dict, x: Any) -> Any:
    """What each token adds to the running sums, [B, T, H], given the layer's normed input; None: positions count."""
    if name == "fox":
        return -softplus(xp, -linear(p, "gate", x))  # log sigmoid
    if name == "bam_contextual":
        return softplus(xp, linear(p, "step_size", x))
    if name not in ("cable", "cable_nw", "k_cable"):
        return None
    made = linear(p, "step_size", x)
    return -softplus(xp, made) if p["gate"] == "softplus" else -xp.clip(made, 0, None)


def counts() -> list[int]:
    """Numbers of keys at which effective keys are summed: each up to 64, then each a sixteenth larger."""
    return [*range(1, 65), *(round(64 * (17 / 16) ** n) for n in range(1, 286))]


def log_effective_keys(xp: Any, name: str, p: dict, count: Any, known: Any) -> Any:
    """log of sum_d exp(b(d)) / max_d exp(b(d)), d = 0 ... n - 1 tokens back, for each n of `count` [B, T]; [B, H, T].

    `known` is the array of `counts()`. Between them the logarithm is interpolated over that of n.
    """
    if name not in BIASES:
        return xp.log(count)[:, None]
    size = known - xp.where(known > 1, xp.concatenate([known[:1], known[:-1]]), 0 * known)
    distance = xp.sqrt(xp.clip(known - size, 0, None) * (known - 1))
    prior = BIASES[name](xp, p, 0 * distance[None, None, :1, None], -distance[None, None, None])[0, :, 0]
    below = known[None, :, None] >= known[None, None]  # [1, n, groups]
    among = xp.where(below, prior[:, None] + xp.log(size), -xp.inf)
    most = xp.amax(among, -1)
    total = most + xp.log(xp.exp(among - most[..., None]).sum(-1))
    total = total - xp.amax(xp.where(below, prior[:, None], -xp.inf), -1)
    at, of = xp.log(count), xp.log(known)
    above = xp.clip(xp.searchsorted(of, at), 1, len(of) - 1)
    share = (at - of[above - 1]) / (of[above] - of[above - 1])
    return (total[:, above - 1] * (1 - share) + total[:, above] * share).swapaxes(0, 1)
