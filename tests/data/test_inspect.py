"""What is shown of a corpus is what is in it: counts, lengths, the rows as text, how rows are filled."""

import json
import re
import sys

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data import inspect
from bam_jax.data.inspect import octaves, packing_statistics, render_ids
from bam_jax.data.packing.concat import Concatenated
from bam_jax.data.packing.first_fit import FirstFit
from bam_jax.data.packing.rows import Shuffle
from bam_jax.data.prepared.manifest import read_manifest
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.system.errors import UserError

TEXTS = [f"{'word ' * n}ends at {n}." for n in range(1, 40)]
BYTES = ("text.jsonl", "--config.data.tokenizer=byte", "--config.data.holdout=0")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path


@pytest.fixture
def shown(command):
    def run(*arguments):
        status, said, _ = command(inspect.main, *arguments)
        assert not status
        return said

    return run


def found(pattern, said):
    return re.search(pattern, said, re.MULTILINE)


def test_a_source_is_shown_as_its_config_reads_it(shown):
    said = shown(*BYTES, "--config.context=64")
    lengths = sorted(len(text) + 1 for text in TEXTS)
    numbers = found(r"^train +(.*)$", said)[1].replace(",", "").split()
    assert list(map(int, numbers[:3])) == [39, sum(lengths), 1]
    assert int(numbers[6]) == lengths[19] and int(numbers[-1]) == lengths[-1] and found(r"^held_out +0 +0 ", said)
    assert "16–31" in said and "128–255" in said and "█" in said
    assert found(rf"^concat +{(sum(lengths) - 1) // 64} +100\.0%", said) and "first_fit" in said
    assert matplotlib.image.imread("text-lengths.png").shape[1] > 500 and "text-lengths.png" in said


def test_the_documents_of_a_row_stand_apart(folder, shown):
    said = shown(*BYTES, "--no-plot", "--config.context=256", "--rows=3")
    rows = re.split(r"^row \d\n", said, flags=re.MULTILINE)[1:]
    assert len(rows) == 3 and not list(folder.glob("*.png"))
    for row in rows:
        documents = re.findall(r"^  document (\d+), places (\d+) to (\d+)\n((?:    .*\n?)+)", row, re.MULTILINE)
        assert [int(number) for number, *_ in documents] == list(range(1, len(documents) + 1))
        assert int(documents[0][1]) == 0 and int(documents[-1][2]) == 255
        texts = [" ".join(text.split()) for *_, text in documents]
        for (_, first, last, _), text in zip(documents, texts, strict=True):
            assert text.count("⟨end⟩") == text.endswith("⟨end⟩")
            assert abs(len(text.replace("⟨end⟩", "e")) - (int(last) - int(first) + 1)) <= 2  # spaces at the ends go
        assert all(text.removesuffix("⟨end⟩") in TEXTS for text in texts[1:-1])


@given(st.lists(st.text("a\n\xe9", min_size=1, max_size=3) | st.sampled_from([255, 256]), max_size=8))
def test_special_ids_are_visible_and_lines_stay_lines(parts):
    made = tokenizer("byte")
    ids = [np.array([part]) if isinstance(part, int) else made.encode(part) for part in parts]
    names = {255: "⟨mask⟩", 256: "⟨end⟩"}
    text = "".join(names[part] if isinstance(part, int) else part.replace("\n", "⏎") for part in parts)
    assert render_ids(np.concatenate([np.zeros(0, np.int32), *ids]), made) == text


def test_padding_masks_and_ids_without_a_name_are_visible(shown):
    masked = shown(*BYTES, "--no-plot", "--config.data.task=masked", "--config.model.causal=False")
    assert "⟨mask⟩" in masked and "task masked" in masked
    padded = shown(*BYTES, "--no-plot", "--config.data.packing=first_fit", "--config.context=600", "--rows=9")
    assert found(r"^  padding, places \d+ to 599$", padded)
    mistral = tokenizer("mistral")
    assert render_ids(np.array([1, *mistral.encode("a b"), 2]), mistral) == "⟨1⟩a b⟨end⟩"


