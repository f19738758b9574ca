"""Batches: what is in them, that any place in them can be resumed bit for bit, and which text is held out of them."""

import contextlib
import dataclasses
import hashlib

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from bam_jax.config import Config, DataConfig, ModelConfig
from bam_jax.data.loader import batches, held_out
from bam_jax.data.prepared.documents import open_documents
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

TEXTS = ["the quick brown fox\n" * 3, "jumps over the lazy dog.\n" * 5, "a", "pack my box with jugs\n" * 9, "bcd efg"]


@pytest.fixture
def make(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)

    def config(context=32, batch=4, seed=0, **data):
        settings = DataConfig(**{"source": str(folder), "holdout": 0.0} | data)
        model = ModelConfig(causal=settings.task != "masked")
        return Config(data=settings, model=model, context=context, batch=batch, seed=seed)

    return config


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def open_(config, split="train"):
    return batches(config, tokenizer(config.data.tokenizer), split)


assert_same = np.testing.assert_equal


@pytest.mark.parametrize(
    ("task", "name", "seed", "expected"),
    [
        ("passkey", "char", 0, ["b80e9cf249517c81", "d4e7665f564dd3ef", "c86e041819a1e9d3"]),
        ("passkey", "char", 3, ["ecdbc6d5481ae056", "22259dc3a83f0e51", "1f15c627c78a7e90"]),
        ("packed", "char", 0, ["057cd4f39031f61b", "982bd5033bb3b078", "218a03a5edfcc337"]),
        ("packed", "char", 3, ["9ba9789998ca4e45", "8b1cc74be5e595dd", "f095f5dd0306be4c"]),
        ("packed", "byte", 0, ["231c570e1e2351e1", "ec1e232f30793a64", "025cc54668cb9dc6"]),
    ],
)
def test_batches_are_for_ever_what_they_were(tmp_path, task, name, seed, expected):
    """Runs are resumed, and results that are printed somewhere repeated, years later."""
    words = "a prior over positions decides what attention sees far beyond its training length".split()
    for n in range(40):
        text = " ".join(words[(n * n + 7 * k) % len(words)] for k in range(5 + 13 * n % 60)) + "."
        (tmp_path / f"{n:02}.txt").write_text(text)
    data = DataConfig(source=str(tmp_path), holdout=0.1, task=task, tokenizer=name, document_mask=name == "char")
    iterator = open_(Config(data=data, context=32, batch=8, seed=seed))
    found = []
    for number in (0, 1, 1000):
        iterator.set_state({"next_index": number})
        batch = next(iterator)
        joined = b"".join(key.encode() + np.ascontiguousarray(batch[key]).tobytes() for key in sorted(batch))
        found.append(hashlib.sha256(joined).hexdigest()[:16])
    assert found == expected


OPTIONS = {
    "unmasked": {"document_mask": False},
    "restart": {"positions": "restart"},
    "first_fit": {"packing": "first_fit", "positions": "restart"},
    "groups": {"source": "prepared", "tokenizer": "byte", "shuffle": 2},
    "first_fit groups": {"source": "prepared", "tokenizer": "byte", "shuffle": 2, "packing": "first_fit"},
    "passkey": {"task": "passkey"},
    "masked first_fit": {"task": "masked", "tokenizer": "byte", "packing": "first_fit", "document_mask": False},
    "triplets": {"task": "triplets", "source": "triplets", "tokenizer": "byte", "shuffle": 6},
    "recall": {"task": "recall"},
    "mixture with keys": {"mixture": {"text": {"weight": 0.7}, "keys": {"weight": 0.3, "task": "passkey"}}},
    "mixture of texts": {
        "packing": "first_fit",
        "positions": "restart",
        "mixture": {"all": {"weight": 2}, "long": {"weight": 1, "packing": "concat", "text_field": "body"}},
    },
}


@pytest.fixture(params=OPTIONS)
def option(make, tmp_path, prepared, request):
    """The configuration of each of the OPTIONS."""
    data = OPTIONS[request.param]
    if "source" in data:
        (tmp_path / "prepared").mkdir()
        fields = ("query", "positive", "negative") if data["source"] == "triplets" else ("text",)
        texts = [TEXTS[:3], TEXTS[2:], ["one", "two", "three"] * 3]
        data = data | {"source": prepared(tmp_path / "prepared", texts, fields=fields)}
    return make(**data)


def together(hosts, count):
    """The next batches of several hosts as one."""
    parts = zip(*(take(each, count) for each in hosts), strict=True)
    return [{name: np.concatenate([each[name] for each in batch]) for name in batch[0]} for batch in parts]


def on_hosts(config, hosts):
    made = tokenizer(config.data.tokenizer)
    return [batches(config, made, host=host, hosts=hosts, saves=host == 0) for host in range(hosts)]


def test_hosts_share_the_batches_and_resume_in_other_numbers(option):
    whole = take(open_(option), 12)
    for hosts in (2, 4):
        assert_same(together(on_hosts(option, hosts), 12), whole)
        for stopped, others in ((5, 1), (11, 4), (3, 2)):
            together(first := on_hosts(option, hosts), stopped)
            states = [each.get_state() for each in first]
            assert states == [states[0]] * hosts
            for each in (again := on_hosts(option, others)):
                each.set_state(states[-1])
            assert_same(together(again, 12 - stopped), whole[stopped:])


