"""Shards give back the documents that were written, and say so when they cannot."""

import contextlib
import copy
import dataclasses
import functools
import json
import operator
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bam_jax.data.prepared import shards
from bam_jax.data.prepared.manifest import is_prepared, read_manifest
from bam_jax.system.errors import UserError


@pytest.fixture(scope="session")
def write(write_shards):
    def write(folder, lengths, *, size=1000, seed=0, done=True):
        """A prepared folder of random ids, `lengths` of each train shard's documents; its manifest and its documents."""
        rng = np.random.default_rng(seed)
        documents = [[rng.integers(0, size, length) for length in shard] for shard in lengths]
        tokenizer = {"spec": "byte", "name": "byte", "hash": "0" * 16, "size": size, "eos": None}
        manifest = write_shards(folder, documents, [[]], tokenizer, next=None if done else (3, 5))
        return manifest, [ids for shard in documents for ids in shard]

    return write


@settings(max_examples=25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), max_size=6), max_size=4),
    size=st.sampled_from([300, 2**16, 2**16 + 1, 2**31 - 1]),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read_in_any_order(write, tmp_path_factory, lengths, size, seed):
    folder = tmp_path_factory.mktemp("prepared")
    manifest, documents = write(folder, lengths, size=size, seed=seed)
    split = shards.open_split(folder, "train")
    assert read_manifest(folder) == manifest
    assert len(split) == len(documents) == manifest.documents("train")
    assert manifest.tokens("train") == sum(map(len, documents))
    np.testing.assert_array_equal(split.lengths, np.array([len(ids) for ids in documents], np.int32), strict=True)
    assert split.shards.tolist() == np.cumsum([0, *map(len, lengths)]).tolist()
    numbers = np.random.default_rng(seed).integers(0, max(len(documents), 1), 2 * len(documents))
    assert len(pickle.dumps(split)) < 1000, "it travels as its path"
    for reader in (split, pickle.loads(pickle.dumps(split))):
        for number, ids in zip(numbers, reader.read(numbers), strict=True):
            np.testing.assert_array_equal(ids, documents[number].astype(np.int32), strict=True)
    assert shards.open_split(folder, "held_out").read(np.array([], int)) == []
    shards.verify(folder)


@pytest.mark.parametrize("name", ["train-00000.array_record", "train.lengths"])
@pytest.mark.parametrize("how", ["cut", "longer", "missing", "link"])
def test_files_of_another_size_or_place_are_seen_on_opening(write, tmp_path, name, how):
    write(tmp_path, [[20, 30]])
    path = (tmp_path / name).rename(tmp_path / "elsewhere")
    if how == "link":
        (tmp_path / name).symlink_to(path)
    elif how != "missing":
        (tmp_path / name).write_bytes(path.read_bytes()[:-4] if how == "cut" else path.read_bytes() + b"1234")
    for use in (lambda: shards.open_split(tmp_path, "train"), lambda: shards.verify(tmp_path)):
        with pytest.raises(UserError, match=f"{re.escape(name)} is (damaged|missing|a link)"):
            use()


def test_records_and_lengths_that_are_not_what_they_should_be(write, tmp_path):
    manifest, documents = write(tmp_path, [[20, 30]])
    path = tmp_path / "train-00000.array_record"

    def refused(says, lengths=(20, 30)):
        np.array(lengths, "<i4").tofile(tmp_path / "train.lengths")
        with pytest.raises(UserError, match=says):
            shards.open_split(tmp_path, "train").read(np.array([1]))

    for lengths in ([-20, 70], [50, 2**31 - 1], [25, 24]):
        refused("train.lengths is damaged .*not those of train-00000.array_record", lengths)
    refused(r"train-00000.array_record is damaged \(a document of 60 bytes has 20 tokens", [30, 20])
    dataclasses.replace(manifest, tokenizer=manifest.tokenizer | {"size": 9}).write(tmp_path)
    refused(r"train-00000.array_record is damaged \(it has the id \d+, which its tokenizer")
    text = documents[1].astype("<u2").tobytes()
    path.write_bytes(path.read_bytes().replace(text, bytes([text[0] ^ 16]) + text[1:]))
    refused("train-00000.array_record is damaged .*[Hh]ash")


@pytest.mark.parametrize(
    "name", [".train-00000.array_record", "train-00000.array_record", "train.lengths", "manifest.json"]
)
def test_nothing_is_written_through_a_link(write, tmp_path, name):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).symlink_to(tmp_path / "victim")
    with contextlib.suppress(UserError):
        write(tmp_path / "folder", [[3, 4]])
    assert (tmp_path / "victim").read_text() == "mine"


def test_an_unfinished_folder_is_not_read_but_can_be_verified(write, tmp_path):
    manifest, _ = write(tmp_path, [[20, 30]], done=False)
    assert is_prepared(tmp_path) and read_manifest(tmp_path) == manifest
    shards.verify(tmp_path)
    with pytest.raises(UserError, match="is not complete; run its prepare command again"):
        shards.open_split(tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "prepared", "says"),
    [
        (None, False, "holds no manifest.json; prepare"),
        ("[]", False, "is another program's"),
        ('{"format": "bam_jax.data.shards", "version": 2}', True, "is of version 2 of the format"),
    ],
)
def test_manifests_that_are_not_to_be_read(tmp_path, content, prepared, says):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    assert is_prepared(tmp_path) is prepared
    with pytest.raises(UserError, match=re.escape(says)):
        shards.open_split(tmp_path, "train")


def fields(value, path=()):
    """The path of every field of a JSON value; what is in the recipe is free."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else []):
        if isinstance(key, str):
            yield (*path, key)
        if key != "recipe":
            yield from fields(inner, (*path, key))


def test_every_field_of_a_manifest_is_there_and_of_its_kind_and_no_other(write, tmp_path):
    write(tmp_path, [[20, 30], [7]])
    path = tmp_path / "manifest.json"
    whole = json.loads(path.read_text())
    assert whole.pop("crc32")
    wrongs = ("missing", True, -1, 1.5, [["x"]], {"x": None}, None)
    changes = [(*where, wrong) for where in fields(whole) for wrong in wrongs]
    others = [("ot\nher",), ("tokenizer", "ot\nher"), ("shards", "ot\nher"), ("shards", "train", 0, "ot\nher")]
    changes += [("shards", "train", 1, "name", "../x"), ("fields", ["a", "b"]), *((*where, 1) for where in others)]
    for *above, name, wrong in changes:
        if (name == "recipe" and isinstance(wrong, dict)) or (name in ("next", "eos") and wrong is None):
            continue
        record = copy.deepcopy(whole)
        inner = functools.reduce(operator.getitem, above, record)
        inner[name] = wrong
        if wrong == "missing":
            del inner[name]
        path.write_text(json.dumps(record))
        with pytest.raises(UserError, match="manifest.json.*" + name.partition("\n")[0]) as error:
            read_manifest(tmp_path)
        assert "\n" not in str(error.value)
