"""Documents that the tests of packing share."""

import itertools

import numpy as np
import pytest

from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import Manifest
from bam_jax.data.tokenizers import tokenizer


class Listed:
    """Documents of given lengths, shard by shard, in which every token has its own id, from 1."""

    def __init__(self, shards):
        lengths = [length for shard in shards for length in shard]
        stops = np.cumsum([0, *lengths])
        self.texts = [np.arange(a, b, dtype=np.int32) + 1 for a, b in itertools.pairwise(stops.tolist())]
        self.lengths = np.array(lengths, np.int32)
        self.shards = np.cumsum([0, *map(len, shards)])
        self.owner = np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths)])  # token id -> document
        self.asked = []

    def read(self, numbers):
        self.asked += numbers.tolist()
        return [self.texts[number] for number in numbers.tolist()]


class Endless:
    """As many documents as one likes, none of which is there before it is asked for."""

    class Lengths:
        def __getitem__(self, part):
            return (np.arange(part.start, part.stop, dtype=np.int64) * 7919 % 1291).astype(np.int32)

    def __init__(self, documents, shards):
        self.lengths = self.Lengths()
        self.shards = np.linspace(0, documents, shards + 1).astype(np.int64)

    def read(self, numbers):
        return [np.full(int(number) * 7919 % 1291, number % 1000, np.int32) for number in numbers]


@pytest.fixture(scope="session")
def listed():
    return Listed


@pytest.fixture(scope="session")
def endless():
    return Endless


def prepare(folder, texts, held_out=(), *, name="byte", fields=("text",)):
    """A prepared folder of texts, given shard by shard."""
    made = tokenizer(name)
    ending = [] if made.eos is None else [made.eos]
    finished = {"train": (), "held_out": ()}
    for split, groups in {"train": texts, "held_out": [held_out]}.items():
        for number, group in enumerate(groups):
            writer = shards.ShardWriter(folder, split, finished[split], number, "<u2")
            for text in group:
                writer.append(np.concatenate([made.encode(text), ending]).astype(np.int64))
            finished[split] = (*finished[split], writer.close())
        shards.lengths_path(folder, split).touch()  # a split without documents has lengths all the same
    Manifest({"source": "x"}, fields, made.identity(), "<u2", finished, {}, None).write(folder)
    return str(folder)


@pytest.fixture(scope="session")
def prepared():
    return prepare
