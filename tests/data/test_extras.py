"""What needs a package of an extra names both."""

import re
import sys

import numpy as np
import pytest
import zstandard

from bam_jax.data.prepared.shards import open_split
from bam_jax.data.sources.corpus import read_texts
from bam_jax.data.tasks import ruler, ruler_words
from bam_jax.data.tokenizers import tokenizer
from bam_jax.system.errors import UserError

TEXT = ruler.Essays("x", ("word",) * 9)
USES = [
    ("sentencepiece", "tokenizers", lambda folder: tokenizer("mistral")),
    ("mistral_common", "tokenizers", lambda folder: tokenizer("mistral")),
    ("tiktoken", "tokenizers", lambda folder: tokenizer("gpt2")),
    ("tokenizers", "tokenizers", lambda folder: tokenizer("bpe:x")),
    ("tensorflow_datasets", "data", lambda folder: list(read_texts("tfds:lm1b"))),
    ("pyarrow", "data", lambda folder: list(read_texts(f"{folder}/a.parquet"))),
    ("pyarrow", "data", lambda folder: list(read_texts(f"{folder}/a.txt.zst"))),
    ("array_record.python.array_record_module", "data", lambda folder: open_split(folder, "train").read(np.array([0]))),
    ("wonderwords", "ruler", lambda folder: ruler.Sampler(tokenizer("byte"), TEXT, 0)("niah_single_1", 4096, 0)),
]


@pytest.mark.parametrize(("package", "extra", "use"), USES)
def test_what_to_install(monkeypatch, tmp_path, prepared, package, extra, use):
    prepared(tmp_path, [["text"]])
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, package, None)
    ruler_words._words.cache_clear()
    with pytest.raises(UserError, match=re.escape(f"needs the package {package}: pip install '.[{extra}]'")):
        use(tmp_path)
