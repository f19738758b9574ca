"""A WordPiece of one's own text: deterministic, as BERT's in form, and with room for every character."""

import json
import random
import subprocess
import sys

import pytest

from bam_jax.data import train_tokenizer as command
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import SPECIAL, train_wordpiece
from bam_jax.system.errors import UserError

TALE = "It was the best of times, it was the worst of times, in 1984 and 1985: it wasn't the age of wisdom. "


def words(seed):
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("abcdef\u00e91", k=rng.randint(1, 6))) for _ in range(300)) for _ in range(10)]


def test_the_same_text_gives_the_same_file(tmp_path):
    """In another process too, whose hashes of strings differ, and in whatever order its documents come."""
    texts = words(0)
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = train_wordpiece(texts, 300)
    given = [f"--source={tmp_path / 'text.jsonl'}", "--kind=bert", "--vocab=300", f"--out={tmp_path / 'vocab.txt'}"]
    script = [sys.executable, "-m", "bam_jax.data.train_tokenizer", *given]
    said = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    assert (tmp_path / "vocab.txt").read_text() == made == train_wordpiece(texts[::-1], 300)
    assert f"use it as --tokenizer=bert:{tmp_path / 'vocab.txt'}" in said
    assert made != train_wordpiece(words(1), 300)


def test_it_is_a_vocabulary_of_bert(tmp_path):
    (tmp_path / "vocab.txt").write_text(train_wordpiece([TALE, "Caf\u00e9 \u6771"], 120))
    pieces = (tmp_path / "vocab.txt").read_text().splitlines()
    assert tuple(pieces[:5]) == SPECIAL and len(set(pieces)) == len(pieces)
    made = tokenizer(f"bert:{tmp_path}")
    assert made.special == (0, 2, 3, 4) and (made.bos, made.eos, made.mask) == (2, 3, 4)
    assert made.decode(made.encode("Was the CAFE \u6771 wise?")).startswith("was the cafe \u6771 wi")
    assert "was" in pieces and len(made.encode("was was")) == 2  # what is frequent is one piece
    assert not {"##,", "##'", "##\u6771"} & set(pieces)  # these never go on a word
    assert {"##a", "##9", "0"} <= set(pieces)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kind=bert", "--vocab=20"], "a vocabulary of 20 pieces has no room for the text's characters; give [0-9]+"),
        (["--kind=brt", "--vocab=400"], "--kind=brt is unknown; did you mean 'bert'"),
    ],
)
def test_what_is_refused(tmp_path, arguments, says):
    (tmp_path / "text.txt").write_text(TALE)
    with pytest.raises(UserError, match=says):
        command.main([f"--source={tmp_path / 'text.txt'}", f"--out={tmp_path / 'vocab.txt'}", *arguments])
    assert not (tmp_path / "vocab.txt").exists()
