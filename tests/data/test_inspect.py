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
from bam_jax.system import errors
from bam_jax.system.errors import UserError

ALL = ("--config.data.holdout=0", "--no-plot")
TEXTS = [f"{'word ' * n}ends at {n}." for n in range(1, 40)]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path / "text.jsonl"


@pytest.fixture
def bpe_folder(tmp_path, monkeypatch, prepared):
    """A folder with two shards to train on and one held out, made with a BPE of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bpe.json").write_text(train_bpe(TEXTS, 280))
    (tmp_path / "prepared").mkdir()
    prepared(tmp_path / "prepared", [TEXTS[:20], TEXTS[20:30]], TEXTS[30:], name="bpe:bpe.json")
    return tmp_path / "prepared"


def shown(capsys, *arguments):
    inspect.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def test_a_source_is_shown_as_its_config_reads_it(source, capsys):
    said = shown(capsys, source, "--config.data.tokenizer=byte", "--config.data.holdout=0", "--config.context=64")
    total = sum(len(text) + 1 for text in TEXTS)
    lengths = sorted(len(text) + 1 for text in TEXTS)
    numbers = re.search(r"^train +(.*)$", said, re.MULTILINE)[1].replace(",", "").split()
    assert list(map(int, numbers[:3])) == [39, total, 1]
    assert int(numbers[6]) == lengths[19] and int(numbers[-1]) == lengths[-1]
    assert re.search(r"^held_out +0 +0 ", said, re.MULTILINE)
    assert "16–31" in said and "128–255" in said and "█" in said
    assert re.search(rf"^concat +{(total - 1) // 64} +100\.0%", said, re.MULTILINE) and "first_fit" in said
    assert matplotlib.image.imread("text-lengths.png").shape[1] > 500 and "text-lengths.png" in said


def test_the_documents_of_a_row_stand_apart(source, capsys):
    said = shown(capsys, source, "--config.data.tokenizer=byte", *ALL, "--config.context=256", "--rows=3")
    rows = re.split(r"^row \d\n", said, flags=re.MULTILINE)[1:]
    assert len(rows) == 3 and not list(source.parent.glob("*.png"))
    for row in rows:
        documents = re.findall(r"^  document (\d+), places (\d+) to (\d+)\n((?:    .*\n?)+)", row, re.MULTILINE)
        assert [int(number) for number, *_ in documents] == list(range(1, len(documents) + 1))
        assert int(documents[0][1]) == 0 and int(documents[-1][2]) == 255
        for _, first, last, text in documents:
            text = " ".join(text.split())
            assert text.count("⟨end⟩") == text.endswith("⟨end⟩")
            assert abs(len(text.replace("⟨end⟩", "e")) - (int(last) - int(first) + 1)) <= 2  # spaces at the ends go
        for text in [" ".join(text.split()) for *_, text in documents][1:-1]:
            assert text.removesuffix("⟨end⟩") in TEXTS


@given(st.lists(st.text("a\n\xe9", min_size=1, max_size=3) | st.sampled_from([255, 256]), max_size=8))
def test_special_ids_are_visible_and_lines_stay_lines(parts):
    made = tokenizer("byte")
    ids = [np.array([part]) if isinstance(part, int) else made.encode(part) for part in parts]
    names = {255: "⟨mask⟩", 256: "⟨end⟩"}
    text = "".join(names[part] if isinstance(part, int) else part.replace("\n", "⏎") for part in parts)
    assert render_ids(np.concatenate([np.zeros(0, np.int32), *ids]), made) == text


def test_special_ids_without_a_name_show_their_number():
    mistral = tokenizer("mistral")
    assert render_ids(np.array([1, *mistral.encode("a b"), 2]), mistral) == "⟨1⟩a b⟨end⟩"


def test_padding_and_masks_are_visible(source, capsys):
    options = ["--config.data.tokenizer=byte", *ALL, "--config.context=128"]
    masked = shown(capsys, source, *options, "--config.data.task=masked", "--config.model.causal=False")
    assert "⟨mask⟩" in masked and "task masked" in masked
    padded = shown(capsys, source, *options, "--config.data.packing=first_fit", "--config.context=600", "--rows=9")
    assert re.search(r"^  padding, places \d+ to 599$", padded, re.MULTILINE)


def test_a_bpe_folder_folder_names_its_tokenizer(bpe_folder, capsys):
    said = shown(capsys, bpe_folder, "--config.context=32", "--rows=1", "--plot=mine.png")
    identity = read_manifest(bpe_folder).tokenizer
    assert f"tokenizer bpe:bpe.json: {identity['size']} ids, hash {identity['hash']}" in said
    assert re.search(r"^train +30 +[\d,]+ +2 ", said, re.MULTILINE)
    assert re.search(r"^held_out +9 +[\d,]+ +1 ", said, re.MULTILINE)
    assert "ends at" in said and (bpe_folder.parent / "mine.png").exists()


def test_a_folder_to_evaluate_on_alone_is_counted(tmp_path, capsys, prepared):
    (tmp_path / "prepared").mkdir()
    folder = prepared(tmp_path / "prepared", [], TEXTS)
    with pytest.raises(UserError, match="there is no document to make rows of"):
        inspect.main([folder, f"--plot={tmp_path / 'x.png'}"])
    assert re.search(r"^held_out +39 ", capsys.readouterr().out, re.MULTILINE) and not (tmp_path / "x.png").exists()


def test_a_mixture_is_shown_part_by_part(source, capsys, tmp_path):
    mixture = {
        "lines": {"weight": 3, "source": str(source)},
        "keys": {"weight": 1, "task": "passkey", "source": str(source)},
    }
    data = {"tokenizer": "char", "mixture": mixture}
    tree = f"ml_collections.ConfigDict(dict(context=64, data={data!r}))"
    (tmp_path / "mixed.py").write_text(f"import ml_collections\ndef get_config():\n    return {tree}\n")
    said = shown(capsys, "--config=mixed.py", "--rows=8")
    assert f"lines, weight 3: {source}" in said and f"keys, weight 1: {source}" in said
    assert said.count("packed at 64") == 1 and "<KEY>" in said and (tmp_path / "mixed-lengths.png").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a prepared folder or a data source, or --config=FILE"),
        (["text.jsonl", "--rows=-1"], "--rows=-1 must be 0 or more"),
        (["text.jsonl", "--plot=x.pdf"], "--plot=x.pdf must end with .png"),
        (["text.jsonl", "--config.data.tokenizer=bpe:none"], "finds no file at none"),
    ],
)
def test_what_is_refused(source, arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        errors.run(inspect.main, arguments)
    said = capsys.readouterr().err
    assert exit.value.code == 2 and says in said and said.count("\n") == 1
    assert not list(source.parent.glob("*.png"))


def test_without_matplotlib_the_remedy_is_said_before_anything_is_read(source, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as where it is not installed
    with pytest.raises(UserError, match=r"pip install '\.\[figures\]' in a clone of bam_jax, or give --no-plot"):
        inspect.main(["a folder that is never read"])
    assert "the first rows to train on" in shown(capsys, source, *ALL, "--config.context=16", "--rows=0")


LENGTHS = st.lists(st.integers(1, 40), min_size=2, max_size=30)


@given(LENGTHS, st.integers(1, 12))
def test_first_fit_is_as_the_loader_has_it(listed, lengths, context):
    lengths = [*lengths, 2]
    made = packing_statistics(np.array(lengths), context)["first_fit"]
    documents = listed([lengths])
    batch = FirstFit(documents, Shuffle(documents, 0, 1000), context).take(np.arange(made.rows))
    predicted = batch["targets"][batch["weights"] > 0]
    firsts = {text[0] for text in documents.texts}
    assert sorted(predicted) == sorted(set(range(1, sum(lengths) + 1)) - firsts)  # these rows are just an epoch
    assert made.filled == (batch["segment"] > 0).mean() and made.predicted == batch["weights"].mean()
    owners = [set(documents.owner[row[row > 0]]) for row in batch["targets"]]
    assert made.whole == np.mean([sum(number in row for row in owners) <= 1 for number in range(len(lengths))])


@given(LENGTHS, st.integers(1, 12))
def test_concatenation_is_as_the_loader_has_it(listed, lengths, context):
    lengths = [*lengths, context]
    made = packing_statistics(np.array(lengths), context)["concat"]
    documents = listed([lengths])
    rows = Concatenated(documents, Shuffle(documents, 0, 1000), context)
    batch = rows.take(np.arange(made.rows + 1))
    targets = batch["targets"][:-1]
    assert len(np.unique(targets)) == targets.size and sum(lengths) - 1 - targets.size < context
    assert targets[0, 0] in batch["targets"][-1] or made.rows * context + context > sum(lengths) - 1
    assert made.filled == 1 and abs(made.predicted - batch["weights"][:-1].mean()) * sum(lengths) <= 2 * context + 2


@given(LENGTHS)
def test_every_document_is_in_one_octave(lengths):
    found = octaves(np.array(lengths))
    for span, counts in found.items():
        inside = [length for length in lengths if length in span]
        assert counts == (len(inside), sum(inside))
    assert sum(documents for documents, _ in found.values()) == len(lengths)


def test_nothing_to_pack():
    for made in packing_statistics(np.array([], np.int32), 4).values():
        assert made.rows == 0 and 0 <= made.predicted <= made.filled <= 1
