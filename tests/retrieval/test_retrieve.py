"""The command from files to a table, its errors, and kills on the way."""

import dataclasses
import json
import shutil

import pytest

from bam_jax import retrieve
from bam_jax.system import jsonl
from bam_jax.training import run_folder


def options(folder, files, out, **others):
    """The command that ranks the files."""
    given = {"run": folder, "corpus": files[0], "queries": files[1], "lengths": "16,48", "out": out} | others
    return [retrieve.main, *(f"--{name}={value}" for name, value in given.items()), "--no-progress"]


def test_a_table_and_run_files_come_of_a_run(encoder_run, retrieval_files, tmp_path, command):
    out = tmp_path / "out"
    asked = options(encoder_run, retrieval_files, out, scorers="encoder,tokens,bm25")
    status, printed, _ = command(*asked)
    assert not status
    assert [line.split("|")[1:3] for line in printed.splitlines()[2:]] == [
        [f" {length} ", f" {scorer} "] for length in (16, 48) for scorer in ("bm25", "encoder", "tokens")
    ]
    found = json.loads((out / "metrics.json").read_text())
    assert (found["queries"], found["documents"], len(found["results"])) == (3, 10, 6)
    words = {each["length"]: each["ndcg_10"]["mean"] for each in found["results"] if each["scorer"] == "bm25"}
    assert words[16] == 1.0, "the documents begin with their queries"
    for each in found["results"]:
        assert 0 <= each["ndcg_10"]["low"] <= each["ndcg_10"]["mean"] <= each["ndcg_10"]["high"] <= 1
        assert each["recall_100"]["mean"] == 1, "the corpus is shorter than 100"
    lines = [line.split() for line in (out / "encoder-16.run").read_text().splitlines()]
    assert len(lines) == 3 * 10 and [line[0] for line in lines[::10]] == ["q0", "q5", "q7"]
    for start in (0, 10, 20):
        block = lines[start : start + 10]
        assert [int(line[3]) for line in block] == list(range(1, 11)) and {line[1] for line in block} == {"Q0"}
        scores = [(float(line[4]), line[2]) for line in block]
        assert scores == sorted(scores, reverse=True) and {line[2] for line in block} == {f"d{n}" for n in range(10)}
    before = {path: path.read_bytes() for path in out.rglob("*.run")}
    assert command(*asked)[1] == printed
    assert {path: path.read_bytes() for path in out.rglob("*.run")} == before


def test_metrics_say_what_was_ranked_and_another_ranking_has_a_folder_of_its_own(
    encoder_run, retrieval_files, tmp_path, command, refused
):
    out = tmp_path / "out"
    asked = options(encoder_run, retrieval_files, out, scorers="bm25", lengths=16)
    assert not command(*asked)[0]
    found = json.loads((out / "metrics.json").read_text())
    assert (found["run"], found["step"], found["overrides"]) == (str(encoder_run), 1, {})
    assert found["corpus"] == str(retrieval_files[0]) and len(found["config"]) == 12
    before = (out / "metrics.json").read_bytes()
    said = refused(*asked, "--config.encoding_options.factor=2")
    assert "of another ranking: of the run's own configuration, not --config.encoding_options.factor=2; give" in said
    with retrieval_files[0].open("a") as file:
        file.write(json.dumps({"docid": "more", "text": "more"}) + "\n")
    assert "other documents, queries or judgements than now" in refused(*asked)
    assert (out / "metrics.json").read_bytes() == before


