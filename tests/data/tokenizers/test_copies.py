"""The tokenizer travels with a run: its own copy is used, and no other is taken for it."""

import json
import re
import shutil

import pytest

from bam_jax import config as configs
from bam_jax.data import prepare
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.copies import load_tokenizer, save_tokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.evals import measuring
from bam_jax.evals.perplexity import Perplexity
from bam_jax.models import counts
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop

TALE = "a tale of some length, told again and again, in 1984 and in 1985 too; "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a text, a BPE of it, and a run of one step that names the BPE by a relative path."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text.txt").write_text(TALE * 100)
    (folder / "bpe.json").write_text(train_bpe([TALE * 2], 280))
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
    data = {"source": str(folder / "text.txt"), "tokenizer": "bpe:bpe.json"}
    tree = {"encoding": "nope", "steps": 1, "batch": 2, "context": 16, "model": sizes, "data": data}
    config = configs.from_dict(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        loop.fit(config, "run")
    return folder, config


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run alone in another folder, from where it is used."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained[0] / "run", tmp_path / "elsewhere" / "run")


def test_a_run_is_evaluated_with_its_own_copy(trained, run):
    (record,) = measuring.evaluate(run, Perplexity((16,), tokens=64))
    assert record["tokenizer"] == tokenizer(f"bpe:{trained[0] / 'bpe.json'}").hash
    assert json.loads((run / "results.jsonl").read_text())["tokenizer"] == record["tokenizer"]
    assert checkpoint.restore_model(run)[1].spec == f"bpe:{run / 'tokenizer'}"


def test_a_name_without_a_path_is_the_tokenizer_of_the_prepared_folder(trained, tmp_path, monkeypatch):
    """Rows of experiments name gpt2 or bert; the folder was prepared with gpt2:FOLDER, which may be gone since."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(trained[0] / "bpe.json", "bpe.json")
    prepare.main([f"--source={trained[0] / 'text.txt'}", "--tokenizer=bpe:bpe.json", "--out=prepared", "--workers=0"])
    (tmp_path / "bpe.json").unlink()
    changes = {"data.source": "prepared", "data.tokenizer": "bpe", "data.held_out_source": str(trained[0] / "text.txt")}
    config = configs.override(trained[1], changes)
    named = configs.override(trained[1], {"data.tokenizer": f"bpe:{trained[0] / 'bpe.json'}"})
    assert counts.parameters(config) == counts.parameters(named)
    loop.fit(config, "run")
    shutil.rmtree("prepared/tokenizer")
    (record,) = measuring.evaluate("run", Perplexity((16,), tokens=64))
    assert record["tokenizer"] == tokenizer(f"bpe:{trained[0] / 'bpe.json'}").hash


def test_a_run_is_not_resumed_with_another_tokenizer(trained, run):
    (run.parents[1] / "bpe.json").write_text(train_bpe([TALE * 2], 270))
    hashes = tokenizer(f"bpe:{trained[0] / 'bpe.json'}").hash, tokenizer("bpe:bpe.json").hash
    with pytest.raises(UserError) as error:
        loop.fit(trained[1], run)
    for name in (str(run), *hashes, "'bpe:bpe.json'"):
        assert name in str(error.value)
    shutil.copy(trained[0] / "bpe.json", "bpe.json")
    assert len(loop.fit(trained[1], run)) == 1


def test_an_override_of_the_tokenizer_is_refused_unless_it_is_the_same(trained, run):
    shutil.copy(trained[0] / "bpe.json", "same.json")
    same = checkpoint.restore_model(run, overrides={"data.tokenizer": "bpe:same.json"})[1]
    assert same.spec == "bpe:same.json"
    with pytest.raises(UserError, match=r"run was made with the tokenizer bpe, and the configuration names byte"):
        checkpoint.restore_model(run, overrides={"data.tokenizer": "byte"})


RECORD = {"eval": "perplexity", "tokenizer": "0123456789abcdef", "length": 16, "n": 4, "step": 1, "overrides": {}}
RECORD |= {"unit": "perplexity", "value": 2.0, "window": 16, "windows": [0.7]}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tokenizer/tokenizer.json", train_bpe([TALE], 270), "was made with a tokenizer of hash"),
        ("results.jsonl", json.dumps(RECORD) + "\n", "results.jsonl was made with"),
    ],
)
def test_files_of_another_are_noticed(run, name, text, says):
    (run / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(says)):
        measuring.evaluate(run, Perplexity((16,), tokens=64))


def test_runs_from_before_load_and_are_marked_when_resumed(trained, run):
    shutil.rmtree(run / "tokenizer")
    with pytest.raises(UserError, match="finds no file at bpe.json"):  # only its name is known
        checkpoint.restore_model(run)
    shutil.copy(trained[0] / "bpe.json", "bpe.json")
    assert checkpoint.restore_model(run)[1].spec == "bpe:bpe.json"
    assert not (run / "tokenizer").exists()
    loop.fit(trained[1], run)
    assert {path.name for path in (run / "tokenizer").iterdir()} == {"identity.json", "tokenizer.json"}


def test_a_torn_copy_is_made_again(tmp_path, trained):
    made = tokenizer(f"bpe:{trained[0] / 'bpe.json'}")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")  # killed before who it is was written
    save_tokenizer(made, tmp_path)
    assert load_tokenizer(tmp_path, made.spec).hash == made.hash


def test_one_that_comes_with_the_code_is_known_by_its_hash(tmp_path):
    save_tokenizer(tokenizer("byte"), tmp_path)
    assert load_tokenizer(tmp_path, "byte").name == "byte"
    assert [path.name for path in (tmp_path / "tokenizer").iterdir()] == ["identity.json"]
    with pytest.raises(UserError, match="made with the tokenizer byte, .* names char"):
        load_tokenizer(tmp_path, "char")
    for stray in (".identity.json.4711", ".DS_Store"):
        (tmp_path / "tokenizer" / stray).touch()
    assert load_tokenizer(tmp_path, "byte").name == "byte"


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("bpe", {"identity.json": "{"}, "identity.json is not JSON"),
        ("gpt2", {"vocab.bpe": "#", "encoder.json": "[" * 20_000 + "]" * 20_000}, "are not GPT-2's vocabulary"),
        (
            "bpe",
            {"tokenizer.json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'},
            "no token for the digit 0",
        ),
        ("../x", {"tokenizer.json": "{}"}, "made with the tokenizer ../x"),
        (["bpe"], {"tokenizer.json": "{}"}, "identity.json has no text in the field 'name'"),
    ],
)
def test_a_strangers_files_are_data(tmp_path, name, files, says):
    identity = {"spec": f"{name}:x", "name": name, "hash": "0"}
    (tmp_path / "tokenizer").mkdir()
    for each, text in ({"identity.json": json.dumps(identity)} | files).items():
        (tmp_path / "tokenizer" / each).write_text(text)
    with pytest.raises(UserError, match=re.escape(says)):
        load_tokenizer(tmp_path, "gpt2" if name == "gpt2" else "bpe:x")


@pytest.mark.parametrize("place", ["tokenizer", "tokenizer/tokenizer.json", "tokenizer/identity.json"])
def test_a_copy_is_neither_written_nor_read_through_a_link(trained, tmp_path, place):
    made, elsewhere = tokenizer(f"bpe:{trained[0] / 'bpe.json'}"), tmp_path / "elsewhere"
    (tmp_path / "run" / place).parent.mkdir(parents=True)
    (tmp_path / "run" / place).symlink_to(elsewhere)
    for exists in (False, True):
        if exists:
            elsewhere.mkdir() if place == "tokenizer" else elsewhere.write_text("mine")
        for use in (lambda: save_tokenizer(made, tmp_path / "run"), lambda: load_tokenizer(tmp_path / "run", "bpe:x")):
            with pytest.raises(UserError, match=f"{place} is a link"):
                use()
    assert not any(elsewhere.iterdir()) if place == "tokenizer" else elsewhere.read_text() == "mine"
