"""The problem that is made of any text: what asks for what, and that nothing of the test is trained on."""

import json

import pytest

from bam_jax import config as configs
from bam_jax.data import loader, make_retrieval, tokenizers
from bam_jax.data.tasks.inverse_cloze import LONGEST, SHORTEST, Sizes, cut_sentences, make

SIZES = Sizes(passage=120, document=1500, questions=4, test=0.5)
OPTIONS = ("--passage=120", "--document=1500", "--questions=4")
NAMES = ["lock", "queue", "parser", "socket", "thread", "buffer", "signal", "module"]
COMMON = "This very sentence stands at the end of all."


def text(n):
    """Sixty sentences, and one that is in every text."""
    says = lambda k: f"Sentence {k} of text {n} says how a {NAMES[(n + k) % 8]} waits for another {NAMES[k % 8]}."
    return "\n\n".join([*(" ".join(map(says, range(k, k + 5))) for k in range(0, 60, 5)), COMMON])


TEXTS = [text(n) for n in range(12)]
WHOLE = [" ".join(cut_sentences(each)) for each in TEXTS]


@pytest.fixture(scope="module")
def made():
    return make([*TEXTS, TEXTS[3]], SIZES, seed=0)


def test_the_same_seed_gives_the_same_problem(made):
    assert make(TEXTS, SIZES, seed=0) == made, "a text that stands there twice counts once"
    assert make(TEXTS, SIZES, seed=1) != made


def test_a_query_stood_in_its_document_alone_and_in_any_part_of_it(made):
    documents = {record["docid"]: record["text"] for record in made.corpus}
    assert len(documents) == len(made.corpus)
    assert len({record["query_id"] for record in made.queries}) == len(made.queries)
    assert all(len(each) > SIZES.document - 5 * LONGEST for each in documents.values())
    for record in made.queries:
        (positive,) = record["positive_passages"]
        assert documents[positive["docid"]] == positive["text"]
        assert not any(record["query"] in each for each in documents.values())
        assert SHORTEST <= len(record["query"]) <= LONGEST and record["query"] != COMMON
        (home,) = [each for each in WHOLE if record["query"] in each]
        before = cut_sentences(positive["text"][: record["character"]])
        assert not before or f"{before[-1]} " in home + " ", "a whole sentence ends where it stood"
    places = [record["character"] / SIZES.document for record in made.queries if record["kind"] == "sentence"]
    assert min(places) < 0.25 and max(places) > 0.75
    titles = [record["character"] for record in made.queries if record["kind"] == "title"]
    assert titles == [0] * len(made.corpus)


@pytest.mark.parametrize("name", make_retrieval.TRIPLETS)
def test_a_triplet_is_a_sentence_and_what_stood_around_it(made, name):
    homes = [each for each in WHOLE if ({"text": each} in made.texts) != (name == "test_triplets")]
    for record in getattr(made, name):
        (home,) = [each for each in homes if record["query"] in each]
        assert record["query"] not in record["positive"]
        assert all(sentence in home for sentence in cut_sentences(record["positive"]))
        assert not any(sentence in home for sentence in cut_sentences(record["negative"])[:1])
        assert SHORTEST <= len(record["positive"]) <= SIZES.passage + 2 * LONGEST


def test_what_is_held_out_or_tested_with_is_not_trained_on(made):
    sentences = lambda texts: {sentence for each in texts for sentence in cut_sentences(each)} - {COMMON}
    first, second, third = (
        sentences(each for record in getattr(made, name) for each in record.values())
        for name in make_retrieval.TRIPLETS
    )
    assert min(map(len, (first, second, third))) > 50
    assert first.isdisjoint(second | third) and second.isdisjoint(third)
    assert 0 < len(made.held_out_triplets) < len(made.triplets)
    trained = " ".join(record["text"] for record in made.texts)
    tested = sentences(record["text"] for record in made.corpus) | {record["query"] for record in made.queries}
    assert not any(sentence in trained for sentence in tested)
    assert 0.4 < len(trained) / sum(map(len, TEXTS)) < 0.6


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    for n, each in enumerate(TEXTS):
        (tmp_path / "source" / f"{n:02}.txt").write_text(each)
    return tmp_path / "source"


def test_the_command_writes_files(source, tmp_path, command, refused):
    asked = [make_retrieval.main, f"--source={source}", f"--out={tmp_path}/out", *OPTIONS]
    status, said, _ = command(*asked)
    assert not status and "triplets of" in said
    expected = make(TEXTS, SIZES, seed=0)
    for name in ("texts", *make_retrieval.TRIPLETS, "corpus", "queries"):
        lines = (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == getattr(expected, name)
    (tmp_path / "out" / "queries.jsonl").unlink()  # killed before the end: the same command goes on
    assert not command(*asked, "--vocab=300")[0]
    tokenizer = tokenizers.tokenizer(f"bpe:{tmp_path}/out/bpe.json")
    folders = {"source": f"{tmp_path}/out/triplets", "held_out_source": f"{tmp_path}/out/held_out_triplets"}
    data = {"task": "triplets", "tokenizer": tokenizer.spec, **folders}
    config = configs.from_dict({"context": 32, "batch": 4, "model": {"causal": False}, "data": data})
    batch = next(loader.batches(config, tokenizer))
    assert len(loader.held_out_triplets(config, tokenizer, 32)) == len(expected.held_out_triplets)
    assert batch["positive"].shape == (4, 32)
    query = tokenizer.decode(batch["query"][0, : batch["query_length"][0]])
    assert any(record["query"].startswith(query) for record in expected.triplets)
    assert "has a queries.jsonl; remove it" in refused(*asked)


@pytest.mark.parametrize("name", ["texts.jsonl", "bpe.json"])
def test_files_of_the_user_stay(source, tmp_path, refused, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    asked = [make_retrieval.main, f"--source={source}", *OPTIONS, "--vocab=300"]
    assert f"{name} holds something else than this command" in refused(*asked, f"--out={tmp_path / 'mine'}")
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]
    assert "out lies in the data source" in refused(*asked, f"--out={source}/out")
