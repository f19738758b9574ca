"""Documents that the tests share."""

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


@pytest.fixture(scope="session")
def listed():
    return Listed


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


@pytest.fixture(scope="session")
def decoded():
    """Reads the texts of a split of a folder that is prepared in bytes, without their end tokens."""

    def read(folder, split="train"):
        documents = shards.open_split(folder, split)
        ids = documents.read(np.arange(len(documents)))
        assert all(each[-1] == 256 for each in ids)
        return [bytes(each[:-1].astype(np.uint8)).decode("utf-8", "surrogatepass") for each in ids]

    return read
