"""Models of transformers', loaded from folders as it writes them, against the logits that it computes with them."""

import json
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from convert.make_golden import FOLDER, VOCAB, draw

from bam_jax import load
from bam_jax.convert import __main__ as convert

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


@pytest.mark.parametrize(
    "path",
    [path if path.stem in ("bloom", "gemma3_text") else pytest.param(path, marks=pytest.mark.full) for path in GOLDEN],
    ids=lambda path: path.stem,
)
def test_they_go_back_as_they_came(path, tmp_path):
    folder, run, back = (tmp_path / name for name in ("theirs", "run", "back"))
    described = json.loads((written(path, folder) / "config.json").read_text())
    convert.main([f"--source={folder}", f"--run={run}", "--config.data.tokenizer=char"])
    convert.main([f"--run={run}", f"--export={back}", "--layout=transformers"])
    assert json.loads((back / "config.json").read_text())["model_type"] == described["model_type"]
    ids = jnp.asarray(numpy.load_file(path)["ids"])[None]
    once, again = (load(each).decoder(ids)[0] for each in (run, back))
    np.testing.assert_allclose(once, again, atol=1e-5)


def spoil(name):
    """Changes a good folder, and returns what is then given as --source."""

    def torn(folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])

    def unreadable(folder):
        (folder / "model.safetensors").write_bytes(b"not weights")

    def without_a_part(folder):
        weights = numpy.load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def pickled(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Witness(folder / "ran")))

    def of_gguf(folder):
        writer = pytest.importorskip("gguf").GGUFWriter(folder / "model.gguf", "mamba")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return folder / "model.gguf"

    return {f.__name__: f for f in (torn, unreadable, without_a_part, pickled, of_gguf)}[name]


class Witness:
    """Its pickle makes a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("damage", "changes", "says"),
    [
        ("torn", {}, "model.safetensors is not a whole safetensors file"),
        ("unreadable", {}, "model.safetensors is not a whole safetensors file"),
        ("without_a_part", {}, "names model-00001-of-00002.safetensors, which is not there"),
        ("pickled", {}, "PyTorch"),
        ("of_gguf", {}, "model.gguf holds the architecture 'mamba'; llama is read"),
        (
            "",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_scaling of type 'dynamic'; default, linear, llama3 are",
        ),
        ("", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling of type 'yarn'"),
        ("", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rope_scaling has no '"),
        (
            "",
            {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
            "rope_scaling has factor='2', which must be `float`",
        ),
        (
            "",
            {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 1}},
            "has 'beta' in rope_scaling of type linear",
        ),
        ("", {"vocab_size": 60}, "has 73 tokens and the embedding 60 rows"),
        ("", {"vocab_size": 90}, "makes 'embed/embedding' (80, 32), and the model's is (90, 32)"),
        ("", {"num_hidden_layers": 3}, "the weights lack 'model.layers.2.input_layernorm.weight'"),
        ("", {"model_type": "mamba"}, "holds a model of type 'mamba'"),
        ("", {"attention_bias": True}, "config.json has attention_bias=True, which models here do not have"),
    ],
)
def test_bad_input_is_one_line(damage, changes, says, tmp_path, refused):
    folder = written(FOLDER / "llama.safetensors", tmp_path / "theirs")
    described = json.loads((folder / "config.json").read_text())
    described["rope_scaling"] = described.pop("rope_parameters")
    (folder / "config.json").write_text(json.dumps(described | changes))
    source = spoil(damage)(folder) if damage else None
    said = refused(
        convert.main, f"--source={source or folder}", f"--run={tmp_path / 'run'}", "--config.data.tokenizer=char"
    )
    assert says in said and len(said) < 500
    assert not (tmp_path / "run").exists() and not (folder / "ran").exists()
