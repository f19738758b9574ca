"""Vocabularies of one's own text: deterministic, BPE lossless with its digits apart, WordPiece as BERT's in form."""

import json
import random
import subprocess
import sys

import pytest

from bam_jax.data import train_tokenizer as command
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import SPECIAL, train_bpe, train_wordpiece

TALE = "it was the best of times, it was the worst of times, in 1984 and 1985, it was <eos> the age of wisdom. "


def words(seed):
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("abcdeé1", k=rng.randint(1, 6))) for _ in range(300)) for _ in range(10)]


@pytest.mark.parametrize(("kind", "train"), [("bpe", train_bpe), ("bert", train_wordpiece)])
def test_the_same_text_gives_the_same_file(tmp_path, capsys, kind, train):
    """In whatever order its documents come, and in another process, whose hashes of strings differ."""
    texts, out = words(0), tmp_path / {"bpe": "bpe.json", "bert": "vocab.txt"}[kind]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    made = train(texts, 400)
    options = [f"--source={tmp_path}/text.jsonl", f"--kind={kind}", "--vocab=400", "--text-field=body", f"--out={out}"]
    if kind == "bpe":
        command.main(options)
        said = capsys.readouterr().out
    else:
        line = [sys.executable, "-m", "bam_jax.data.train_tokenizer", *options]
        said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert out.read_text() == made == train(texts[::-1], 400) != train(words(1), 400)
    assert f"{out}: 400 ids, hash {tokenizer(f'{kind}:{out}').hash}; use it as --tokenizer={kind}:{out}" in said


def test_bpe_joins_what_stands_together_most_often(tmp_path):
    (tmp_path / "tokenizer.json").write_text(train_bpe([TALE], 270))
    made = tokenizer(f"bpe:{tmp_path}")
    assert made.size == 270 and (made.eos, made.mask) == (0, 1)
    assert made.decode(made.encode(" was")[:1]) == " was" and len(made.encode(TALE)) < 0.8 * len(TALE)
    assert made.encode("In 1984")[-4:].tolist() == [made.digits[digit] for digit in (1, 9, 8, 4)]
    merges = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert not any(set("0123456789") & set("".join(merge)) for merge in merges)


def test_wordpiece_is_a_vocabulary_of_bert(tmp_path):
    tale = "It was the best of times, it was the worst of times, in 1984 and 1985: it wasn't the age of wisdom. "
    (tmp_path / "vocab.txt").write_text(train_wordpiece([tale, "Caf\u00e9 \u6771"], 120))
    pieces = (tmp_path / "vocab.txt").read_text().splitlines()
    assert tuple(pieces[:5]) == SPECIAL and len(set(pieces)) == len(pieces)
    made = tokenizer(f"bert:{tmp_path}")
    assert made.special == (0, 2, 3, 4) and (made.bos, made.eos, made.mask) == (2, 3, 4)
    assert made.decode(made.encode("Was the CAFE \u6771 wise?")).startswith("was the cafe \u6771 wi")
    assert "was" in pieces and len(made.encode("was was")) == 2  # what is frequent is one piece
    assert not {"##,", "##'", "##\u6771"} & set(pieces)  # these never go on a word
    assert {"##a", "##9", "0"} <= set(pieces)


def test_a_part_of_the_text_and_too_little_of_it(tmp_path, capsys):
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in (TALE, "z z z z zz zz")))
    out = tmp_path / "new" / "part.json"
    command.main([f"--source={tmp_path / 'text.jsonl'}", "--vocab=4096", f"--characters={len(TALE)}", f"--out={out}"])
    assert out.read_text() == train_bpe([TALE], 4096) and "instead of 4096" in capsys.readouterr().out