def test_a_prepared_folder_names_its_tokenizer(folder, shown, prepared, capsys):
    (folder / "bpe.json").write_text(train_bpe(TEXTS, 280))
    (folder / "prepared").mkdir(), (folder / "held_out").mkdir()
    prepared(folder / "prepared", [TEXTS[:20], TEXTS[20:30]], TEXTS[30:], name="bpe:bpe.json")
    said = shown("prepared", "--config.context=32", "--rows=1", "--plot=mine.png")
    identity = read_manifest("prepared").tokenizer
    assert f"tokenizer bpe:bpe.json: {identity['size']} ids, hash {identity['hash']}" in said
    assert found(r"^train +30 +[\d,]+ +2 ", said) and found(r"^held_out +9 +[\d,]+ +1 ", said)
    assert "ends at" in said and (folder / "mine.png").exists()
    prepared(folder / "held_out", [], TEXTS)  # to evaluate on alone
    with pytest.raises(UserError, match="there is no document to make rows of"):
        inspect.main(["held_out", "--plot=x.png"])
    assert found(r"^held_out +39 ", capsys.readouterr().out) and not (folder / "x.png").exists()


def test_a_mixture_is_shown_part_by_part(folder, shown):
    lines, keys = {"weight": 3, "source": "text.jsonl"}, {"weight": 1, "task": "passkey", "source": "text.jsonl"}
    data = {"tokenizer": "char", "mixture": {"lines": lines, "keys": keys}}
    tree = f"ml_collections.ConfigDict(dict(context=64, data={data!r}))"
    (folder / "mixed.py").write_text(f"import ml_collections\ndef get_config():\n    return {tree}\n")
    said = shown("--config=mixed.py", "--rows=8")
    assert "lines, weight 3: text.jsonl" in said and "keys, weight 1: text.jsonl" in said
    assert said.count("packed at 64") == 1 and "<KEY>" in said and (folder / "mixed-lengths.png").exists()


def test_without_matplotlib_the_remedy_is_given_before_anything_is_read(monkeypatch, shown, refused):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as where it is not installed
    said = refused(inspect.main, "a folder that is never read")
    assert "pip install '.[figures]' in a clone of bam_jax, or give --no-plot" in said
    assert "the first rows to train on" in shown(*BYTES, "--no-plot", "--config.context=16", "--rows=0")


LENGTHS = st.lists(st.integers(1, 40), min_size=2, max_size=30)


@given(LENGTHS, st.integers(1, 12))
def test_statistics_are_those_of_the_loaders_rows(listed, lengths, context):
    documents = listed([lengths := [*lengths, max(context, 2)]])
    first_fit, concat = (packing_statistics(np.array(lengths), context)[name] for name in ("first_fit", "concat"))
    shuffle = Shuffle(documents, 0, 1000)
    batch = FirstFit(documents, shuffle, context).take(np.arange(first_fit.rows))
    firsts = {text[0] for text in documents.texts}
    predicted = sorted(batch["targets"][batch["weights"] > 0])
    assert predicted == sorted(set(range(1, sum(lengths) + 1)) - firsts)  # these rows are just an epoch
    assert first_fit.filled == (batch["segment"] > 0).mean() and first_fit.predicted == batch["weights"].mean()
    owners = [set(documents.owner[row[row > 0]]) for row in batch["targets"]]
    assert first_fit.whole == np.mean([sum(number in row for row in owners) <= 1 for number in range(len(lengths))])
    batch = Concatenated(documents, shuffle, context).take(np.arange(concat.rows + 1))
    targets = batch["targets"][:-1]
    assert len(np.unique(targets)) == targets.size and sum(lengths) - 1 - targets.size < context
    assert targets[0, 0] in batch["targets"][-1] or concat.rows * context + context > sum(lengths) - 1
    assert concat.filled == 1 and abs(concat.predicted - batch["weights"][:-1].mean()) * sum(lengths) <= 2 * context + 2
    for span, counts in octaves(np.array(lengths)).items():
        inside = [length for length in lengths if length in span]
        assert counts == (len(inside), sum(inside))


def test_nothing_to_pack():
    for made in packing_statistics(np.array([], np.int32), 4).values():
        assert made.rows == 0 and 0 <= made.predicted <= made.filled <= 1
