import itertools
import os
import re
import shutil

import pytest

from bam_jax.config import Config, DataConfig, MeshConfig, OptimizerConfig
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.copies import load_tokenizer
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder


def claim(run, config):
    with run_folder.claim(run, config, tokenizer(config.data.tokenizer)):
        pass


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:40], r"is not JSON \(.*\); put it back from a copy, or train into another folder"),
        (lambda text: "[]", r"is no record but \[\]; put it back from a copy, or train into another folder"),
        (lambda text: text.replace('"seed": 3', '"seed": 4'), "was changed after .*, or take its crc32 out .*"),
        (
            lambda text: re.sub(r',\n  "crc32": \d+', "", text.replace('"steps": ', '"steps": -')),
            r": config\.steps=-.*; mend it or train into another folder",
        ),
    ],
)
def test_a_damaged_configuration_has_the_remedy_of_its_damage(tmp_path, damage, says):
    claim(tmp_path / "run", Config(seed=3))
    path = tmp_path / "run" / "config.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError, match=f"^{path} ?{says}$"):
        run_folder.read_config(tmp_path / "run")


@pytest.mark.parametrize(
    "changed", [Config(seed=4), Config(seed=3, encoding_options={"init": "spread"}), Config(seed=3, steps=10**6)]
)
def test_claim_refuses_another_configuration(tmp_path, changed):
    claim(tmp_path / "run", Config(seed=3))
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"config\.(seed=3, not 4|encoding_options|steps=)"):
        claim(tmp_path / "run", changed)
    assert run_folder.read_config(tmp_path / "run") == Config(seed=3)


def test_a_run_goes_on_with_other_values_of_what_changes_no_mathematics(tmp_path):
    run = tmp_path / "a" / "run"
    claim(run, Config())
    before = (run / "config.json").stat()
    (run / "checkpoints" / "10").mkdir(parents=True)
    parts = {"optimizer": OptimizerConfig(accumulate=4), "data": DataConfig(workers=2), "mesh": MeshConfig(data=2)}
    claim(run, Config(logger="wandb", log_every=7, checkpoint_every=7, eval_every=7, **parts))
    assert run_folder.read_config(run) == Config()
    assert (run / "config.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_folder_in_which_nothing_is_trained_takes_a_new_configuration(tmp_path):
    claim(tmp_path / "run", Config())
    (tmp_path / "run" / "metrics.jsonl").touch()
    mended = Config(batch=8, data=DataConfig(tokenizer="byte"))
    assert run_folder.check_configuration(tmp_path / "run", mended, False) == mended.steps
    claim(tmp_path / "run", mended)
    assert run_folder.read_config(tmp_path / "run") == mended
    assert load_tokenizer(tmp_path / "run", "byte").name == "byte"


def test_claim_refuses_what_is_not_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    not_made = "thesis.tex/run cannot be made: .*thesis.tex is a file"
    for run, says in ((".", "not a run"), ("thesis.tex", "not a run"), ("thesis.tex/run", not_made)):
        with pytest.raises(UserError, match=says):
            claim(tmp_path / run, Config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_does_not_lie_among_its_data(tmp_path, monkeypatch):
    texts = tmp_path / "texts"
    texts.mkdir()
    (tmp_path / "link").symlink_to(texts)
    for source, run in itertools.product((texts, tmp_path / "link"), (texts, texts / "runs" / "x")):
        mixture = {"x": {"weight": 1, "held_out_source": str(source)}}
        for data in (DataConfig(source=str(source)), DataConfig(mixture=mixture)):
            with pytest.raises(UserError, match="would be read as data"):
                claim(run, Config(data=data))
    assert not list(texts.iterdir())
    claim(tmp_path / "texts2", Config(data=DataConfig(source=str(texts))))
    monkeypatch.chdir(tmp_path)
    claim("stdlib/run", Config(data=DataConfig(source="stdlib")))  # no folder's name
    named = Config(data=DataConfig(source="wikitext-2"))
    for run in ("corpora/wikitext-2", tmp_path / "corpora" / "wikitext-2" / "run"):
        with pytest.raises(UserError, match="corpora/wikitext-2, where it would be read as data"):
            claim(run, named)
    claim("corpora/run", named)


@pytest.mark.parametrize("name", ["config.json", "tokenizer", "checkpoints", ".lock"])
def test_a_claim_waits_for_no_pipe(tmp_path, name):
    claim(tmp_path / "run", Config())
    path = tmp_path / "run" / name
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"{name} is a pipe"):
        claim(tmp_path / "run", Config())