def test_the_state_of_one_host_is_that_of_all(make, tmp_path):
    """Saved by two hosts into one checkpoint, read by one and by four."""
    config = make(packing="first_fit")
    whole = take(open_(config), 9)
    first, second = on_hosts(config, 2)
    take(first, 5), take(second, 5)
    with ocp.training.Checkpointer(tmp_path / "checkpoints") as saver:
        saver.save_checkpointables(5, {"data": first, "of the second": second})
    take(first, 3)  # what is read after saving must not be in the checkpoint
    assert not list((tmp_path / "checkpoints" / "5" / "of the second").glob("*.json"))  # it would write the same file
    for hosts in (1, 4):
        for each in (restored := on_hosts(config, hosts)):
            with ocp.training.Checkpointer(tmp_path / "checkpoints") as reader:
                reader.load_checkpointables(None, {"data": each})
        assert_same(together(restored, 4), whole[5:])


def test_a_state_is_of_the_documents_that_were_there(make, tmp_path, prepared):
    """Copies that lie elsewhere have the same; more, fewer or other documents do not."""
    config = make(mixture={"text": {"weight": 1}, "copies": {"weight": 1, "task": "copy"}})
    state = open_(config).get_state()
    assert open_(make(mixture=config.data.mixture, packing="first_fit", shuffle=2)).get_state() == state
    for name, texts in (("texts", [*TEXTS, "more"]), ("prepared", TEXTS), ("again", TEXTS), ("other", TEXTS[::-1])):
        (tmp_path / name).mkdir(exist_ok=True)
        if name == "texts":
            (tmp_path / name / "9.txt").write_text(texts[-1])
        else:
            prepared(tmp_path / name, [texts], name="char")
        iterator = open_(make(mixture=config.data.mixture, source=str(tmp_path / name)))
        assert (iterator.get_state() == state) == (name == "again"), name
        if name != "again":
            with pytest.raises(UserError, match="names other documents than this run was trained on so far"):
                iterator.set_state(state)
        iterator.set_state({"next_index": 7})  # of a checkpoint from before
        state = iterator.get_state() | {"next_index": 0}


@pytest.mark.full
def test_workers_change_nothing_and_report_what_goes_wrong(make, tmp_path, prepared):
    (tmp_path / "prepared").mkdir()
    config = make(source=prepared(tmp_path / "prepared", [TEXTS]), tokenizer="byte", workers=2)
    whole = take(open_(dataclasses.replace(config, data=dataclasses.replace(config.data, workers=0))), 9)
    with contextlib.closing(open_(config)) as iterator:
        iterator.set_state({"next_index": 2})
        assert_same(take(iterator, 5), whole[2:7])
        assert iterator.get_state()["next_index"] == 7
    shard = tmp_path / "prepared" / "train-00000.array_record"
    shard.write_bytes(shard.read_bytes().replace(b"o\0v\0e\0r\0", b"o\0v\0i\0r\0"))
    with contextlib.closing(open_(config)) as iterator, pytest.raises(UserError, match="array_record is damaged"):
        take(iterator, 20)


def test_methods_of_a_seed_see_the_same_batches_and_other_seeds_others(option):
    first = take(open_(option), 3)
    wide = dataclasses.replace(option.model, width=96)
    for method in ({"encoding": "alibi"}, {"encoding": "bam", "ssmax": "on"}, {"steps": 7, "model": wide}):
        assert_same(take(open_(dataclasses.replace(option, **method)), 3), first)
    other = take(open_(dataclasses.replace(option, seed=option.seed + 1)), 3)
    assert any(not np.array_equal(one[name], two[name]) for one, two in zip(first, other, strict=True) for name in one)


def test_framed_documents_begin_and_end_with_tokens_and_no_target_is_left_out(make):
    made = tokenizer("mistral")
    total = sum(len(made.encode(text)) + 2 for text in TEXTS)
    config = make(packing="framed", tokenizer="mistral", context=total - 1, batch=1)
    (batch,) = take(open_(config), 1)
    stream = np.append(batch["tokens"][0], batch["targets"][0, -1])
    starts = np.flatnonzero(stream == made.bos)
    assert starts[0] == 0 and (batch["weights"] == 1).all()
    np.testing.assert_array_equal(np.append(starts[1:], total) - 1, np.flatnonzero(stream == made.eos))
    documents = {made.decode(part[1:-1]) for part in np.split(stream, starts[1:])}
    assert documents == {made.decode(made.encode(text)) for text in TEXTS}
    # Attention stays within a document: each begin token starts a segment.
    np.testing.assert_array_equal(np.flatnonzero(np.diff(batch["segment"][0])) + 1, starts[1:])
    for name in ("char", "byte"):
        with pytest.raises(UserError, match=f"'{name}' has no begin token.*packing=concat"):
            open_(make(packing="framed", tokenizer=name))


