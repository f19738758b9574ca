"""An iterator over batches, whose state is the number of the next batch, and worker processes that make batches ahead."""

import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bam_jax.data.packing.rows import Batch, RowSource
from bam_jax.system import regular, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.parent import end_with_parent

if TYPE_CHECKING:
    import grain

STATE = "process_0-of-1.json"  # the iterator's file in a checkpoint, for any number of hosts; named as in grain


class Batches(Iterator[Batch]):
    """An iterator over batches of rows. Its state is the number of the next batch and a checksum of the documents.

    It can therefore resume with any number of hosts and worker processes. The first batch starts the workers; `close` or a new
    state stops them. `size` is the number of rows of all hosts together. Only the host that `saves` writes the state.
    """

    def __init__(
        self, rows: RowSource, size: int, data: int, *, host: int, hosts: int, workers: int, saves: bool
    ) -> None:
        share = size // hosts
        self.data = data
        self._source = _Batches(rows, size, np.arange(host * share, (host + 1) * share))
        self._saves = saves
        self._workers = workers
        self._number = 0
        self._ahead: grain.DatasetIterator[Batch] | None = None
        self._done = False

    def __next__(self) -> Batch:
        if self._done:
            raise ValueError("these batches are closed; open them again")
        if self._workers and self._ahead is None:
            self._ahead = _make_ahead(dataclasses.replace(self._source, first=self._number), self._workers)
        batch = self._source[self._number] if self._ahead is None else next(self._ahead)
        self._number += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"next_index": self._number, "data": self.data}

    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from the state of an iterator, which may have had any number of hosts and workers."""
        known = isinstance(state, dict) and {"next_index"} <= state.keys() <= {"next_index", "data"}
        number = state["next_index"] if known else None
        if type(number) is not int or number < 0:
            raise UserError(
                "the state of the loader is not the number of its next batch; resume from another checkpoint"
            )
        if "data" in state and state["data"] != self.data:
            raise UserError(
                "config.data names other documents than this run was trained on so far: files have come, gone or changed, or "
                "were prepared anew; put them back, or give another --workdir and this run as --config.start"
            )
        self._stop_workers()
        self._number = number

    # orbax awaits these two, and then the awaitables that they return.
    async def save(self, directory: Any) -> Awaitable[None]:
        return self._write(directory, json.dumps(self.get_state()))

    async def load(self, directory: Any) -> Awaitable[None]:
        return self._read(directory)

    def close(self) -> None:
        """Stop the worker processes; no more batches can be read."""
        self._stop_workers()
        self._done = True

    async def _write(self, directory: Any, state: str) -> None:
        folder = await directory.await_creation()
        if self._saves:
            await asyncio.to_thread((folder / STATE).write_text, state)

    async def _read(self, directory: Any) -> None:
        path = directory / STATE
        self.set_state(typed_json.parse(await asyncio.to_thread(regular.read, path), str(path)))

    def _stop_workers(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Batches:
    """The host's batches from `first` on, by index, as a source for grain; it is pickled for worker processes."""

    rows: RowSource
    size: int  # rows of a batch of all hosts together
    mine: np.ndarray  # the rows of this host
    first: int = 0

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Batch:
        return self.rows.take((self.first + index) * self.size + self.mine)


def _make_ahead(source: _Batches, workers: int) -> "grain.DatasetIterator[Batch]":
    grain = import_extra("grain", "config.data.workers", "train")
    from absl import flags

    if not flags.FLAGS.is_parsed():  # grain reads its options there; only a program that uses absl has parsed them
        flags.FLAGS.mark_as_parsed()
    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # a worker has nothing to wait for
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    # Use pipes: arrays in shared memory last only as long as their files, and a killed process leaves those files behind.
    piped = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    dataset = grain.experimental.WithOptionsIterDataset(grain.MapDataset.source(source).to_iter_dataset(here), piped)
    return iter(dataset.mp_prefetch(options, worker_init_fn=_begin_worker))


def _begin_worker(worker: int, workers: int) -> None:
    """End a worker together with its parent, even if the parent is killed. Only the parent handles signals."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a scheduler sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
