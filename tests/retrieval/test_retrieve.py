"""The command from files to a table, its errors, and kills on the way."""

import dataclasses
import itertools
import json
import shutil

import pytest

from bam_jax import retrieve
from bam_jax.system import jsonl
from bam_jax.training import run_folder


def options(run, files, out, /, **others):
    """The command that ranks the files."""
    given = {"run": run, "corpus": files[0], "queries": files[1], "lengths": "16,48", "out": out} | others
    return [retrieve.main, *(f"--{name}={value}" for name, value in given.items()), "--no-progress"]


@pytest.fixture
def asked(encoder_run, retrieval_files, tmp_path):
    return lambda **others: options(encoder_run, retrieval_files, tmp_path / "out", **others)


@pytest.fixture
def changed(encoder_run, tmp_path):
    """Copies the run, with other fields in its configuration."""

    def change(**sections):
        run = shutil.copytree(encoder_run, tmp_path / "run")
        config = run_folder.read_config(run)
        parts = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in sections.items()}
        run_folder.write_config(run, dataclasses.replace(config, **parts))
        return run

    return change


def test_a_table_and_run_files_come_of_a_run(encoder_run, retrieval_files, asked, tmp_path, command, refused):
    out, line = tmp_path / "out", asked(scorers="encoder,tokens,bm25")
    status, printed, _ = command(*line)
    assert not status
    assert [row.split("|")[1:3] for row in printed.splitlines()[2:]] == [
        [f" {length} ", f" {scorer} "] for length in (16, 48) for scorer in ("bm25", "encoder", "tokens")
    ]
    found = json.loads((out / "metrics.json").read_text())
    assert (found["queries"], found["documents"], len(found["results"])) == (3, 10, 6)
    assert (found["run"], found["step"], found["overrides"]) == (str(encoder_run), 1, {})
    assert found["corpus"] == str(retrieval_files[0]) and len(found["config"]) == 12
    words = {each["length"]: each["ndcg_10"]["mean"] for each in found["results"] if each["scorer"] == "bm25"}
    assert words[16] == 1.0, "the documents begin with their queries"
    for each in found["results"]:
        assert 0 <= each["ndcg_10"]["low"] <= each["ndcg_10"]["mean"] <= each["ndcg_10"]["high"] <= 1
        assert each["recall_100"]["mean"] == 1, "the corpus is shorter than 100"
    lines = [row.split() for row in (out / "encoder-16.run").read_text().splitlines()]
    assert len(lines) == 3 * 10 and [row[0] for row in lines[::10]] == ["q0", "q5", "q7"]
    for block in itertools.batched(lines, 10):
        assert [int(row[3]) for row in block] == list(range(1, 11)) and {row[1] for row in block} == {"Q0"}
        scores = [(float(row[4]), row[2]) for row in block]
        assert scores == sorted(scores, reverse=True) and {row[2] for row in block} == {f"d{n}" for n in range(10)}
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    assert command(*line)[1] == printed
    said = refused(*line, "--config.encoding_options.factor=2")
    assert "of another ranking: of the run's own configuration, not --config.encoding_options.factor=2; give" in said
    with retrieval_files[0].open("a") as file:
        file.write(json.dumps({"docid": "more", "text": "more"}) + "\n")
    assert "other documents, queries or judgements than now" in refused(*line)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before


@pytest.mark.full
def test_a_mesh_ranks_as_one_device(encoder_run, retrieval_files, tmp_path, command):
    scores = []
    for name, mesh in (("one", {}), ("mesh", {"data": 2, "tensor": 2, "context": 2})):
        line = options(encoder_run, retrieval_files, tmp_path / name, scorers="encoder")
        assert not command(*line, *(f"--config.mesh.{axis}={size}" for axis, size in mesh.items()))[0]
        rows = [row.split() for row in (tmp_path / name / "encoder-48.run").read_text().splitlines()]
        scores.append({(query, document): float(score) for query, _, document, _, score, _ in rows})
    assert len(scores[0]) == 30 and scores[1] == pytest.approx(scores[0], abs=1e-4)


