"""Passkey retrieval: five digits hidden in a long text, asked for at its end.

Prompts of up to `CHUNK` tokens are read together, as many as memory allows. Longer ones are read one after another, in pieces
through the cache, so that memory grows with the length and not with the number of prompts; the key that lies deepest comes
first, and what the next prompt has in common with it is not read again (the paper's prompts share all that comes before
their keys).

Source: BAM, passkey retrieval, after Mohtashami & Jaggi 2023.
"""

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from bam_jax.attention import EMPTY
from bam_jax.data.tasks import passkey
from bam_jax.data.tasks.passkey import DIGITS
from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.evals import base
from bam_jax.evals.base import Cell, Plan, option, rows_within
from bam_jax.models import generate, transformer
from bam_jax.system import host
from bam_jax.system.errors import UserError, nearest

FORCED = DIGITS - 1
"""Digits of the answer that a model is given after the prompt."""

COMPILE = 2e10
"""Floating-point operations that are cheaper than compiling another shape: those of about a second on one core."""

CHUNK = 2**14
"""Tokens of a prompt that are read at once, at most."""

_STREAM = 0x9A55  # a fifth word in the seed of a prompt, where training has two: never the same numbers

Sample = tuple[np.ndarray, np.ndarray]
"""Tokens of a prompt, and the five tokens of its answer."""


SAMPLES = "prompts"
PROMPTS = ("paper", "toy")


@dataclasses.dataclass(frozen=True)
class Options(base.Options):
    """What is asked besides the lengths.

    Args:
        depths: number of equally spaced depths of the key, 0 to 1.
        trials: prompts at each depth.
        prompt: "toy" or "paper"; None: toy for the character tokenizer, paper for others.
        seed: of the prompts.
        patience: lengths one after another without a key found, after which longer ones are not measured; 0: all are.
    """

    depths: int = option(20, "equally spaced places of the key")
    trials: int = option(1, "prompts at each depth")
    prompt: str | None = option(None, "toy (the default for the tokenizer char) or paper")
    seed: int = option(0, "of the prompts")
    patience: int = option(0, "lengths without any key found after which longer ones are left out; 0: none is")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and self.prompt not in PROMPTS:
            raise UserError(f"unknown prompt {self.prompt!r}; {nearest(self.prompt, PROMPTS)}")


class Prompts(Protocol):
    """Makes the prompts of an evaluation, each a pure function of its arguments."""

    def __call__(self, length: int, depth: float, trial: int) -> Sample:
        """The prompt of at most `length` tokens, with the key at `depth`; equal for equal lengths in its token count."""


def toy(stream: np.ndarray, tokenizer: Tokenizer, seed: int) -> Prompts:
    """Prompts of held-out text from a place of their own, each with one key in the form that training plants.

    Args:
        stream: [tokens] held-out token ids; repeated where a prompt is longer.
        tokenizer: must be the character tokenizer.
        seed: of the evaluation.

    Raises:
        UserError: another tokenizer; from a prompt, a length that it does not fit.
    """
    if not isinstance(tokenizer, CharTokenizer):
        raise UserError(f"the toy prompt needs the tokenizer 'char', not {tokenizer.name!r}; give --prompt=paper")

    def make(length: int, depth: float, trial: int) -> Sample:
        rng = _rng(seed, length, depth, trial)
        place = rng.integers(len(stream))
        text = stream.take(np.arange(place, place + length), mode="wrap")
        return passkey.prompt(text, length, depth, rng.integers(0, 10, DIGITS).tolist(), tokenizer)

    return make


def paper(tokenizer: Tokenizer, seed: int) -> Prompts:
    """The paper's prompts; arguments and errors as in `toy`, for a tokenizer that keeps each digit as a token."""

    def make(length: int, depth: float, trial: int) -> Sample:
        digits = _rng(seed, length, depth, trial).integers(0, 10, DIGITS).tolist()
        return passkey.paper_prompt(length, depth, digits, tokenizer)

    return make


def plans(trained: base.Trained, lengths: Sequence[int], options: Options) -> list[Plan]:
    """What is to be measured, in one piece.

    Args:
        trained: the run.
        lengths: of the prompts, tokens.
        options: the rest.

    Raises:
        UserError: the toy prompt is asked of another tokenizer.
    """
    tokenizer = trained.tokenizer
    prompt = options.prompt or passkey.usual(tokenizer.name)
    if prompt == "toy":
        prompts = toy(trained.held_out(), tokenizer, options.seed)
    else:
        prompts = paper(tokenizer, options.seed)
    return [
        Plan(
            {"prompt": prompt, "seed": options.seed},
            {(length, depth): options.trials for length in lengths for depth in passkey.depths(options.depths)},
            lambda cells: evaluate(trained.decoder, cells, prompts, memory=trained.memory),
            options.patience,
        )
    ]


