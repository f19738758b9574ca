"""The loader's speed is measured on what it really gives."""

import numpy as np
import pytest

from bam_jax.config import Config, DataConfig
from bam_jax.data.prepared import shards
from bam_jax.system.errors import UserError
from benchmarks.loader_speed import NEED, main, make_up, measure


def test_made_up_documents_are_a_prepared_folder(tmp_path):
    make_up(tmp_path, 300_000, documents=200)
    documents = shards.open_split(tmp_path, "train")
    assert len(documents.shards) == 4 and 150_000 < documents.lengths.sum() < 600_000
    assert 500 < documents.lengths.mean() < 900
    shards.verify(tmp_path)


@pytest.mark.parametrize(("packing", "least"), [("concat", 1.0), ("first_fit", 0.9)])
def test_pads_do_not_count(tmp_path, packing, least, monkeypatch):
    make_up(tmp_path, 20_000)
    data = DataConfig(source=str(tmp_path), tokenizer="byte", packing=packing)
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0, 7.0])  # two batches in five seconds
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    record = measure(Config(data=data, context=32, batch=8), seconds=5.0)
    assert record["opening"] == 1.0 and least <= record["fill"] <= 1
    assert record["tokens_per_second"] == pytest.approx(2 * 8 * 32 * record["fill"] / 5)


def test_the_command(tmp_path, capsys):
    make_up(tmp_path, 20_000)
    main([f"--source={tmp_path}", "--workers=0", "--seconds=0.05", "--context=32", "--batch=8"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["concat", "0"], ["first_fit", "0"]]
    assert lines[3].endswith("1,094,856 tokens/s") and np.isclose(NEED, 1_094_856, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workers=two"], "--workers=two must be numbers"),
        (["--tokens=0"], "--tokens=0"),
        (["--source=/nowhere"], "/nowhere holds no manifest.json"),
    ],
)
def test_bad_input(arguments, says):
    with pytest.raises(UserError, match=says):
        main(arguments)
