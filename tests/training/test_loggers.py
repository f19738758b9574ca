import contextlib
import json
import sys

import pytest

from bam_jax import config as configs
from bam_jax import evaluate, train
from bam_jax.config import Config, sections
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError
from bam_jax.training.loggers import LOGGERS, TensorBoard
from bam_jax.training.metrics import metering


def test_tensorboard_gets_the_numbers(tmp_path):
    assert sections.LOGGERS == ("", *LOGGERS)
    with contextlib.closing(TensorBoard(Config(), tmp_path)) as logger:
        logger.write({"step": 1, "loss": 2.5})
    assert list((tmp_path / "tensorboard").glob("events*"))


def written(path):
    """The ids of runs, and the lines of history, in a file of Weights & Biases of less than a block of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, lines, ids = path.read_bytes(), 7, [], []  # after a header, checksum, length and kind of each record
    while place < len(data):
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        record = wandb_internal_pb2.Record.FromString(data[place + 7 : place + 7 + size])
        place += 7 + size
        if record.HasField("run"):
            ids.append(record.run.run_id)
        if record.HasField("history"):
            items = record.history.item
            lines.append({(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in items})
    return ids, lines


@pytest.mark.filterwarnings("default")  # of what wandb imports
def test_weights_and_biases_gets_the_numbers_of_a_run_that_goes_on(tmp_path, monkeypatch, write_tiny):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, config = tmp_path / "a_run", write_tiny(tmp_path, logger="wandb", log_every=1, context=8, batch=2) / "tiny.py"
    for steps in (2, 3):
        train.main([f"--config={config}", f"--config.steps={steps}", "--config.optimizer.warmup=1", f"--workdir={run}"])
    evaluate.main([f"--run={run}", "--eval=perplexity", "--lengths=8,16", "--tokens=32"])
    evaluate.main([f"--run={run}", "--eval=perplexity", "--lengths=8,16", "--tokens=32"])  # measures nothing new
    ids, lines = zip(*map(written, sorted(run.glob("wandb/offline-run-*/*.wandb"))), strict=True)
    assert {name for each in ids for name in each} == {(run / "wandb" / "id").read_text()}
    kept = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = sorted((line["step"], line["loss"]) for each in lines for line in each if "loss" in line)
    assert logged == [(record["step"], record["loss"]) for record in kept] and len(kept) == 3
    (found,) = [line for each in lines for line in each if "perplexity/8 tokens" in line]
    measured = {cell["length"]: cell["value"] for cell in jsonl.read(run / "results.jsonl")}
    assert found["step"] == 3
    assert {n: found[f"perplexity/{n} tokens"] for n in (8, 16)} == pytest.approx(measured)


def test_a_logger_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    says = "config.logger=tensorboard needs the package tensorboardX: pip install .*, or leave config.logger out"
    with pytest.raises(UserError, match=says), metering(Config(logger="tensorboard"), tmp_path, done=0, progress=False):
        pass


def test_the_field_that_was_true_or_false_is_read():
    assert configs.digest(Config(logger="wandb")) == configs.digest(Config())
    old = {name: value for name, value in configs.to_dict(Config()).items() if name != "logger"}
    for value, logger in ((False, ""), (True, "tensorboard")):
        assert configs.from_dict(old | {"tensorboard": value}) == Config(logger=logger)
        assert configs.from_fields({"tensorboard": value}) == Config(logger=logger)
    with pytest.raises(UserError, match="tensorboard"):
        configs.from_dict({"tensorboard": "no"})
