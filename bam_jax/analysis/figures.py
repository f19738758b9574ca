"""Figures of trained models, drawn from the newest checkpoints of their runs."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bam_jax import biases as formulas
from bam_jax import theory
from bam_jax.analysis import heads
from bam_jax.analysis.opened import open_run
from bam_jax.biases import GeneralisedGaussian, Uniform
from bam_jax.evals import passkey
from bam_jax.models.head_parameters import head_parameters
from bam_jax.render import learned as curves
from bam_jax.render import maps, style
from bam_jax.render.learned import Heads
from bam_jax.render.style import Figure
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import checkpoint, run_folder

CLASSES = ("retrieval", "long-tail", "local")
PROMPT = 841
"""Tokens of the prompt in BAM's figure 4."""
TEXT = 128
"""Greatest number of tokens of held-out text whose biases are drawn."""

type Runs = Mapping[str, Path]  # by label


def learned_priors(run: Path) -> Heads:
    """The priors of a trained BAM model, each parameter [layers, heads]."""
    encoding = run_folder.read_config(run).encoding
    if encoding != "bam":
        raise UserError(f"{run} has no BAM priors, its encoding is {encoding!r}; give a run of --config.encoding=bam")
    found = head_parameters(checkpoint.restore_model(run)[2])
    return Heads(found["shape"], found["log_scale"], found["loc"])


def prior_weights(learned: Heads, context: int) -> np.ndarray:
    """The prior of every head for the last query of a context, [layers, heads, context]. Source: BAM, definition 2.

    p(j) = exp(b(i, j)) / sum_j' exp(b(i, j')),   j <= i = context - 1
    """
    layers = (GeneralisedGaussian(*layer) for layer in zip(*map(jnp.asarray, learned), strict=True))
    # The priors are ordered by distance, nearest first; pages and figures by position, the query last.
    return np.stack([theory.prior_by_distance(layer, context)[:, ::-1] for layer in layers]).astype(np.float64)


def draw_priors(run: Path, length: int = 0) -> Figure:
    """The priors of every head of a BAM model, for the last query of a text. Source: BAM, figure 1."""
    found = learned_priors(run)
    return curves.priors(found.shape, prior_weights(found, length or run_folder.read_config(run).context))


