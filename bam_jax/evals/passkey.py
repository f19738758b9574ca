"""Passkey retrieval: five digits hidden in a long text, asked for at its end.

Prompts of up to `CHUNK` tokens are batched. Longer ones are read one by one, in pieces through the cache, so that memory grows
with the length and not with the number of prompts. The deepest key comes first: the next prompt then shares the cache up to its
own key (the paper's prompts agree before their keys).

Source: BAM, passkey retrieval, after Mohtashami & Jaggi 2023.
"""

import collections
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NotRequired

import jax.numpy as jnp
import numpy as np
from flax import nnx
from msgspec import Meta

from bam_jax.attention import EMPTY
from bam_jax.config import Config
from bam_jax.data.tasks import passkey
from bam_jax.data.tasks.passkey import DIGITS
from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.evals import schema
from bam_jax.evals.base import Evaluation, Place, option, prompt_seed
from bam_jax.evals.likelihood import most_likely
from bam_jax.evals.plan import Plan, Results, SampleRange, Trained, hash_tokens, rows_within
from bam_jax.models import generate, transformer
from bam_jax.models.counts import parameter_count
from bam_jax.system import resources
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.fields import Count, Line, Natural, Share

FORCED = DIGITS - 1
"""Digits of the answer that a model is given after the prompt."""

COMPILE = 2e10
"""Floating-point operations that are cheaper than compiling another shape: about a second on one core."""

CHUNK = 2**14
"""Tokens of a prompt that are read at once, at most."""

_STREAM = 0x9A55  # a fifth word in the seed of a prompt; seeds in training have two, so random numbers never coincide

Sample = tuple[np.ndarray, np.ndarray]
"""Tokens of a prompt, and the five tokens of its answer."""

type Prompts = Callable[[int, float, int], Sample]
"""The prompt of at most `length` tokens with the key at `depth`, by (length, depth, trial); its token count depends on the
length alone."""

GIVEN = {"paper": 0, "first_digit": 1}
"""Number of digits beyond five of a key in the paper's prompts. The prompt ends with these; the last five are the answer.

Source: BAM's authors give the first digit in their runs with long contexts (their code), and none in the others.
"""

PROMPTS = ("toy", *GIVEN)


def toy(stream: np.ndarray, tokenizer: Tokenizer, seed: int) -> Prompts:
    """Prompts of held-out text [tokens], each from a random position and with one key in the form that training plants."""
    if not isinstance(tokenizer, CharTokenizer):
        raise UserError(f"the toy prompt needs the tokenizer 'char', not {tokenizer.name!r}; give --prompt=paper")

    def make(length: int, depth: float, trial: int) -> Sample:
        rng = _rng(seed, length, depth, trial)
        place = rng.integers(len(stream))
        text = stream.take(np.arange(place, place + length), mode="wrap")
        return passkey.prompt(text, length, depth, rng.integers(0, 10, DIGITS).tolist(), tokenizer)

    return make


def make_prompts(name: str, tokenizer: Tokenizer, seed: int, held_out: Callable[[], np.ndarray]) -> Prompts:
    return toy(held_out(), tokenizer, seed) if name == "toy" else paper(tokenizer, seed, given=GIVEN[name])


def paper(tokenizer: Tokenizer, seed: int, *, given: int = 0) -> Prompts:
    """The paper's prompts, for a tokenizer that keeps each digit as a token."""

    def make(length: int, depth: float, trial: int) -> Sample:
        digits = _rng(seed, length, depth, trial).integers(0, 10, given + DIGITS).tolist()
        return passkey.paper_prompt(length, depth, digits, tokenizer)

    return make


