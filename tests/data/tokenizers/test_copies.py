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
TEXT = Perplexity((16,), tokens=64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a text, a BPE of it, and a run of one step that names the BPE by a relative path; its configuration."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text.txt").write_text(TALE * 100)
    (folder / "bpe.json").write_text(train_bpe([TALE * 2], 280))
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
    data = {"source": str(folder / "text.txt"), "tokenizer": "bpe:bpe.json"}
    config = configs.from_dict(
        {"encoding": "nope", "steps": 1, "batch": 2, "context": 16, "model": sizes, "data": data}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        loop.fit(config, "run")
    return folder, config


@pytest.fixture
def bpe(trained):
    return tokenizer(f"bpe:{trained[0] / 'bpe.json'}")


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run alone in another folder, from where it is used."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained[0] / "run", tmp_path / "elsewhere" / "run")


def test_a_run_is_evaluated_with_its_own_copy_and_no_other(bpe, run):
    (record,) = measuring.evaluate(run, TEXT)
    assert record["tokenizer"] == bpe.hash == json.loads((run / "results.jsonl").read_text())["tokenizer"]
    assert checkpoint.restore_model(run)[1].spec == f"bpe:{run / 'tokenizer'}"
    shutil.copy(bpe.path, "same.json")
    assert checkpoint.restore_model(run, overrides={"data.tokenizer": "bpe:same.json"})[1].spec == "bpe:same.json"
    with pytest.raises(UserError, match=r"run was made with the tokenizer bpe, and the configuration names byte"):
        checkpoint.restore_model(run, overrides={"data.tokenizer": "byte"})
    (run / "results.jsonl").write_text(json.dumps(record | {"tokenizer": "0123456789abcdef"}) + "\n")
    with pytest.raises(UserError, match="results.jsonl was made with"):
        measuring.evaluate(run, TEXT)
    (run / "tokenizer" / "tokenizer.json").write_text(train_bpe([TALE], 270))
    with pytest.raises(UserError, match="was made with a tokenizer of hash"):
        measuring.evaluate(run, TEXT)


def test_a_name_without_a_path_is_the_tokenizer_of_the_prepared_folder(trained, bpe, tmp_path, monkeypatch):
    """Rows of experiments name gpt2 or bert; the folder was prepared with gpt2:FOLDER, which may be gone since."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(bpe.path, "bpe.json")
    prepare.main([f"--source={trained[0] / 'text.txt'}", "--tokenizer=bpe:bpe.json", "--out=prepared", "--workers=0"])
    (tmp_path / "bpe.json").unlink()
    changes = {"data.source": "prepared", "data.tokenizer": "bpe", "data.held_out_source": str(trained[0] / "text.txt")}
    config = configs.override(trained[1], changes)
    assert counts.parameters(config) == counts.parameters(configs.override(trained[1], {"data.tokenizer": bpe.spec}))
    loop.fit(config, "run")
    shutil.rmtree("prepared/tokenizer")
    assert measuring.evaluate("run", TEXT)[0]["tokenizer"] == bpe.hash


def test_a_run_is_not_resumed_with_another_tokenizer(trained, bpe, run):
    (run.parents[1] / "bpe.json").write_text(train_bpe([TALE * 2], 270))
    other = tokenizer("bpe:bpe.json").hash
    with pytest.raises(UserError, match=f"{run} .*{bpe.hash}.*'bpe:bpe.json' has hash {other}"):
        loop.fit(trained[1], run)
    shutil.copy(bpe.path, "bpe.json")
    assert len(loop.fit(trained[1], run)) == 1


def test_runs_from_before_load_and_are_marked_when_resumed(trained, bpe, run):
    shutil.rmtree(run / "tokenizer")
    with pytest.raises(UserError, match="finds no file at bpe.json"):  # only its name is known
        checkpoint.restore_model(run)
    shutil.copy(bpe.path, "bpe.json")
    assert checkpoint.restore_model(run)[1].spec == "bpe:bpe.json" and not (run / "tokenizer").exists()
    loop.fit(trained[1], run)
    assert {path.name for path in (run / "tokenizer").iterdir()} == {"identity.json", "tokenizer.json"}


def test_a_torn_copy_is_made_again(tmp_path, bpe):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")  # killed before who it is was written
    save_tokenizer(bpe, tmp_path)
    assert load_tokenizer(tmp_path, bpe.spec).hash == bpe.hash


def test_one_that_comes_with_the_code_is_known_by_its_hash(tmp_path):
    save_tokenizer(tokenizer("byte"), tmp_path)
    assert [path.name for path in (tmp_path / "tokenizer").iterdir()] == ["identity.json"]
    with pytest.raises(UserError, match="made with the tokenizer byte, .* names char"):
        load_tokenizer(tmp_path, "char")
    for stray in (".identity.json.4711", ".DS_Store"):
        (tmp_path / "tokenizer" / stray).touch()
    assert load_tokenizer(tmp_path, "byte").name == "byte"


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("bpe", "{", "identity.json is not JSON"),
        ("../x", None, "made with the tokenizer ../x"),
        (["bpe"], None, "identity.json has no text in the field 'name'"),
    ],
)
def test_a_strangers_files_are_data(tmp_path, name, contents, says):
    (tmp_path / "tokenizer").mkdir()
    identity = contents or json.dumps({"spec": f"{name}:x", "name": name, "hash": "0"})
    (tmp_path / "tokenizer" / "identity.json").write_text(identity)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=re.escape(says)):
        load_tokenizer(tmp_path, "bpe:x")


@pytest.mark.parametrize("place", ["tokenizer", "tokenizer/tokenizer.json", "tokenizer/identity.json"])
def test_a_copy_is_neither_written_nor_read_through_a_link(bpe, tmp_path, place):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run" / place).parent.mkdir(parents=True)
    (tmp_path / "run" / place).symlink_to(elsewhere)
    for exists in (False, True):
        if exists:
            elsewhere.mkdir() if place == "tokenizer" else elsewhere.write_text("mine")
        for use in (lambda: save_tokenizer(bpe, tmp_path / "run"), lambda: load_tokenizer(tmp_path / "run", "bpe:x")):
            with pytest.raises(UserError, match=f"{place} is a link"):
                use()
    assert not any(elsewhere.iterdir()) if place == "tokenizer" else elsewhere.read_text() == "mine"