def correct(decoder: nnx.Module, samples: Sequence[Sample], *, slots: int, rows: int) -> np.ndarray:
    """Which digits a model finds, teacher-forced: each is its most likely token after the prompt and the true digits before.

    The prompts are read in one forward pass, padded on the left: texts of different lengths share what is compiled.

    Args:
        decoder: called as `bam_jax.models.transformer.Decoder` is.
        samples: at most `rows`, of the same length in tokens.
        slots: tokens that each prompt is padded to.
        rows: that the batch is padded to.

    Returns:
        [samples, 5] bool.
    """
    answers = np.stack([answer for _, answer in samples])
    tokens = np.stack([np.concatenate([prompt, answer[:FORCED]]) for prompt, answer in samples])
    pad = slots + FORCED - tokens.shape[1]
    position = np.pad(np.arange(tokens.shape[1], dtype=np.int32), (pad, 0), constant_values=EMPTY)
    tokens = np.pad(tokens, ((0, rows - len(samples)), (pad, 0)))
    found = _most_likely(*nnx.split(decoder), tokens, position[None])
    return np.asarray(found)[: len(samples)] == answers


def _one_by_one(decoder: transformer.Decoder, samples: Iterable[Sample], slots: int) -> Iterator[np.ndarray]:
    """As `correct`, of any number of prompts, each read in pieces from where it parts from the one before: [1, 5] bool."""
    reader = generate.Reader(decoder, slots + FORCED, chunk=CHUNK, read=DIGITS)
    for tokens, answer in samples:
        logits = reader(np.concatenate([tokens, answer[:FORCED]]))
        yield np.asarray(jnp.argmax(logits, axis=-1))[None] == answer


def padding(prompts: Mapping[int, int], parameters: int) -> dict[int, int]:
    """The length that each length is padded to, so that few shapes are compiled.

    Args:
        prompts: number of them by length.
        parameters: of the model; a token costs twice as many operations.

    >>> padding({64: 20, 4096: 20, 32_000: 10}, parameters=90_000)
    {32000: 32000, 4096: 4096, 64: 4096}
    """
    padded: dict[int, int] = {}
    slots = 0
    for length in sorted(prompts, reverse=True):
        if 2 * parameters * prompts[length] * (slots - length) > COMPILE or not slots:
            slots = length
        padded[length] = slots
    return padded


def evaluate(
    decoder: transformer.Decoder, cells: Sequence[Cell], prompts: Prompts, *, memory: float
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Measures cells, shorter prompts first; see above how they are read.

    Args:
        decoder: the model.
        cells: what to measure.
        prompts: makes them.
        memory: for activations, bytes.

    Yields:
        Each cell as soon as it is measured, with its results: `value`, the fraction of prompts whose five digits are
        all right; `digits`, the fraction of digits; `tokens`, the prompt's true length; `seconds`, compilation included;
        `peak_bytes`, the most memory that the process has held so far.

    Raises:
        UserError: before anything is measured, a length that the prompt or the model cannot have.
    """
    lengths = {cell.length: len(prompts(cell.length, 0.0, 0)[0]) for cell in cells}
    for tokens in lengths.values():
        decoder.check_length(tokens + FORCED)
    counts: dict[int, int] = collections.Counter()
    for cell in cells:
        counts[lengths[cell.length]] += cell.n
    short = {length: n for length, n in counts.items() if length <= CHUNK}
    padded = {length: length for length in counts} | padding(short, transformer.count(decoder))
    most = {slots: max(n for length, n in counts.items() if padded[length] == slots) for slots in padded.values()}
    for length, group in itertools.groupby(sorted(cells), key=lambda cell: cell.length):
        slots = padded[lengths[length]]
        todo = [(cell, trial) for cell in group for trial in range(cell.first, cell.stop)]
        sample = lambda cell, trial: prompts(cell.length, cell.depth or 0.0, trial)
        if slots > CHUNK:
            todo.sort(key=lambda each: -(each[0].depth or 0.0))
            rows, answers = 1, _one_by_one(decoder, itertools.starmap(sample, todo), slots)
        else:
            rows = min(most[slots], rows_within(memory, slots, decoder.config))
            batches = (list(itertools.starmap(sample, batch)) for batch in itertools.batched(todo, rows))
            answers = (correct(decoder, batch, slots=slots, rows=rows) for batch in batches)
        found: dict[Cell, list[np.ndarray]] = collections.defaultdict(list)
        seconds: dict[Cell, float] = collections.defaultdict(float)
        start = time.perf_counter()
        for batch, right in zip(itertools.batched(todo, rows), answers, strict=True):
            share = (time.perf_counter() - start) / len(batch)
            for (cell, _), digits in zip(batch, right, strict=True):
                found[cell].append(digits)
                seconds[cell] += share
                if len(found[cell]) == cell.n:
                    all_right, each = np.all(found[cell], axis=1).mean(), np.mean(found[cell])
                    result = {"value": float(all_right), "digits": float(each), "unit": "accuracy"}
                    cost = {"seconds": round(seconds[cell], 3), "peak_bytes": host.peak_bytes()}
                    yield cell, result | {"tokens": lengths[length]} | cost
            start = time.perf_counter()


def _rng(seed: int, length: int, depth: float, trial: int) -> np.random.Generator:
    return np.random.default_rng([seed, length, round(depth * 10**6), trial, _STREAM])


@functools.partial(jax.jit, static_argnums=0)
def _most_likely(graph: nnx.GraphDef, state: nnx.State, tokens: Array, position: Array) -> Array:
    logits, _ = nnx.merge(graph, state)(tokens, position=position, read=DIGITS)
    return jnp.argmax(logits, axis=-1)
