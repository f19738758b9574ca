"""Text that the tokenizer lacks: reported in a line, refused where it is most, before anything is made of it."""

import pytest

from bam_jax.config import Config, DataConfig
from bam_jax.data import loader, prepare
from bam_jax.data.prepared import sampling
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

CHAR = tokenizer("char")
LATIN, CYRILLIC = "a tale of some length, 1 of 2. ", "Это ДЛИННАЯ повесть. "
MIXED = 3 * LATIN + CYRILLIC
LINE = f"{17 / len(MIXED):.0%} are unknown to the tokenizer 'char'"


def test_a_sample_is_spread_over_all_documents_and_bounded():
    assert sampling.count_in_texts(["a" * 3 * sampling.SAMPLE], CHAR) == (0, sampling.SAMPLE)
    texts = [LATIN] * 2000 + [CYRILLIC] * 2000
    assert sampling.count_in_texts(texts, CHAR).share == pytest.approx(17 / len(LATIN + CYRILLIC), rel=0.01)
    assert sampling.count_in_texts([], CHAR) == (0, 0)


def test_training_and_preparing_report_it_and_refuse_what_is_mostly_unknown(tmp_path, capsys):
    path, out, said = tmp_path / "text.txt", tmp_path / "out", []
    config = Config(context=16, batch=2, data=DataConfig(source=str(path), tokenizer="char"))
    train = lambda: loader.batches(config, CHAR, log=said.append)
    make = lambda: prepare.main([f"--source={path}", f"--out={out}", "--tokenizer=char", "--workers=0"])
    path.write_text(CYRILLIC * 100)
    for use, option in ((train, "--config.data.tokenizer"), (make, "--tokenizer")):
        with pytest.raises(UserError, match=rf"81% are unknown .*; give {option}=byte, which knows every character"):
            use()
    assert not (out / "manifest.json").exists()
    path.write_text(MIXED * 100)
    train(), make()
    assert capsys.readouterr().err.count(LINE) == 1
    assert said[0].startswith(f"of {90 * len(MIXED):,} characters of {path}, {LINE}"), "of what is trained on"
    path.write_text(LATIN * 100)
    train()
    assert len(said) == 1
