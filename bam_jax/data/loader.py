"""Batches: a pure function of the configuration and a number, so that any of them can be made again."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

import grain
import numpy as np
from absl import flags

from bam_jax.config import Config, DataConfig
from bam_jax.data.packing.base import Batch, RowSource
from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.masked import Masked
from bam_jax.data.packing.mixture import Mixture
from bam_jax.data.packing.planted import Planted
from bam_jax.data.packing.shuffle import Shuffle
from bam_jax.data.packing.triplets import FIELDS, Triplets
from bam_jax.data.prepared.documents import Documents, open_documents
from bam_jax.data.prepared.shards import Split
from bam_jax.data.sources.source import is_fetched
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError, shown

STATE = "process_0-of-1.json"
"""The iterator's file in a checkpoint, for any number of hosts. (Checkpoints of grain's own iterators have it too.)"""


def batches(config: Config, tokenizer: Tokenizer, split: str = "train", *, host: int = 0, hosts: int = 1) -> "Batches":
    """The endless batches of a run; equal configurations give equal batches, and hosts take disjoint rows of them.

    Args:
        config: its data, context, batch and seed matter.
        tokenizer: the one that `config.data.tokenizer` names.
        split: "train" or "held_out".
        host: which of the hosts this is, from 0.
        hosts: how many share a batch; host h takes the rows from h B / hosts to (h + 1) B / hosts.

    Returns:
        An iterator of dictionaries of arrays, with B the host's rows and T the context:
        tokens [B, T] int32; targets [B, T] int32, the tokens that follow (or, with the task masked, those that
        were there); weights [B, T] float32 of the targets in the loss; segment [B, T] int32 where a row holds
        several documents that must not see each other, or pads: it numbers the documents from 1, pads are 0;
        position [B, T] int32 where positions restart in every document.
        With the task triplets instead query, positive, negative [B, T] int32, padded with 0, and query_length,
        positive_length, negative_length [B] int32, tokens.

    Raises:
        UserError: unknown split, no or unreadable text, less of it than a row, or hosts that do not divide the batch.
    """
    if config.batch % hosts:
        raise UserError(f"config.batch={config.batch} must be a multiple of the {hosts} hosts")
    return Batches(make_rows(config, tokenizer, split), config.batch, host, hosts, config.data.workers)


def make_rows(config: Config, tokenizer: Tokenizer, split: str = "train") -> RowSource:
    """The rows that the batches are made of, in their global order.

    Args:
        config: its data, context, batch and seed matter.
        tokenizer: the one that `config.data.tokenizer` names.
        split: "train" or "held_out".

    Raises:
        UserError: unknown split, no or unreadable text, or less of it than a row.
    """
    parts = {
        name: (weight, _TASKS[part.task](open_documents(part, tokenizer, split), part, config, tokenizer))
        for name, (weight, part) in config.data.parts().items()
    }
    return Mixture(parts) if config.data.mixture else parts[""][1]


def held_out(config: Config, tokenizer: Tokenizer, allow: Collection[str] = ()) -> np.ndarray:
    """The held-out documents end to end, without begin and end tokens: [tokens] int32.

    Args:
        config: of a run, which may be a stranger's.
        tokenizer: the run's.
        allow: addresses that may be fetched; paths of this machine need no leave.

    Raises:
        UserError: no or unreadable text, none held out, or text at an address that is not allowed.
    """
    sources = {
        (part.source, part.text_field, part.holdout, part.held_out_source): part
        for _, part in config.data.parts().values()
    }
    for part in sources.values():
        source = part.held_out_source or part.source
        if is_fetched(source) and source not in allow:
            raise UserError(
                f"the held-out text is at {shown(source)}, and what a run names is fetched only on your word: "
                f"add --allow={shown(source)}, or name other text with --config.data.source"
            )
    ids = [text for part in sources.values() for text in _texts(open_documents(part, tokenizer, "held_out"))]
    if not ids:
        first = next(iter(sources.values()))
        raise UserError(
            f"config.data.holdout={first.holdout} holds no text out; give for example 0.1 (a prepared folder decides "
            "for itself: prepare it with a hold-out, or name text with config.data.held_out_source)"
        )
    ending = tokenizer.eos is not None
    return np.concatenate([text[:-1] if ending else text for text in ids])


class Batches(grain.DatasetIterator[Batch]):
    """Batch after batch of some rows; its state is the number of the next one, nothing else.

    So it can be resumed exactly, on any number of hosts, with any number of worker processes. Worker processes are
    started by the first batch and stopped by `close`, or when the state is set.

    Args:
        rows: what batches are made of.
        size: rows of a batch of all hosts together.
        host: which of the hosts this is.
        hosts: how many there are.
        workers: processes that make batches ahead; 0: made when asked for.
    """

    def __init__(self, rows: RowSource, size: int, host: int = 0, hosts: int = 1, workers: int = 0) -> None:
        super().__init__()
        share = size // hosts
        self._make = _Make(rows, size, np.arange(host * share, (host + 1) * share))
        self._first_host = host == 0
        self._workers = workers
        self._number = 0
        self._ahead: grain.DatasetIterator[Batch] | None = None
        self._done = False

    def __next__(self) -> Batch:
        if self._done:
            raise ValueError("these batches are closed; open them again")
        if self._workers and self._ahead is None:
            self._ahead = _ahead(_From(self._make, self._number), self._workers)
        batch = self._make(self._number) if self._ahead is None else next(self._ahead)
        self._number += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """The number of the next batch."""
        return {"next_index": self._number}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to where an iterator stood, of any number of hosts and workers.

        Args:
            state: what its `get_state` gave.

        Raises:
            UserError: it is something else.
        """
        number = state["next_index"] if isinstance(state, dict) and state.keys() == {"next_index"} else None
        if type(number) is not int or number < 0:
            raise UserError(
                "the state of the loader is not the number of its next batch; resume from another checkpoint"
            )
        self._stop()
        self._number = number

    async def save(self, directory: Any) -> Awaitable[None]:
        """What orbax calls to save the state; it is the same on all hosts, and the first writes it."""
        return self._write(directory, json.dumps(self.get_state()))

    async def load(self, directory: Any) -> Awaitable[None]:
        """What orbax calls to set the state to a saved one."""
        return self._read(directory)

    def close(self) -> None:
        """Stop the worker processes; there are no more batches."""
        self._stop()
        self._done = True
        super().close()

    async def _write(self, directory: Any, state: str) -> None:
        folder = await directory.await_creation()
        if self._first_host:
            await asyncio.to_thread((folder / STATE).write_text, state)

    async def _read(self, directory: Any) -> None:
        path = directory / STATE
        self.set_state(strict_json.parse(await asyncio.to_thread(path.read_bytes), str(path)))

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _Make:
    """The host's rows of any batch."""

    def __init__(self, rows: RowSource, size: int, mine: np.ndarray) -> None:
        self._rows, self._size, self._mine = rows, size, mine

    def __call__(self, number: int) -> Batch:
        return self._rows.take(number * self._size + self._mine)