class PasskeyRecord(schema.CellRecord):
    """Prompts at one depth; `data_hash` identifies the text of toy prompts; older records lack it."""

    value: Share
    depth: Share
    prompt: Line
    seed: Natural
    data_hash: NotRequired[Line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passkey(Evaluation):
    """The share of prompts of each length and depth for which the model predicts all five digits."""

    name = "passkey"
    sample_noun = "prompts"
    record = PasskeyRecord
    identity = ("prompt", "seed", "depth", "data_hash")
    curve = "accuracy"
    figure = "depth"
    costly = True

    depths: Annotated[int, Meta(ge=1, le=10_000)] = option(20, "equally spaced places of the key")
    trials: Count = option(1, "prompts at each depth")
    prompt: Line | None = option(
        None, "toy (the default for the tokenizer char), paper, or first_digit: of six, the first is given"
    )
    seed: Natural | None = option(None, "of the prompts (the run's training seed)")
    patience: Natural = option(0, "lengths without any key found after which longer ones are left out; 0: none is")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and self.prompt not in PROMPTS:
            raise UserError(f"unknown prompt {self.prompt!r}; {nearest(self.prompt, PROMPTS)}")

    def plans(self, trained: Trained) -> list[Plan]:
        tokenizer = trained.tokenizer
        prompt, seed = self.prompt or passkey.usual(tokenizer.name), prompt_seed(self.seed, trained.config)
        prompts = make_prompts(prompt, tokenizer, seed, trained.held_out)
        identity = {"prompt": prompt, "seed": seed}
        if prompt == "toy":
            identity["data_hash"] = hash_tokens(trained.held_out())
        wanted = {(length, depth): self.trials for length in self.lengths for depth, _ in self.places()}
        measured = lambda todo: measure(trained.decoder, todo, prompts, memory=trained.memory)
        return [Plan(identity, wanted, measured, self.patience)]

    def texts(self, length: int) -> float:
        return self.depths * self.trials

    def wanted(self, length: int, record: Mapping[str, Any] | None) -> int | None:
        return self.trials

    def places(self) -> list[Place]:
        return [(depth, "") for depth in passkey.depths(self.depths)]

    def required(self, record: Mapping[str, Any], config: Config) -> dict[str, Any]:
        prompt = self.prompt or passkey.usual(config.data.tokenizer)
        return {"seed": prompt_seed(self.seed, config), "prompt": prompt}

    def gives_up(self, empty: int) -> bool:
        return 0 < self.patience <= empty

    def why_left_out(self) -> str:
        return f"after {self.patience} lengths without any"


def correct(decoder: nnx.Module, samples: Sequence[Sample], *, slots: int, rows: int) -> np.ndarray:
    """Whether each digit is the most likely token after the prompt and the true digits before it, [samples, 5] bool.

    It takes one forward pass. Prompts are padded on the left, so that several lengths share a compiled program.
    """
    answers = np.stack([answer for _, answer in samples])
    tokens = np.stack([np.concatenate([prompt, answer[:FORCED]]) for prompt, answer in samples])
    pad = slots + FORCED - tokens.shape[1]
    position = np.pad(np.arange(tokens.shape[1], dtype=np.int32), (pad, 0), constant_values=EMPTY)
    tokens = np.pad(tokens, ((0, rows - len(samples)), (pad, 0)))
    found = most_likely(*nnx.split(decoder), tokens, position[None], read=DIGITS)
    return np.asarray(found)[: len(samples)] == answers


def _one_by_one(decoder: transformer.Decoder, samples: Iterable[Sample], slots: int) -> Iterator[np.ndarray]:
    """Like `correct`, for each prompt, [1, 5] bool. A prompt is read in pieces, from where it differs from the one before."""
    reader = generate.TextReader(decoder, slots + FORCED, chunk=CHUNK, read=DIGITS)
    for tokens, answer in samples:
        logits = reader(np.concatenate([tokens, answer[:FORCED]]))
        yield np.asarray(jnp.argmax(logits, axis=-1))[None] == answer


def padding(prompts: Mapping[int, int], parameters: int) -> dict[int, int]:
    """The length that each length is padded to, so that few shapes are compiled.

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


def measure(decoder: transformer.Decoder, todo: Sequence[SampleRange], prompts: Prompts, *, memory: float) -> Results:
    lengths = {samples.length: len(prompts(samples.length, 0.0, 0)[0]) for samples in todo}
    for tokens in lengths.values():
        decoder.check_length(tokens + FORCED)
    counts: dict[int, int] = collections.Counter()
    for samples in todo:
        counts[lengths[samples.length]] += samples.n
    short = {length: n for length, n in counts.items() if length <= CHUNK}
    padded = {length: length for length in counts} | padding(short, parameter_count(decoder))
    most = {slots: max(n for length, n in counts.items() if padded[length] == slots) for slots in padded.values()}
    prompt = lambda samples, trial: prompts(samples.length, samples.depth or 0.0, trial)
    for length, group in itertools.groupby(sorted(todo), key=lambda samples: samples.length):
        slots = padded[lengths[length]]
        asked = [(samples, trial) for samples in group for trial in range(samples.first, samples.stop)]
        if slots > CHUNK:
            rows = 1
            asked.sort(key=lambda pair: -(pair[0].depth or 0.0))  # the deepest key first
            answers = _one_by_one(decoder, (prompt(*pair) for pair in asked), slots)
        else:
            rows = min(most[slots], rows_within(memory, slots, decoder.config))
            batches = ([prompt(*pair) for pair in batch] for batch in itertools.batched(asked, rows))
            answers = (correct(decoder, batch, slots=slots, rows=rows) for batch in batches)
        for samples, result in _results(asked, rows, answers):
            yield samples, result | {"tokens": lengths[length], "peak_bytes": resources.peak_bytes()}


def _results(asked: Sequence[tuple[SampleRange, int]], rows: int, answers: Iterable[np.ndarray]) -> Results:
    """The results, each as soon as the last of its prompts is answered; answers are batches [rows, 5] bool."""
    found: dict[SampleRange, list[np.ndarray]] = collections.defaultdict(list)
    seconds: dict[SampleRange, float] = collections.defaultdict(float)
    start = time.perf_counter()
    for batch, right in zip(itertools.batched(asked, rows), answers, strict=True):
        share = (time.perf_counter() - start) / len(batch)
        for (samples, _), digits in zip(batch, right, strict=True):
            found[samples].append(digits)
            seconds[samples] += share
            if len(found[samples]) == samples.n:
                whole, single = np.all(found[samples], axis=1).mean(), np.mean(found[samples])
                result = {"value": float(whole), "digits": float(single), "unit": "accuracy"}
                yield samples, result | {"seconds": round(seconds[samples], 3)}
        start = time.perf_counter()


def _rng(seed: int, length: int, depth: float, trial: int) -> np.random.Generator:
    return np.random.default_rng([seed, length, round(depth * 10**6), trial, _STREAM])
