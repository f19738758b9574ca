"""Retrieval as an evaluation: its records, what is not measured again, and a column of a table."""

import shutil

import pytest

from bam_jax import evaluate
from bam_jax.evals import measuring, records
from bam_jax.evals import retrieval as evaluation
from bam_jax.evals.retrieval import Retrieval
from bam_jax.experiments import costs
from bam_jax.retrieval.problem import load
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder


@pytest.fixture(autouse=True)
def fresh(encoder_run):
    (encoder_run / records.RESULTS).unlink(missing_ok=True)


def asked(files, *lengths, **others):
    return Retrieval(lengths, corpus=str(files[0]), queries=str(files[1]), **others)


def test_records_say_all_that_tables_need(encoder_run, retrieval_files):
    found = measuring.evaluate(encoder_run, asked(retrieval_files, 48, 16), progress=False)
    assert [(each["length"], each["n"], each["of"], each["documents"]) for each in found] == [
        (16, 3, 3, 10),
        (48, 3, 3, 10),
    ]
    for each in found:
        assert each["unit"] == "nDCG@10" and 0 < each["mrr_10"] <= each["value"] <= each["recall_100"] == 1
    assert not (encoder_run / evaluation.EMBEDDINGS).exists(), "nothing is left behind"
    config = run_folder.read_config(encoder_run)
    assert all(asked(retrieval_files, 16).asks(each, config, {}) for each in found)
    assert not asked(retrieval_files, 16, scorer="bm25").asks(found[0], config, {})
    assert [asked(retrieval_files, 16, samples=n).wanted(16, found[0]) for n in (9, 2)] == [3, 2]


def test_what_is_there_is_not_measured_again(encoder_run, retrieval_files, monkeypatch):
    measuring.evaluate(encoder_run, asked(retrieval_files, 16, samples=2, scorer="tokens"), progress=False)
    calls = []
    inner = evaluation.rank
    monkeypatch.setattr(evaluation, "rank", lambda *a, **k: calls.append(a[3]) or inner(*a, **k))
    found = measuring.evaluate(encoder_run, asked(retrieval_files, 16, samples=2, scorer="tokens"), progress=False)
    assert len(found) == 1 and not calls
    found = measuring.evaluate(encoder_run, asked(retrieval_files, 16, scorer="tokens"), progress=False)
    assert [(each["first"], each["n"]) for each in found] == [(0, 2), (2, 1)] and calls == [[16]]
    (whole,) = measuring.evaluate(encoder_run, asked(retrieval_files, 16, scorer="bm25"), progress=False)
    assert whole["n"] == 3


def test_embeddings_stay_until_the_records_are_written(encoder_run, retrieval_files, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measuring.jsonl, "append", fail)
        with pytest.raises(KeyboardInterrupt):
            measuring.evaluate(encoder_run, asked(retrieval_files, 16), progress=False)
    assert list((encoder_run / evaluation.EMBEDDINGS).rglob("*.npy"))
    assert measuring.evaluate(encoder_run, asked(retrieval_files, 16), progress=False)
    assert not (encoder_run / evaluation.EMBEDDINGS).exists()


def test_embeddings_of_others_stay(encoder_run, retrieval_files, tmp_path):
    root, problem = encoder_run / evaluation.EMBEDDINGS, load(*map(str, retrieval_files))
    others = [root / "another problem" / "a-16", root / problem.hash / "b-16"]
    for folder in others:
        folder.mkdir(parents=True)
    assert measuring.evaluate(encoder_run, asked(retrieval_files, 16), progress=False)
    assert sorted(path for path in root.rglob("*") if path.name.endswith("-16")) == sorted(others)
    shutil.rmtree(root)


def test_other_judgements_are_another_cell(encoder_run, retrieval_files, tmp_path):
    judged = tmp_path / "judged.tsv"
    judged.write_text("query-id\tcorpus-id\tscore\nq0\td3\t1\n")
    config = run_folder.read_config(encoder_run)
    plain, other = (asked(retrieval_files, 16, scorer="bm25", **each) for each in ({}, {"qrels": str(judged)}))
    found = [measuring.evaluate(encoder_run, each, progress=False)[0] for each in (plain, other)]
    counts = [[each.asks(record, config, {}) for record in found] for each in (plain, other)]
    assert counts == [[True, False], [False, True]]


def test_the_command_has_its_options(encoder_run, retrieval_files, command):
    asked_for = asked(retrieval_files, 16, scorer="bm25").arguments()
    status, out, _ = command(evaluate.main, f"--run={encoder_run}", *asked_for, "--no-progress")
    assert not status and "bm25 nDCG@10 at 16 tokens: 1.000 (3 queries)" in out


def test_costs_count_what_the_model_reads(encoder_run, retrieval_files):
    config = run_folder.read_config(encoder_run)
    one, two = (costs.evaluating(config, [asked(retrieval_files, 16, documents=n, samples=1)]) for n in (1, 3))
    assert two == 2 * one > 0
    assert costs.evaluating(config, [asked(retrieval_files, 16, scorer="bm25")]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scorer": "bm52"}, "unknown --scorer='bm52'; did you mean 'bm25'"),
        ({"corpus": None}, "--corpus is missing"),
        ({"queries": None}, "--queries is missing"),
        ({"documents": 9}, "has 10 documents, more than --documents=9"),
    ],
)
def test_mistakes(changed, message, encoder_run, retrieval_files):
    with pytest.raises(UserError, match=message):
        given = {"corpus": str(retrieval_files[0]), "queries": str(retrieval_files[1])} | changed
        measuring.evaluate(encoder_run, Retrieval((16,), **given), progress=False)
    assert not (encoder_run / records.RESULTS).exists()
