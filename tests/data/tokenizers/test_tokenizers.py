"""Tokenizers: round trips, sizes, what the passkeys rely on, and vocabularies trained on one's own text."""

import hashlib
import json
import pickle
import random
import re
import shutil
import string
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from bam_jax.data import train_tokenizer
from bam_jax.data.tokenizers import TOKENIZERS, CharTokenizer, gpt2, tokenizer
from bam_jax.data.tokenizers.interface import encodable
from bam_jax.data.tokenizers.training import SPECIAL, train_bpe, train_wordpiece
from bam_jax.system.errors import UserError

TALE = "The cat sat on the mat; the cats' mats aren't the rats', it's 1984 again and again, naïve and naïver. " * 3
TIMES = "it was the best of times, it was the worst of times, in 1984 and 1985, it was <eos> the age of wisdom. "
PIECES = [
    *("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.digits, ",", "[", "]", "'"),
    *("cat", "##s", "the", "un", "##believ", "##able", "##ab", "mask", "a", "##a", "aa", "##aa", "cafe"),
]
WORDS = [*"cat cats the The UNBELIEVABLE unabs café aaaaa é [MASK] 1984 , '".split(), " ", "  \n"]


def gpt2_files(folder):
    """vocab.bpe and encoder.json as OpenAI wrote them, and a library that reads GPT-2's vocabularies on its own."""
    made = ByteLevelBPETokenizer()
    made.train_from_iterator([TALE], vocab_size=256 + 40, min_frequency=1, show_progress=False)
    merges = json.loads(made.to_str())["model"]["merges"]
    (folder / "encoder.json").write_text(json.dumps(made.get_vocab() | {"<|endoftext|>": 256 + 40}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small vocabularies in the very formats of the real files."""
    path = tmp_path_factory.mktemp("vocabularies")
    gpt2_files(path)
    (path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (path / "tokenizer.json").write_text(train_bpe([TALE], 300), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def every(folder):
    paths = {"gpt2": f":{folder}", "bert": f":{folder / 'vocab.txt'}", "bpe": f":{folder / 'tokenizer.json'}"}
    made = {name: tokenizer(name) for name in ("byte", "char", "mistral")}
    return made | {name: tokenizer(name + path) for name, path in paths.items()}


@given(st.text())
def test_characters_come_back_in_lower_case_and_never_give_a_keys_symbols(text):
    made = CharTokenizer()
    known = set(string.ascii_letters + string.punctuation + " \n")
    lower = text.lower()
    assert made.decode(made.encode(text)) == "".join(each if each in known else "\ufffd" for each in lower)
    ids = made.encode(text + "0123456789\ud800\u20ac")
    assert ids.dtype == np.int32 and len(ids) == len(text.lower()) + 12
    assert ids.min() >= 0 and not np.isin(ids, [*made.digits, made.key, made.end]).any()


@given(st.data())
def test_text_comes_back_whatever_it_is(every, data):
    """Exactly, from those that know every byte; and no text gives a special id, not even its name."""
    name = data.draw(st.sampled_from(["byte", "gpt2", "bpe"]))
    text = data.draw(st.text() | st.text(" \n0a\xe9\u0660'") | st.sampled_from(["<eos>", "<|endoftext|>", "<mask>"]))
    made = every[name]
    ids = made.encode(text)
    assert ids.dtype == np.int32 and made.decode(ids) == text and not np.isin(ids, made.special).any()


@given(st.data())
def test_batches_are_texts_one_by_one(every, data):
    made = every[data.draw(st.sampled_from(sorted(every)))]
    texts = data.draw(st.lists(st.text(" \n0a\xe9,\ud800") | st.text(), max_size=4))
    batch = made.encode_batch(texts)
    assert len(batch) == len(texts)
    for ids, text in zip(batch, texts, strict=True):
        assert ids.dtype == np.int32 and ids.ndim == 1
        np.testing.assert_array_equal(ids, made.encode(text))
        assert not len(ids) or (ids.min() >= 0 and ids.max() < made.size and not np.isin(ids, made.special).any())


def test_identities_are_fixed(every):
    """Checkpoints carry the hashes."""
    assert every.keys() == TOKENIZERS.keys()
    assert [every[name].hash for name in ("byte", "char")] == ["bb768daab32efae8", "f2bad368ca941aaf"]
    assert [every[name].size for name in ("char", "byte", "mistral")] == [73, 257, 32_768]
    bert = every["bert"]
    assert every["mistral"].eos == 2 and (bert.size, bert.eos, bert.mask) == (len(PIECES), 4, 5)
    assert bert.out_of_vocabulary("a Ж7, Ж") == "Ж"
    assert bert.special == (0, 1, 3, 4, 5) and bert.decode(bert.encode("Unbelievable cats")) == "unbelievable cats"


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_what_every_tokenizer_keeps(every, name):
    made = every[name]
    assert made.name == name and made.padded >= made.size and len(made.encode("")) == 0
    assert {made.eos, made.mask} <= {None, *made.special}
    assert list(made.special) == sorted(set(made.special)) and max(made.special, default=0) < made.size
    assert made.decode(np.array(made.special)) in ("", "<KEY><END>", "\ufffd")
    assert made.decode(np.array(made.digits)).replace(" ", "") == string.digits
    lone = {"char": "a\ufffdb", "byte": "a\ufffd\ufffd\ufffdb", "bert": "a [UNK] [UNK]"}  # UTF-8 has no such thing
    assert made.decode(made.encode("a\ud800b")) == (lone[name] if name in lone else "a?b")
    again = pickle.loads(sent := pickle.dumps(made))
    assert (again.spec, again.hash, again.size, again.eos) == (made.spec, made.hash, made.size, made.eos)
    assert again.encode(TALE).tolist() == made.encode(TALE).tolist() and len(sent) < 1000


def test_another_process_refuses_a_file_that_changed(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe([TALE], 300))
    sent = pickle.dumps(tokenizer(f"bpe:{path}"))
    path.write_text(train_bpe([TALE], 290))
    with pytest.raises(UserError, match=r"was made with a tokenizer of hash \w+, but tokenizer 'bpe:.*' has hash"):
        pickle.loads(sent)


def test_a_folder_of_its_files_makes_it_again(every, tmp_path):
    for name in ("gpt2", "bert", "bpe"):
        (tmp_path / name).mkdir()
        for usual, path in every[name].files.items():
            shutil.copy(path, tmp_path / name / usual)
        assert tokenizer(f"{name}:{tmp_path / name}").hash == every[name].hash
    assert not any(every[name].files for name in ("byte", "char", "mistral"))


@given(st.text("The cats'mn19 \n\xef\u0660.", max_size=30) | st.text(max_size=30))
def test_gpt2_joins_pairs_in_the_order_of_its_merges(every, text):
    files = every["gpt2"].files
    merges = [tuple(line.split()) for line in files["vocab.bpe"].read_text(encoding="utf-8").split("\n")[1:-1]]
    other = ByteLevelBPETokenizer(json.loads(files["encoder.json"].read_text()), merges)
    assert every["gpt2"].encode(text).tolist() == other.encode(text).ids


def test_gpt2_has_an_end_and_is_padded(every):
    made = every["gpt2"]
    assert (made.size, made.eos, made.padded) == (256 + 40 + 1, 256 + 40, 384)
    assert made.decode(np.array([made.eos, made.size, made.padded - 1])) == ""  # a model may say what is no id
    made.size = 50_257
    assert made.padded == 50_304


def test_gpt2_never_looks_further_than_local_files(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    says = r"has no vocab.bpe; download both from https://.* gpt2:FOLDER"
    for spec in ("gpt2", f"gpt2:{tmp_path}"):
        with pytest.raises(UserError, match=says):
            tokenizer(spec)
    gpt2_files(tmp_path)
    here = tokenizer(f"gpt2:{tmp_path}")
    for name in gpt2.FILES:  # where tiktoken puts what it downloads
        (tmp_path / name).rename(tmp_path / hashlib.sha1((gpt2.SOURCE + name).encode()).hexdigest())
    cached = tokenizer("gpt2")
    assert cached.hash == here.hash and cached.spec == "gpt2"


def test_files_of_gpt2_that_are_broken_or_do_not_belong_together_are_named(tmp_path):
    ids = gpt2_files(tmp_path).get_vocab()
    merges, encoder = ((tmp_path / name).read_text(encoding="utf-8") for name in gpt2.FILES)
    first, second, *rest = merges.splitlines()[1:]
    last, other = max(ids, key=ids.get), "do not belong together"
    no_end = ids | {last: 256 + 40, "<|endoftext|>": ids[last]}  # the end stands before the last merge
    for name, text, says in (
        *((name, text[: len(text) // 2], name) for name, text in zip(gpt2.FILES, (merges, encoder), strict=True)),
        ("encoder.json", encoder.upper(), "are not GPT-2's vocabulary"),
        ("vocab.bpe", "\n".join(["#version: 0.2", second, first, *rest, ""]), other),
        ("encoder.json", json.dumps(no_end), other),
        ("encoder.json", json.dumps(ids | {"<|endoftext|>": 50_256}), other),
    ):
        gpt2_files(tmp_path)
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=says):
            tokenizer(f"gpt2:{tmp_path}")


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4)).map("".join))
def test_wordpiece_is_that_of_bert(every, text):
    other = BertWordPieceTokenizer({piece: number for number, piece in enumerate(PIECES)})
    other._tokenizer.encode_special_tokens = True  # the name of a special token in a text is text
    assert every["bert"].encode(text).tolist() == other.encode(encodable(text), add_special_tokens=False).ids


def test_capital_letters_in_the_vocabulary_keep_those_of_the_text(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*PIECES, "Cat", "cafe\u0301"]), encoding="utf-8")
    made = tokenizer(f"bert:{path}")
    assert made.encode("Cat cat").tolist() == [len(PIECES), PIECES.index("cat")]


def test_bert_from_its_tokenizer_json(every, tmp_path):
    library = tokenizer(every["bert"].spec).library
    library.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    path = tmp_path / "any name"
    path.write_text(library.to_str(), encoding="utf-8")
    made = tokenizer(f"bert:{path}")
    text = "".join(WORDS)
    np.testing.assert_array_equal(made.encode(text), every["bert"].encode(text))
    assert (made.eos, made.mask, made.special) == (4, 5, (0, 1, 3, 4, 5))
    assert made.hash != every["bert"].hash and list(made.files) == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mistral:", "mistral takes no path"),
        ("bpe:none.json", "'bpe' finds no file at none.json"),
        ("brt:x", "unknown tokenizer 'brt:x'; did you mean 'bert'"),
        ("bpe:vocab.txt", "vocab.txt is no vocabulary of tokenizer 'bpe' (it is not JSON)"),
        ("bert:tokenizer.json", "is no vocabulary of tokenizer 'bert' (its model is BPE, not WordPiece)"),
        ("bpe:prefix", "(its pieces have a prefix, those of bytes have none)"),
        ("bpe:merges", "(it merges '0' and '0', which have no id together)"),
        ("bert:twice", "(a piece has two lines)"),
        ("bert:other", "(it has no line [SEP])"),
        ("bert:no_digits", "has no token for the digit 0"),
        ("bert:latin", "latin is no vocabulary"),
    ],
)
def test_what_is_refused(folder, monkeypatch, spec, says):
    monkeypatch.chdir(folder)
    (folder / "twice").write_text("\n".join([*PIECES, "cat"]))
    (folder / "other").write_text("[UNK]\na")
    (folder / "no_digits").write_text("[UNK]\n[SEP]\na")
    (folder / "latin").write_bytes(b"[UNK]\n[SEP]\n\xe9")
    for name, changes in ("prefix", {"continuing_subword_prefix": "##"}), ("merges", {"merges": [["0", "0"]]}):
        tree = json.loads((folder / "tokenizer.json").read_text())
        (folder / name).write_text(json.dumps(tree | {"model": tree["model"] | changes}))
    with pytest.raises(UserError, match=re.escape(says)) as error:
        tokenizer(spec)
    assert "\n" not in str(error.value)


@given(st.text(st.sampled_from(" \u2581ab\n1\t.é<s>")) | st.text())
def test_mistral_by_words_is_mistral(every, text):
    """Against sentencepiece on the whole text, spaces in every place, also those that a text brings as sentencepiece's own."""
    made = every["mistral"]
    whole = made.pieces.encode(encodable(text))
    assert made.encode(text).tolist() == whole
    assert made.encode(text).tolist() == whole, "the second time, from memory"


def test_mistral_of_long_texts(every, rng, monkeypatch):
    monkeypatch.setattr("bam_jax.data.tokenizers.mistral._PASSAGE", 40)
    made = every["mistral"]
    mixed = "".join(rng.choice(["the ", "  ", "bias", "\u2581", "\n", " of 12", " a"], 2000))
    for text in (mixed, mixed.replace(" ", "")):
        assert made.encode(text).tolist() == made.pieces.encode(text)


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
        train_tokenizer.main(options)
        said = capsys.readouterr().out
    else:
        line = [sys.executable, "-m", "bam_jax.data.train_tokenizer", *options]
        said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert out.read_text() == made == train(texts[::-1], 400) != train(words(1), 400)
    assert f"{out}: 400 ids, hash {tokenizer(f'{kind}:{out}').hash}; use it as --tokenizer={kind}:{out}" in said


def test_bpe_joins_what_stands_together_most_often(tmp_path):
    (tmp_path / "tokenizer.json").write_text(train_bpe([TIMES], 270))
    made = tokenizer(f"bpe:{tmp_path}")
    assert made.size == 270 and (made.eos, made.mask) == (0, 1)
    assert made.decode(made.encode(" was")[:1]) == " was" and len(made.encode(TIMES)) < 0.8 * len(TIMES)
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
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in (TIMES, "z z z z zz zz")))
    out = tmp_path / "new" / "part.json"
    train_tokenizer.main(
        [f"--source={tmp_path / 'text.jsonl'}", "--vocab=4096", f"--characters={len(TIMES)}", f"--out={out}"]
    )
    assert out.read_text() == train_bpe([TIMES], 4096) and "instead of 4096" in capsys.readouterr().out
