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


@pytest.fixture(scope="session")
def write_shards():
    """Writes a prepared folder of ids, given shard by shard."""

    def write(folder, train, held_out, tokenizer, fields=("text",), next=None):
        dtype, finished = "<u2" if tokenizer["size"] <= 2**16 else "<u4", {"train": (), "held_out": ()}
        for split, documents in {"train": train, "held_out": held_out}.items():
            for number, shard in enumerate(documents):
                writer = shards.ShardWriter(folder, split, finished[split], number, dtype)
                for ids in shard:
                    writer.append(ids)
                finished[split] = (*finished[split], writer.close())
            shards.lengths_path(folder, split).touch()  # a split without documents has lengths all the same
        manifest = Manifest({"source": "x"}, fields, tokenizer, dtype, finished, {}, next)
        manifest.write(folder)
        return manifest

    return write


@pytest.fixture(scope="session")
def prepared(write_shards):
    """Makes a prepared folder of texts, given shard by shard."""

    def prepare(folder, texts, held_out=(), *, name="byte", fields=("text",)):
        made = tokenizer(name)
        ending = [] if made.eos is None else [made.eos]
        encode = lambda text: np.concatenate([made.encode(text), ending]).astype(np.int64)
        write_shards(
            folder,
            *([[*map(encode, shard)] for shard in split] for split in (texts, [held_out])),
            made.identity(),
            fields,
        )
        return str(folder)

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
