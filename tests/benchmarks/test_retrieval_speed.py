"""The benchmark of retrieval at a size that takes a moment."""

import numpy as np
import pytest

from bam_jax.training import run_folder
from benchmarks import retrieval_speed


@pytest.mark.full
def test_it_says_what_all_of_mldr_would_take(encoder_run, tmp_path, capsys, refused):
    asked = [
        f"--run={encoder_run}",
        f"--out={tmp_path}",
        "--documents=20",
        "--queries=3",
        "--length=32",
        "--no-progress",
    ]
    retrieval_speed.main(asked)
    said = capsys.readouterr().out
    assert said.startswith("20 documents cut at 32 tokens, 3 queries:") and "200,000 documents cut at 16384" in said
    assert "--documents must be" in refused(retrieval_speed.main, *asked, "--queries=21")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_file_of_somebody_elses_stays(encoder_run, tmp_path, refused, name):
    for mine in ("corpus.jsonl", "queries.jsonl") if name == "corpus.jsonl" else (name,):  # or both
        (tmp_path / mine).write_text('{"docid": "mine", "text": "x"}\n')
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    asked = (f"--run={encoder_run}", f"--out={tmp_path}", "--documents=2", "--queries=1", "--no-progress")
    said = refused(retrieval_speed.main, *asked)
    assert f"{name} is there, and this command did not write it; give another" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == before


def test_work_grows_with_tokens_and_their_pairs(encoder_run):
    config = run_folder.read_config(encoder_run)
    counts = np.array([10, 1000])
    short, long = (retrieval_speed.work(config.model, 5000, counts, length, 200) for length in (10, 1000))
    assert short.tokens == 2000 and long.tokens == 101_000
    pairs = 4 * config.model.layers * config.model.width
    assert short.operations == pytest.approx(2000 * (2 * 5000 + pairs * 10))
    assert long.operations == pytest.approx(101_000 * 2 * 5000 + pairs * 100 * (10**2 + 1000**2))