def test_keys_to_measure_with_are_not_those_of_training(make):
    config = make(task="passkey", batch=64, passkey_fraction=1.0, held_out_source=make().data.source, context=64)
    made = tokenizer("char")
    keys = []
    for split in ("train", "held_out"):
        tokens = next(open_(config, split))["tokens"]
        first = np.argmax(tokens == made.key, axis=1)
        keys.append(np.take_along_axis(tokens, first[:, None] + np.arange(1, 6), axis=1))
    assert not (keys[0] == keys[1]).all(axis=1).any()


def test_what_is_held_out(make, tmp_path, prepared):
    """Each source once; of parts that read text; of a folder that is only there to be evaluated on, the whole."""
    made = tokenizer("byte")
    read = lambda **data: made.decode(held_out(make(tokenizer="byte", **data), made))
    (tmp_path / "folder").mkdir(), (tmp_path / "whole").mkdir()
    folder = prepared(tmp_path / "folder", [TEXTS[:2], TEXTS[2:]], ["held", "out"])
    whole = prepared(tmp_path / "whole", [["all ", "of it"]])
    (tmp_path / "x.txt").write_text("something else")
    assert read(source=folder) == "heldout" == read(source=whole, held_out_source=folder)
    assert read(source=folder, held_out_source=whole) == "all of it"
    own = {"held_out_source": str(tmp_path / "x.txt"), "holdout": 0.5}
    assert read(**own) == "something else"
    assert_same(take(open_(make(**own)), 2), take(open_(make()), 2))
    one = {"weight": 1, "source": folder}
    mixture = {"one": one, "two": one | {"packing": "first_fit"}, "three": {"weight": 1, "source": "stdlib", **own}}
    assert read(mixture=mixture) == "heldoutsomething else"
    copies = {"text": {"weight": 1}, "copies": {"weight": 1, "task": "copy", "source": "stdlib"}}
    # Where nothing is read, the text is what one has to measure on.
    assert read(holdout=0.3, mixture=copies) == read(holdout=0.3, task="copy") == read(holdout=0.3) != ""
    with pytest.raises(UserError, match="config.data.holdout=0.0 holds no text out.*prepare it with a hold-out"):
        read(source=whole)


@pytest.mark.parametrize("packing", ["concat", "first_fit"])
def test_a_prepared_folder_gives_the_batches_of_its_texts(make, tmp_path, prepared, packing):
    (tmp_path / "prepared").mkdir()
    folder = prepared(tmp_path / "prepared", [TEXTS[:2], TEXTS[2:]])
    one, other = (make(tokenizer="byte", packing=packing, **source) for source in ({"source": folder}, {}))
    assert_same(take(open_(one), 10), take(open_(other), 10))
    with pytest.raises(UserError, match="prepared with byte.* was made with .* but tokenizer 'char' has hash"):
        open_documents(dataclasses.replace(one.data, tokenizer="char"), tokenizer("char"))


def test_a_corpus_too_large_for_memory_is_to_be_prepared(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 100)
    data = DataConfig(source=str(tmp_path), tokenizer="byte", holdout=0.0)
    monkeypatch.setattr("bam_jax.data.prepared.documents.IN_MEMORY", 12_900)
    assert len(open_documents(data, tokenizer("byte")).lengths) == 1  # repeated ones count once
    monkeypatch.setattr("bam_jax.data.prepared.documents.IN_MEMORY", 12_899)
    with pytest.raises(UserError, match="more than 12,899 characters.*bam_jax.data.prepare --source"):
        open_documents(data, tokenizer("byte"))


@pytest.mark.parametrize(("key", "value"), [("holdout", 0.1), ("held_out_source", "stdlib")])
def test_parts_of_one_source_hold_out_the_same(make, key, value):
    """The default of the first part is 0 and no source."""
    config = make(mixture={"text": {"weight": 1}, "keys": {"weight": 1, "task": "passkey", key: value}})
    says = rf"mixture.keys.{key}={value!r}, and .* of mixture.text, whose source is the same"
    with pytest.raises(UserError, match=says):
        open_(config)
    parts = {"text": {"weight": 1}, "copies": {"weight": 1, "task": "copy", key: value}}
    open_(make(mixture=parts))


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda make: open_(make(), "test"), "unknown split 'test'"),
        (lambda make: open_(make(task="copy"), "heldout"), "unknown split 'heldout'; did you mean 'held_out'"),
        (lambda make: open_(make(context=10_000)), "fewer than config.context=10000"),
        (lambda make: open_(make(task="masked")), "tokenizer 'char' has no mask token for the task 'masked'"),
        (lambda make: open_(make(task="triplets")), "needs a folder prepared with the fields query, positive, neg"),
        (lambda make: batches(make(task="passkey"), tokenizer("byte")), "needs the tokenizer 'char', not 'byte'"),
        (lambda make: on_hosts(make(), 3), "config.batch=4 must be a multiple of the 3 hosts"),
    ],
)
def test_what_is_refused(make, use, says):
    with pytest.raises(UserError, match=says):
        use(make)
