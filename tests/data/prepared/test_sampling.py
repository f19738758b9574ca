"""Text that the tokenizer lacks: said in a line, refused where it is most, before anything is made of it."""

import pytest

from bam_jax.config import Config, DataConfig
from bam_jax.data import loader, prepare
from bam_jax.data.prepared import sampling
from bam_jax.data.tokenizers import BertTokenizer, tokenizer
from bam_jax.system.errors import UserError

CHAR, BYTE = tokenizer("char"), tokenizer("byte")
LATIN, CYRILLIC = "a tale of some length, 1 of 2. ", "Это ДЛИННАЯ повесть. "
MIXED = 3 * LATIN + CYRILLIC
SHARE = 17 / len(MIXED)


def opened(path, made, said):
    config = Config(context=16, batch=2, data=DataConfig(source=str(path), tokenizer=made.name))
    return loader.batches(config, made, log=said.append)


def test_a_vocabulary_of_words_has_unknown_characters_as_well(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "[SEP]", *"0123456789", *"abc", "##a"]))
    assert BertTokenizer(str(tmp_path)).out_of_vocabulary("cab Жb b7") == "Ж"


def test_a_sample_is_spread_over_all_documents_and_bounded():
    assert sampling.count_in_texts(["a" * 3 * sampling.SAMPLE], CHAR) == (0, sampling.SAMPLE)
    texts = [LATIN] * 2000 + [CYRILLIC] * 2000
    assert sampling.count_in_texts(texts, CHAR).share == pytest.approx(17 / len(LATIN + CYRILLIC), rel=0.01)
    assert sampling.count_in_texts([], CHAR) == (0, 0)


def test_training_says_them_and_refuses_what_is_mostly_unknown(tmp_path):
    path, said = tmp_path / "text.txt", []
    path.write_text(MIXED * 100)
    opened(path, CHAR, said)
    (line,) = said
    trained = 90 * len(MIXED)  # nine tenths of the text, which are trained on
    assert line.startswith(f"of {trained:,} characters of {path}, {SHARE:.0%} are unknown to the tokenizer 'char'")
    path.write_text(CYRILLIC * 100)
    with pytest.raises(UserError, match=r"81% are unknown .*; give --config.data.tokenizer=byte, which knows"):
        opened(path, CHAR, said)
    opened(path, BYTE, said)
    path.write_text(LATIN * 100)
    opened(path, CHAR, said)
    assert said == [line]


def test_preparing_says_them_and_refuses_what_is_mostly_unknown(tmp_path, capsys):
    path, out = tmp_path / "text.txt", tmp_path / "out"
    options = [f"--source={path}", f"--out={out}", "--tokenizer=char", "--workers=0"]
    path.write_text(CYRILLIC * 100)
    with pytest.raises(UserError, match=r"81% are unknown .*; give --tokenizer=byte, which knows every character"):
        prepare.main(options)
    assert not (out / "manifest.json").exists()
    path.write_text(MIXED * 100)
    prepare.main(options)
    assert capsys.readouterr().err.count(f"{SHARE:.0%} are unknown to the tokenizer 'char'") == 1