class _From:
    """The batches from a number on, as grain wants a source: by index."""

    def __init__(self, make: _Make, first: int) -> None:
        self._make, self._first = make, first

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Batch:
        return self._make(self._first + index)


def _ahead(source: _From, workers: int) -> grain.DatasetIterator[Batch]:
    """The batches made ahead by worker processes."""
    if not flags.FLAGS.is_parsed():  # grain reads its own options there; a program of absl's has parsed them
        flags.FLAGS.mark_as_parsed()
    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # a worker has nothing to wait for
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    # Through pipes: arrays in shared memory last only as long as their files, and leave those behind when killed.
    piped = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    dataset = grain.experimental.WithOptionsIterDataset(grain.MapDataset.source(source).to_iter_dataset(here), piped)
    return iter(dataset.mp_prefetch(options, worker_init_fn=_end_with_parent))


def _end_with_parent(worker: int, workers: int) -> None:
    """In a worker: end it with the process that started it, also when that is killed; signals are that one's to answer."""
    for each in (signal.SIGINT, signal.SIGTERM):  # a scheduler sends them to all processes
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_wait_and_end, args=(multiprocessing.parent_process(),), daemon=True).start()


def _wait_and_end(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _packed(documents: Documents, data: DataConfig, config: Config, shift: int = 1) -> RowSource:
    return _PACKINGS[data.packing](
        documents,
        Shuffle(documents, config.seed, data.shuffle),
        config.context,
        shift=shift,
        document_mask=data.document_mask,
        restart=data.positions == "restart",
    )


def _masked(documents: Documents, data: DataConfig, config: Config, tokenizer: Tokenizer) -> RowSource:
    rows = _packed(documents, data, config, shift=0)
    return Masked(rows, tokenizer, fraction=data.mask_fraction, seed=config.seed)


def _planted(documents: Documents, data: DataConfig, config: Config, tokenizer: Tokenizer) -> RowSource:
    return Planted(
        documents,
        tokenizer,
        config.context,
        block=config.batch,
        fraction=data.passkey_fraction,
        answer_weight=data.answer_weight,
        seed=config.seed,
    )


def _triplets(documents: Documents, data: DataConfig, config: Config, tokenizer: Tokenizer) -> RowSource:
    if not isinstance(documents, Split) or documents.manifest.fields != FIELDS:
        raise UserError(
            f"the task 'triplets' needs a folder prepared with the fields {', '.join(FIELDS)}, and "
            f"config.data.source={data.source} is not one"
        )
    return Triplets(documents, Shuffle(documents, config.seed, data.shuffle), config.context, eos=tokenizer.eos)


_PACKINGS: dict[str, type[Concatenated] | type[FirstFit]] = {"concat": Concatenated, "first_fit": FirstFit}
_TASKS: dict[str, Callable[[Documents, DataConfig, Config, Tokenizer], RowSource]] = {
    "packed": lambda documents, data, config, tokenizer: _packed(documents, data, config),
    "masked": _masked,
    "passkey": _planted,
    "triplets": _triplets,
}


def _texts(documents: Documents) -> Iterator[np.ndarray]:
    total = int(documents.shards[-1])
    for first in range(0, total, 1024):
        yield from documents.read(np.arange(first, min(first + 1024, total)))
