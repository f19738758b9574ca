"""A model in Hugging Face's cache, which is read without a network, and what is said where there is none."""

import json
import sys

import numpy as np
import pytest
from convert.test_gpt2 import DESCRIBED, TALE, V, drawn

from bam_jax import load
from bam_jax.convert import __main__ as convert
from bam_jax.convert import hub
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

numpy = pytest.importorskip("safetensors.numpy")
library = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
errors = pytest.importorskip("huggingface_hub.errors")

COMMIT = "0123456789" * 4


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of a machine that is offline."""
    for name, value in (("HF_HUB_CACHE", str(tmp_path)), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(constants, name, value)
    return tmp_path


@pytest.fixture
def repository(cache, rng):
    """The folder of someone/tiny in the cache, whose files are links, as there."""
    folder, blobs = cache / "models--someone--tiny" / "snapshots" / COMMIT, cache / "models--someone--tiny" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMIT)
    (blobs / "tokenizer.json").write_text(train_bpe(TALE, V))
    (blobs / "config.json").write_text(json.dumps(DESCRIBED))
    numpy.save_file(drawn(rng), blobs / "model.safetensors")
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def test_a_cached_model_is_loaded_as_its_folder_is(repository, tmp_path, command, refused):
    loaded = load("hf:someone/tiny")
    text = "some words"
    logits = loaded.logits(text)
    assert logits.shape == (len(loaded.ids(text)), loaded.tokenizer.size) and loaded.config.encoding == "learned"
    np.testing.assert_array_equal(load(repository).logits(text), logits)
    assert len(loaded.generate(text, 2, temperature=0)) and "LanguageModel(learned" in repr(loaded)
    with pytest.raises(UserError, match="no checkpoint of step 3; leave step out"):
        load(repository, step=3)
    run = tmp_path / "run"
    assert not command(convert.main, "--source=hf:someone/tiny", f"--run={run}")[0]
    np.testing.assert_array_equal(load(run).logits(text), logits)
    assert run_folder.read_config(run).model == loaded.config.model


@pytest.mark.parametrize("name", ["hf:someone/else", "hf:one/two/three", "hf:"])
def test_what_is_not_in_the_cache_is_one_line(cache, refused, name):
    said = refused(convert.main, f"--source={name}", f"--run={cache / 'run'}")
    assert f"error: {name} cannot be fetched" in said and "give a folder" in said


@pytest.mark.parametrize(
    ("error", "says"),
    [("RepositoryNotFoundError", "is not on the Hugging Face hub"), ("GatedRepoError", "accepted its terms")],
)
def test_what_the_hub_refuses_is_one_line(error, says, monkeypatch):
    def refuse(*_, **__):
        kind = getattr(errors, error)
        raise kind.__new__(kind)

    monkeypatch.setattr(library, "snapshot_download", refuse)
    with pytest.raises(UserError, match=f"hf:someone/tiny .*{says}"):
        hub.find("hf:someone/tiny")


def test_without_the_library_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf:a/b needs the package huggingface_hub: pip install .*\[hub\]"):
        load("hf:a/b")