def test_results_that_are_not_ranked_anew_stay(encoder_run, retrieval_files, tmp_path, command):
    out = tmp_path / "out"
    asked = lambda scorer, length: options(encoder_run, retrieval_files, out, scorers=scorer, lengths=length)
    assert not command(*asked("tokens", 16))[0]
    path = out / "metrics.json"
    first = jsonl.parse(path.read_bytes(), "it")
    (result,) = first["results"]
    older = {name: value for name, value in result.items() if name != "commit"} | {"length": 8}
    path.write_text(json.dumps(first | {"commit": "before", "results": [older, result | {"commit": "x"}]}))
    printed = command(*asked("bm25", 48))[1] + command(*asked("tokens", 16))[1]
    found = json.loads(path.read_text())
    assert [(each["scorer"], each["length"]) for each in found["results"]] == [
        ("tokens", 8),
        ("tokens", 16),
        ("bm25", 48),
    ]
    assert found["results"][:2] == [older | {"commit": "before"}, result] and "commit" not in found
    assert all(f"| {each['length']} | {each['scorer']} |" in printed for each in found["results"])


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("metrics.json", '{"accuracy": 0.5}', "metrics.json has no 'run'"),
        ("encoder-16.run", "mine", "holds something else than rankings: encoder-16.run"),
        ("embeddings/mine.npy", "mine", "holds something else than rankings: embeddings"),
    ],
)
def test_files_of_the_user_stay(name, contents, message, encoder_run, retrieval_files, tmp_path, refused):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text(contents)
    said = refused(*options(encoder_run, retrieval_files, tmp_path / "out", scorers="bm25"))
    assert message in said and said.endswith("; move it, or give another --out\n")
    assert path.read_text() == contents and [each for each in tmp_path.rglob("out/**/*") if each.is_file()] == [path]


def test_embeddings_that_a_kill_left_alone_are_gone_on_with(encoder_run, retrieval_files, tmp_path, command):
    asked = options(encoder_run, retrieval_files, tmp_path / "out")
    assert not command(*asked)[0]
    for path in (tmp_path / "out").glob("*.*"):
        path.unlink()
    (tmp_path / "out" / ".metrics.json.1234").touch()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert not command(*asked)[0] and before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}


@pytest.mark.parametrize("among", ["text", "queries"])
def test_a_folder_among_the_texts_is_refused(among, encoder_run, retrieval_files, tmp_path, refused):
    folder = tmp_path / among
    folder.mkdir()
    for path in retrieval_files:
        if path.stem == among:
            path.rename(folder / path.name)
    run = tmp_path / "run"
    shutil.copytree(encoder_run, run)
    config = run_folder.read_config(run)
    data = dataclasses.replace(config.data, source=str(tmp_path / "text"))
    run_folder.write_config(run, dataclasses.replace(config, data=data))
    files = [folder if path.stem == among else path for path in retrieval_files]
    assert f"--out={folder}/out lies in the data source {folder}" in refused(*options(run, files, folder / "out"))
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": "nothing"}, "nothing is not a run"),
        ({"lengths": "0"}, "--lengths=0 must be 1 token or more"),
        ({"lengths": "a"}, "--lengths=a must be numbers of tokens"),
        ({"scorers": "encoder,bm52"}, "unknown scorer 'bm52' in --scorers=encoder,bm52; did you mean 'bm25'"),
        ({"top": 10}, "--top=10 must be 100 or more"),
        ({"memory": "inf"}, "--memory=inf must be a number of GiB above 0"),
    ],
)
def test_mistakes_are_one_line(changed, message, encoder_run, retrieval_files, tmp_path, refused):
    assert message in refused(*options(encoder_run, retrieval_files, tmp_path / "out", **changed))
    assert not (tmp_path / "out").exists()


def test_a_decoder_ranks_by_its_token_embeddings_alone(encoder_run, retrieval_files, tmp_path, command, refused):
    run = tmp_path / "run"
    shutil.copytree(encoder_run, run)
    config = run_folder.read_config(run)
    model, data = dataclasses.replace(config.model, causal=True), dataclasses.replace(config.data, task="packed")
    run_folder.write_config(run, dataclasses.replace(config, model=model, data=data))
    asked = lambda scorers: options(run, retrieval_files, tmp_path / "out", scorers=scorers)
    said = refused(*asked("tokens,encoder"))
    assert f"{run} is a decoder, which reads only backwards and is not trained to embed" in said
    assert not (tmp_path / "out").exists()
    assert not command(*asked("tokens,bm25"))[0]


def test_what_cannot_be_asked_or_found_is_said(encoder_run, retrieval_files, tmp_path, command):
    with retrieval_files[1].open("a") as file:
        for name, positives in (("none", []), ("half", [{"docid": "d1"}, {"docid": "gone"}])):
            file.write(json.dumps({"query_id": name, "query": "two", "positive_passages": positives}) + "\n")
    status, _, said = command(*options(encoder_run, retrieval_files, tmp_path / "out", scorers="bm25"))
    assert not status
    assert "1 queries have no positive and are left out; 4 are asked" in said
    assert "1 positives are not in the corpus and count as not found" in said