def draw_classes(run: Path, length: int = 0) -> Figure:
    """The prior of one head of each class, the middle one by shape, next to those of NoPE and ALiBi. Source: BAM, figure 1."""
    found = learned_priors(run)
    length = length or run_folder.read_config(run).context
    shapes, weights = found.shape.ravel(), prior_weights(found, length).reshape(-1, length)
    slopes = formulas.alibi_slopes(found.shape.shape[1])
    slope = np.sort(slopes)[len(slopes) // 2]
    laplace = np.asarray(theory.laplace(jnp.asarray(slope), jnp.arange(length)[::-1], jnp.asarray(length)))
    drawn = {"uniform (NoPE)": np.full(length, 1 / length), f"Laplace (ALiBi, slope {slope:.2g})": laplace}
    encodings = dict(zip(drawn, ("nope", "alibi"), strict=True))
    for name in CLASSES:
        members = [n for n in np.argsort(shapes) if theory.head_class(shapes[n]) == name]
        if members:
            middle = members[len(members) // 2]
            drawn[f"{name}, {_shape(shapes[middle])}"] = weights[middle]
    encodings |= {label: "bam" for label in drawn if label not in encodings}
    return curves.classes(drawn, max(2, length // 8), encodings)


def draw_attention(run: Path, length: int = 0, allow: Collection[str] = ()) -> Figure:
    """Attention in a passkey prompt: of each class, the head whose last query gives the key most weight. Source: BAM, figure 4.

    The key is at the start. The paper's prompt has 841 tokens, the toy prompt four training contexts.
    """
    opened = open_run(run, allow=allow)
    opened.require_decoder("which is not asked for a passkey")
    tokenizer, decoder = opened.tokenizer, opened.model
    if tokenizer.name == "char":
        prompts, usual = passkey.toy(opened.held_out(), tokenizer, 0), 4 * opened.config.context
    else:
        prompts, usual = passkey.paper(tokenizer, 0), PROMPT
    tokens, answer = prompts(length or usual, 0.0, 0)
    decoder.check_length(len(tokens))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(answer))
    places = np.flatnonzero((windows == answer).all(-1))
    key = int(places[0]), int(places[-1]) + len(answer)
    best: dict[str, tuple[float, str, np.ndarray]] = {}
    for layer, (q, k, scoring) in enumerate(heads.score_text(decoder, tokens)):
        for head, weights in enumerate(np.asarray(_joint(q, k, scoring))):
            kind, title = "", f"layer {layer}, head {head}"
            if isinstance(scoring.bias, GeneralisedGaussian):
                shape = float(scoring.bias.shape[head])
                kind = theory.head_class(shape)
                title = f"{kind}\n{title}\n{_shape(shape)}"
            seen = float(weights[-1, slice(*key)].sum())
            if kind not in best or seen > best[kind][0]:
                best[kind] = seen, title, weights
    shown = [best[kind] for kind in (*CLASSES, "") if kind in best]
    return maps.attention({title: weights for _, title, weights in shown}, key)


def draw_coupling(run: Path, length: int = 0, allow: Collection[str] = ()) -> Figure:
    """The terms of -ln Z along a held-out text; see `bam_jax.theory.coupling`. Source: BAM, appendix K.3."""
    return draw_records(heads.measure(run, keys=[1], tokens=length, allow=allow))


def draw_records(records: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure of `draw_coupling` from the records of one text, of `bam_jax.analysis.heads.measure`."""
    measured = {name: np.array([record[name] for record in records]) for name in theory.Terms._fields}
    total = np.sum(list(measured.values()), axis=0)
    terms = {r"$-\ln Z$": total, "KL ‖ content": measured["kl_content"], "KL ‖ prior": measured["kl_prior"]}
    groups = [record["class"] if "class" in record else f"layer {record['layer']}" for record in records]
    return curves.coupling(records[0]["positions"], terms, groups)


def draw_biases(runs: Runs, length: int = 0, allow: Collection[str] = ()) -> Figure:
    """The bias of every head of the last layer on a held-out text; for several runs, three heads each.

    A method that adds no bias, such as RoPE, is drawn by its scores q.k / sqrt(D). Source: CABLE, figures 4 and 8 to 15.
    """
    drawn = {}
    for label, run in runs.items():
        opened = open_run(run, allow=allow)
        length = length or min(opened.config.context, TEXT)
        q, k, scoring = heads.score_text(opened.model, opened.first_tokens(length))[-1]
        content, position, seen = heads.logits(q, k, dataclasses.replace(scoring, temperature=None))
        plain = isinstance(scoring.bias, Uniform) and scoring.rowwise is None
        table = np.where(seen, content if plain else position, np.nan)
        some = range(len(table)) if len(runs) == 1 else np.unique(np.linspace(0, len(table) - 1, 3).astype(int))
        name = f"{style.plain(label)}{' scores' if plain else ''}, " if len(runs) > 1 else "head "
        for head in some:
            drawn[f"{name}{head}"] = table[head]
    return maps.tables(drawn, wide=3 if len(runs) > 1 else 4)


def draw_scatter(runs: Runs) -> Figure:
    """Shape and log scale of every head of BAM models. Source: BAM, figures 17 and 18."""
    return curves.scatter({label: learned_priors(run) for label, run in runs.items()}, _encodings(runs))


def draw_scales(runs: Runs) -> Figure:
    """The distribution of Scalable Softmax's scale over the heads. Source: BAM, figure 14."""
    found = {}
    for label, run in runs.items():
        scales = head_parameters(checkpoint.restore_model(run)[2])
        if "ssmax" not in scales:
            raise UserError(f"{run} has no Scalable Softmax; give a run trained with --config.ssmax=on")
        found[label] = scales["ssmax"]
    return curves.scales(found, _encodings(runs))


def _encodings(runs: Runs) -> dict[str, str]:
    return {label: run_folder.read_config(run).encoding for label, run in runs.items()}


READING = {"attention": draw_attention, "coupling": draw_coupling}  # of one run and a text, which has a length
ONE = {"classes": draw_classes, "priors": draw_priors}  # of one run, which has a length
SEVERAL = {"scales": draw_scales, "scatter": draw_scatter}  # of one run or several
NAMES = (*READING, *ONE, *SEVERAL, "biases")


def draw(name: str, runs: Runs, length: int = 0, allow: Collection[str] = ()) -> Figure:
    """A figure by its name, of one run or several; length 0: the figure's own choice."""
    if name not in NAMES:
        raise UserError(f"unknown figure {name!r}; {nearest(name, NAMES)}")
    if name in {*READING, *ONE} and len(runs) > 1:
        raise UserError(f"{name} shows one run, not {len(runs)}; give one --run")
    if not 0 <= length < 2**31 or (length and name in SEVERAL):
        raise UserError(
            f"--length={length} does not go with {name}; leave it out, or give 1 or more, and less than 2^31"
        )
    first = next(iter(runs.values()))
    if name in READING:
        return READING[name](first, length, allow)
    if name in ONE:
        return ONE[name](first, length)
    return SEVERAL[name](runs) if name in SEVERAL else draw_biases(runs, length, allow)


def _shape(value: float) -> str:
    return rf"$\theta_\beta$ = {value:.2f}".replace("-", "−")


@jax.jit
def _joint(*layer: Any) -> jax.Array:
    return theory.factors(*heads.logits(*layer)).joint
