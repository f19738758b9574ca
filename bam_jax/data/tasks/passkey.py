"""Passkeys: keys planted in training text, and the prompts that ask for one.

Source: Bayesian Attention Mechanism, passkey retrieval, after Mohtashami & Jaggi 2023. The toy form, KEY d d d d d END, is
ours: small models learn it from planted keys.
"""

from collections.abc import Sequence

import numpy as np

from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.system.errors import UserError

DIGITS = 5
KEY_LENGTH = DIGITS + 2
MOST = 3  # maximum occurrences of a key in a training sample

DESCRIPTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
KEY_LINE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is {key}"


def depths(count: int) -> list[float]:
    """Equally spaced depths of the key, from 0 to 1."""
    return [round(float(depth), 6) for depth in np.linspace(0, 1, count)]


def usual(tokenizer: str) -> str:
    """The default prompt for a tokenizer, "toy" or "paper"."""
    return "toy" if tokenizer == "char" else "paper"


def plant(
    windows: np.ndarray,
    rng: np.random.Generator,
    tokenizer: CharTokenizer,
    *,
    fraction: float = 0.8,
    answer_weight: float = 1.5,
) -> tuple[np.ndarray, np.ndarray]:
    """Plant a key in some of the windows, [B, N] ids, the same key at 2 or 3 random positions.

    Returns tokens [B, N] int32, and weights [B, N] float32 of each token as a target: 0 for the digits of a key's first
    occurrence (nothing predicts them), `answer_weight` for those of later occurrences, else 1.
    """
    rows, length = windows.shape
    if length < MOST * KEY_LENGTH:
        raise UserError(f"context {length - 1} is too short for passkeys; give {MOST * KEY_LENGTH - 1} or more")
    tokens = windows.astype(np.int32)
    weights = np.ones(windows.shape, np.float32)
    times = np.where(rng.random(rows) < fraction, rng.integers(2, MOST + 1, rows), 0)
    keys = np.empty((rows, KEY_LENGTH), np.int32)
    keys[:, 0], keys[:, -1] = tokenizer.key, tokenizer.end
    keys[:, 1:-1] = np.take(tokenizer.digits, rng.integers(0, 10, (rows, DIGITS)))
    for count in (2, MOST):
        row = np.flatnonzero(times == count)[:, None, None]
        # Sorted positions in the space that keys leave free, each shifted by the keys before it, so that keys never overlap.
        starts = np.sort(rng.integers(0, length - count * KEY_LENGTH + 1, (len(row), count)))
        places = (starts + KEY_LENGTH * np.arange(count))[..., None] + np.arange(KEY_LENGTH)
        tokens[row, places] = keys[row[:, 0]]
        weights[row, places[..., 1:-1]] = answer_weight
        weights[row, places[:, :1, 1:-1]] = 0
    return tokens, weights


def prompt(
    text: np.ndarray, length: int, depth: float, digits: Sequence[int], tokenizer: CharTokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """The toy prompt [length] int32: text, repeated if it is short, with one key and a final KEY; and the answer [5] int32."""
    room = length - KEY_LENGTH - 1
    if room < 0:
        raise UserError(f"length {length} is shorter than the passkey prompt; give {KEY_LENGTH + 1} or more")
    _check(depth, digits)
    if not len(text):
        raise UserError("no held-out text to hide a passkey in; give config.data.holdout more than 0")
    answer = np.take(tokenizer.digits, digits).astype(np.int32)
    tokens = np.resize(text, length).astype(np.int32)
    start = round(depth * room)
    tokens[start : start + KEY_LENGTH] = [tokenizer.key, *answer, tokenizer.end]
    tokens[-1] = tokenizer.key
    return tokens, answer


def paper_prompt(
    length: int, depth: float, digits: Sequence[int], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """The paper's prompt: description, fillers, key line, fillers, question; as many fillers as fit.

    Returns tokens [at most length] int32, which end right before the answer's first digit, and the answer [5] int32.
    Source: BAM, passkey retrieval (the prompt's text from the authors' code, pieces tokenised one by one).
    """
    _check(depth, digits[-DIGITS:])
    key = "".join(map(str, digits))
    # Some tokenizers prepend a space to every text, which also separates the pieces; others need an explicit space.
    bare = tokenizer.decode(np.concatenate([tokenizer.encode("a"), tokenizer.encode("b")])) == "ab"
    space = " " if bare else ""
    keyed = np.take(tokenizer.digits, digits).astype(np.int32)
    description = tokenizer.encode(DESCRIPTION)
    filler = tokenizer.encode(space + FILLER)
    line = tokenizer.encode(space + KEY_LINE.format(key=key))
    question = tokenizer.encode(space + QUESTION.format(key=key))
    if not np.array_equal(question[-len(keyed) :], keyed):
        raise UserError(
            f"tokenizer '{tokenizer.name}' does not keep each digit as a token, which the paper's prompt needs; "
            "give --prompt=toy, or train with tokenizer 'mistral'"
        )
    question = question[:-DIGITS]
    least = len(description) + len(line) + len(question)
    if length < least:
        raise UserError(f"length {length} is shorter than the paper's passkey prompt; give {least} or more")
    fillers = (length - least) // len(filler)
    before = round(depth * fillers)
    parts = [description, np.tile(filler, before), line, np.tile(filler, fillers - before), question]
    return np.concatenate(parts), keyed[-DIGITS:]


def _check(depth: float, digits: Sequence[int]) -> None:
    if not 0 <= depth <= 1:
        raise UserError(f"depth {depth} must be between 0 and 1")
    if len(digits) != DIGITS or not all(0 <= digit <= 9 for digit in digits):
        raise UserError(f"a passkey is {DIGITS} digits, each 0 to 9, not {list(digits)}")
