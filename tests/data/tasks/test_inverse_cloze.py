"""The problem that is made of any text: what asks for what, and that nothing of the test is trained on."""

import json

import pytest

from bam_jax import config as configs
from bam_jax.data import loader, make_retrieval, tokenizers
from bam_jax.data.tasks.inverse_cloze import LONGEST, SHORTEST, Sizes, cut_sentences, make
from bam_jax.system import errors
from bam_jax.system.errors import UserError

SIZES = Sizes(passage=120, document=1500, questions=4, test=0.5)
OPTIONS = ("--passage=120", "--document=1500", "--questions=4")
NAMES = ["lock", "queue", "parser", "socket", "thread", "buffer", "signal", "module"]


def text(n):
    """Sixty sentences, and one that is in every text."""
    says = lambda k: f"Sentence {k} of text {n} says how a {NAMES[(n + k) % 8]} waits for another {NAMES[k % 8]}."
    paragraphs = [" ".join(map(says, range(k, k + 5))) for k in range(0, 60, 5)]
    return "\n\n".join([*paragraphs, "This very sentence stands at the end of all."])


TEXTS = [text(n) for n in range(12)]
WHOLE = [" ".join(cut_sentences(each)) for each in TEXTS]


@pytest.fixture(scope="module")
def made():
    return make([*TEXTS, TEXTS[3]], SIZES, seed=0)


def test_the_same_seed_gives_the_same_problem(made):
    assert make(TEXTS, SIZES, seed=0) == made, "a text that stands there twice counts once"
    assert make(TEXTS, SIZES, seed=1) != made


def test_a_query_stood_in_its_document_alone(made):
    documents = {record["docid"]: record["text"] for record in made.corpus}
    assert len(documents) == len(made.corpus)
    assert len({record["query_id"] for record in made.queries}) == len(made.queries)
    for record in made.queries:
        (positive,) = record["positive_passages"]
        assert documents[positive["docid"]] == positive["text"]
        assert not any(record["query"] in text for text in documents.values())
        assert SHORTEST <= len(record["query"]) <= LONGEST and "stands at the end" not in record["query"]
        (home,) = [text for text in WHOLE if record["query"] in text]
        before = cut_sentences(positive["text"][: record["character"]])
        assert not before or f"{before[-1]} " in home + " ", "a whole sentence ends where it stood"


def test_answers_stand_in_all_parts_of_long_documents(made):
    assert all(len(record["text"]) > SIZES.document - 5 * LONGEST for record in made.corpus)
    places = [record["character"] / SIZES.document for record in made.queries if record["kind"] == "sentence"]
    assert min(places) < 0.25 and max(places) > 0.75
    titles = [record for record in made.queries if record["kind"] == "title"]
    assert len(titles) == len(made.corpus) and all(record["character"] == 0 for record in titles)


@pytest.mark.parametrize("name", make_retrieval.TRIPLETS)
def test_a_triplet_is_a_sentence_and_what_stood_around_it(made, name):
    homes = [text for text in WHOLE if ({"text": text} in made.texts) != (name == "test_triplets")]
    for record in getattr(made, name):
        (home,) = [text for text in homes if record["query"] in text]
        assert record["query"] not in record["positive"]
        assert all(sentence in home for sentence in cut_sentences(record["positive"]))
        assert not any(sentence in home for sentence in cut_sentences(record["negative"])[:1])
        assert SHORTEST <= len(record["positive"]) <= SIZES.passage + 2 * LONGEST


def test_triplets_that_are_held_out_have_no_sentence_of_the_others(made):
    told = {}
    for name in make_retrieval.TRIPLETS:
        records = getattr(made, name)
        texts = [text for record in records for text in record.values()]
        told[name] = {sentence for text in texts for sentence in cut_sentences(text) if "at the end" not in sentence}
        assert len(told[name]) > 50
    first, second, third = told.values()
    assert first.isdisjoint(second | third) and second.isdisjoint(third)
    assert 0 < len(made.held_out_triplets) < len(made.triplets)


def test_nothing_of_the_test_is_trained_on(made):
    trained = " ".join(record["text"] for record in made.texts)
    assert not any(record["query"] in trained for record in made.queries)
    own = [s for record in made.corpus for s in cut_sentences(record["text"]) if "stands at the end" not in s]
    assert own and not any(sentence in trained for sentence in own)
    assert 0.4 < len(trained) / sum(map(len, TEXTS)) < 0.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passage": 0}, "--passage=0 must be 1 or more"),
        ({"test": 1.0}, "--test=1.0 must be above 0 and below 1"),
        ({"document": 10**6}, "0 documents and 0 queries, too few"),
    ],
)
def test_mistakes(change, message):
    with pytest.raises(UserError, match=message):
        make(TEXTS, Sizes(**{"test": 0.5, "document": 1500} | change), seed=0)


def command(*arguments):
    with pytest.raises(SystemExit) as exit:
        errors.run(make_retrieval.main, arguments)
    return exit.value.code


def test_the_command_writes_files(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    for n, each in enumerate(TEXTS):
        (tmp_path / "source" / f"{n:02}.txt").write_text(each)
    asked = [f"--source={tmp_path}/source", f"--out={tmp_path}/out", *OPTIONS]
    assert not command(*asked) and "triplets of" in capsys.readouterr().out
    expected = make(TEXTS, SIZES, seed=0)
    for name in ("texts", *make_retrieval.TRIPLETS, "corpus", "queries"):
        lines = (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == getattr(expected, name)
    (tmp_path / "out" / "queries.jsonl").unlink()  # killed before the end: the same command goes on
    assert not command(*asked, "--vocab=300")
    tokenizer = tokenizers.tokenizer(f"bpe:{tmp_path}/out/bpe.json")
    folders = {"source": f"{tmp_path}/out/triplets", "held_out_source": f"{tmp_path}/out/held_out_triplets"}
    data = {"task": "triplets", "tokenizer": tokenizer.spec, **folders}
    config = configs.from_dict({"context": 32, "batch": 4, "model": {"causal": False}, "data": data})
    batch = next(loader.batches(config, tokenizer))
    assert len(loader.held_out_triplets(config, tokenizer, 32)) == len(expected.held_out_triplets)
    assert batch["positive"].shape == (4, 32)
    query = tokenizer.decode(batch["query"][0, : batch["query_length"][0]])
    assert any(record["query"].startswith(query) for record in expected.triplets)
    assert command(*asked) == 2 and "has a queries.jsonl; remove it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["texts.jsonl", "corpus.jsonl", "bpe.json"])
def test_files_of_the_user_stay(tmp_path, capsys, name):
    for n, each in enumerate(TEXTS):
        (tmp_path / f"{n:02}.txt").write_text(each)
    asked = [f"--source={tmp_path}", *OPTIONS, "--vocab=300"]
    mine = tmp_path.with_name(f"{tmp_path.name}-mine")
    mine.mkdir()
    (mine / name).write_text("mine")
    assert command(*asked, f"--out={mine}") == 2
    assert f"{name} holds something else than this command writes" in capsys.readouterr().err
    assert (mine / name).read_text() == "mine" and {path.name for path in mine.iterdir()} == {name}
    assert command(*asked, f"--out={tmp_path}/out") == 2
    assert "out lies in the data source" in capsys.readouterr().err