def test_results_that_are_not_ranked_anew_stay(asked, tmp_path, command):
    assert not command(*asked(scorers="tokens", lengths=16))[0]
    path = tmp_path / "out" / "metrics.json"
    first = jsonl.parse(path.read_bytes(), "it")
    (result,) = first["results"]
    older = {name: value for name, value in result.items() if name != "commit"} | {"length": 8}
    path.write_text(json.dumps(first | {"commit": "before", "results": [older, result | {"commit": "x"}]}))
    printed = command(*asked(scorers="bm25", lengths=48))[1] + command(*asked(scorers="tokens", lengths=16))[1]
    *before, new = (found := json.loads(path.read_text()))["results"]
    assert before == [older | {"commit": "before"}, result] and "commit" not in found
    assert (new["scorer"], new["length"]) == ("bm25", 48)
    assert all(f"| {each['length']} | {each['scorer']} |" in printed for each in found["results"])


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("metrics.json", '{"accuracy": 0.5}', "metrics.json has no 'run'"),
        ("encoder-16.run", "mine", "holds something else than rankings: encoder-16.run"),
        ("embeddings/mine.npy", "mine", "holds something else than rankings: embeddings"),
    ],
)
def test_files_of_the_user_stay(name, contents, message, asked, tmp_path, refused):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text(contents)
    said = refused(*asked(scorers="bm25"))
    assert message in said and said.endswith("; move it, or give another --out\n")
    assert path.read_text() == contents and [each for each in tmp_path.rglob("out/**/*") if each.is_file()] == [path]


def test_embeddings_that_a_kill_left_alone_are_gone_on_with(asked, tmp_path, command):
    assert not command(*asked())[0]
    for path in (tmp_path / "out").glob("*.*"):
        path.unlink()
    (tmp_path / "out" / ".metrics.json.1234").touch()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert not command(*asked())[0] and before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}


@pytest.mark.parametrize("among", ["text", "queries"])
def test_a_folder_among_the_texts_is_refused(among, changed, retrieval_files, tmp_path, refused):
    folder = tmp_path / among
    folder.mkdir()
    files = [path.rename(folder / path.name) and folder if path.stem == among else path for path in retrieval_files]
    run = changed(data={"source": str(tmp_path / "text")})
    assert f"--out={folder}/out lies in the data source {folder}" in refused(*options(run, files, folder / "out"))
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"run": "nothing"}, "nothing is not a run"),
        ({"lengths": "0"}, "--lengths=0 must be 1 token or more"),
        ({"lengths": "a"}, "--lengths=a must be numbers of tokens"),
        ({"lengths": "６４"}, "--lengths=６４ must be numbers of tokens"),
        ({"scorers": "encoder,bm52"}, "unknown scorer 'bm52' in --scorers=encoder,bm52; did you mean 'bm25'"),
        ({"top": 10}, "--top=10 must be 100 or more"),
        ({"memory": "inf"}, "--memory=inf must be a number of GiB above 0"),
    ],
)
def test_mistakes_are_one_line(others, message, asked, tmp_path, refused):
    assert message in refused(*asked(**others))
    assert not (tmp_path / "out").exists()


def test_a_decoder_ranks_by_its_token_embeddings_alone(changed, retrieval_files, tmp_path, command, refused):
    run = changed(model={"causal": True}, data={"task": "packed"})
    said = refused(*options(run, retrieval_files, tmp_path / "out", scorers="tokens,encoder"))
    assert f"{run} is a decoder, which reads only backwards and is not trained to embed" in said
    assert not (tmp_path / "out").exists()
    assert not command(*options(run, retrieval_files, tmp_path / "out", scorers="tokens,bm25"))[0]


def test_what_cannot_be_asked_or_found_is_said(asked, retrieval_files, command):
    with retrieval_files[1].open("a") as file:
        for name, positives in (("none", []), ("half", [{"docid": "d1"}, {"docid": "gone"}])):
            file.write(json.dumps({"query_id": name, "query": "two", "positive_passages": positives}) + "\n")
    status, _, said = command(*asked(scorers="bm25"))
    assert not status and "1 queries have no positive and are left out; 4 are asked" in said
    assert "1 positives are not in the corpus and count as not found" in said
