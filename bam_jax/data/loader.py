"""Batches: a pure function of the configuration and a number, so that any of them can be made again."""

import functools
import sys
from collections.abc import Sequence
from typing import Protocol

import grain
import numpy as np

from bam_jax.config import Config, DataConfig
from bam_jax.data.corpus import STDLIB, documents, split
from bam_jax.data.passkey import plant
from bam_jax.data.tokenizers import CharTokenizer, Tokenizer
from bam_jax.errors import UserError, nearest

SPLITS = ("train", "held_out")

Batch = dict[str, np.ndarray]


def batches(config: Config, tokenizer: Tokenizer, split: str = "train") -> grain.DatasetIterator:
    """The endless batches of a run; equal configurations give equal batches.

    Its state (`get_state`, `set_state`, or orbax) is the number of the next batch: resuming is exact.

    Args:
        config: its data, context, batch and seed matter.
        tokenizer: the one that `config.data.tokenizer` names.
        split: "train" or "held_out".

    Returns:
        An iterator of dictionaries: tokens [B, T] int32; targets [B, T] int32, the tokens that follow;
        weights [B, T] float32 of the targets in the loss; and, where a row holds several documents that
        must not see each other, segment [B, T] int32, which numbers them from 1 (there is no padding, 0).

    Raises:
        UserError: unknown split, no or unreadable text, or less of it than a row.
    """
    texts = dict(zip(SPLITS, _texts(config.data), strict=True))
    if split not in texts:
        raise UserError(f"unknown split {split!r}; {nearest(split, texts)}")
    source = _SOURCES[config.data.task](texts[split], config, tokenizer)
    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # threads ahead of the device gain nothing
    return iter(grain.MapDataset.source(source).to_iter_dataset(here))


def held_out(config: Config, tokenizer: Tokenizer) -> np.ndarray:
    """The held-out documents end to end, without begin and end tokens: [tokens] int32.

    Raises:
        UserError: no or unreadable text, or none held out.
    """
    texts = _texts(config.data)[1]
    if not texts:
        raise UserError(f"config.data.holdout={config.data.holdout} holds no text out; give for example 0.1")
    return np.concatenate([tokenizer.encode(text) for text in texts])


class Passkeys:
    """Batches of random windows of the text, with keys planted in some (`passkey.plant`)."""

    def __init__(self, texts: Sequence[str], config: Config, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, CharTokenizer):
            raise UserError(f"the task 'passkey' needs the tokenizer 'char', not '{tokenizer.name}'")
        self._stream = _encode(texts, config, tokenizer)[0]
        self._config = config
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Batch:
        """The batch of that number."""
        config = self._config
        rng = np.random.default_rng([config.seed, index])
        starts = rng.integers(0, len(self._stream) - config.context, (config.batch, 1))
        windows = self._stream[starts + np.arange(config.context + 1)]
        tokens, weights = plant(
            windows,
            rng,
            self._tokenizer,
            fraction=config.data.passkey_fraction,
            answer_weight=config.data.answer_weight,
        )
        return _batch(tokens, weights[:, 1:])


class Packed:
    """Batches of whole documents end to end, in a new order every epoch, cut into rows of context + 1 tokens.

    A row starts with the last target of the one before, so that an epoch has each token as a target once
    (but the first, and the last that fill no row). A document that a row's end cuts goes on in the next row.
    """

    def __init__(self, texts: Sequence[str], config: Config, tokenizer: Tokenizer) -> None:
        self._stream, self._lengths = _encode(texts, config, tokenizer)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._rows = (len(self._stream) - 1) // config.context
        self._config = config
        # Two orders: a batch may begin in one epoch and end in the next.
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Batch:
        """The batch of that number."""
        config = self._config
        numbers = index * config.batch + np.arange(config.batch)
        epochs = numbers // self._rows
        tokens = np.empty((config.batch, config.context + 1), np.int32)
        slots = np.empty_like(tokens)
        for epoch in np.unique(epochs):
            order, ends = self._order(int(epoch))
            chosen = epochs == epoch
            places = (numbers[chosen] % self._rows * config.context)[:, None] + np.arange(config.context + 1)
            slot = np.searchsorted(ends, places, side="right")
            document = order[slot]
            tokens[chosen] = self._stream[self._starts[document] + self._lengths[document] - ends[slot] + places]
            slots[chosen] = slot
        if not config.data.document_mask:
            return _batch(tokens, np.ones((config.batch, config.context), np.float32))
        weights = (slots[:, 1:] == slots[:, :-1]).astype(np.float32)
        return _batch(tokens, weights) | {"segment": slots[:, :-1] - slots[:, :1] + 1}

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's order of the documents, and where each then ends in the stream."""
        order = np.random.default_rng([self._config.seed, epoch]).permutation(len(self._lengths))
        return order, np.cumsum(self._lengths[order])


class _Source(Protocol):
    def __call__(self, texts: Sequence[str], config: Config, tokenizer: Tokenizer, /) -> Passkeys | Packed: ...


_SOURCES: dict[str, _Source] = {"packed": Packed, "passkey": Passkeys}


def _texts(data: DataConfig) -> tuple[list[str], list[str]]:
    if data.held_out_source:
        return _split(data.source, data.text_field, 0.0)[0], list(documents(data.held_out_source, data.text_field))
    return _split(data.source, data.text_field, data.holdout)


def _split(source: str, text_field: str, holdout: float) -> tuple[list[str], list[str]]:
    if source == STDLIB:  # the same for the life of the process, and two seconds to read
        return _stdlib(holdout)
    return split(documents(source, text_field), holdout)


@functools.cache
def _stdlib(holdout: float) -> tuple[list[str], list[str]]:
    return split(documents(STDLIB), holdout)


def _encode(texts: Sequence[str], config: Config, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The documents end to end, each with its end token if there is one, and their lengths in tokens."""
    ending = np.array([] if tokenizer.eos is None else [tokenizer.eos], np.int32)
    parts = [np.concatenate([tokenizer.encode(text), ending]) for text in texts]
    lengths = np.array([len(part) for part in parts], np.int64)
    if lengths.sum() <= config.context:
        raise UserError(
            f"the text has {lengths.sum()} tokens, fewer than config.context={config.context} and one more; "
            "give a shorter context or more text"
        )
    return np.concatenate(parts), lengths


def _batch(tokens: np.ndarray, weights: np.ndarray) -> Batch:
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}
