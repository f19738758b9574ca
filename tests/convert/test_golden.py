"""Models of transformers', loaded from folders as it writes them, against the logits that it computes with them."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from convert.make_golden import FOLDER, VOCAB, draw

from bam_jax import load

numpy = pytest.importorskip("safetensors.numpy")
safetensors = pytest.importorskip("safetensors")

GOLDEN = sorted(FOLDER.glob("*.safetensors"))


def written(path: Path, folder: Path) -> Path:
    """The folder of a golden model, without a tokenizer."""
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    folder.mkdir()
    (folder / "config.json").write_text(metadata["config"])
    numpy.save_file(draw(json.loads(metadata["shapes"])), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_logits_are_those_of_transformers(path, tmp_path):
    expected = numpy.load_file(path)
    model = load(written(path, tmp_path / "theirs"), overrides={"data.tokenizer": "char"})
    logits = model.decoder(jnp.asarray(expected["ids"])[None])[0][0]
    np.testing.assert_allclose(logits[:, :VOCAB], expected["logits"], atol=1e-4)  # Gemma's rows are filled up
