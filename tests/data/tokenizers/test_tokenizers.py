"""Tokenizers: round trips, sizes and what the passkeys rely on."""

import hashlib
import json
import pickle
import re
import shutil
import string
import sys
import unicodedata
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from bam_jax.data.tokenizers import TOKENIZERS, CharTokenizer, gpt2, tokenizer
from bam_jax.data.tokenizers.interface import encodable
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.system.errors import UserError

TALE = "The cat sat on the mat; the cats' mats aren't the rats', it's 1984 again and again, naïve and naïver. " * 3
PIECES = [
    *("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.digits, ",", "[", "]", "'"),
    *("cat", "##s", "the", "un", "##believ", "##able", "##ab", "mask", "a", "##a", "aa", "##aa", "cafe"),
]
WORDS = [*"cat cats the The UNBELIEVABLE unabs café aaaaa é [MASK] 1984 , '".split(), " ", "  \n"]


def symbols():
    """GPT-2's characters for bytes, as its authors define them: two lists that grow together."""
    codes = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    both = [(code, code) for code in codes]
    both += [(code, 256 + n) for n, code in enumerate(code for code in range(256) if code not in codes)]
    return {code: chr(point) for code, point in both}


SYMBOLS = symbols()


def gpt2_words(text):
    """The text's words as lists of symbols, by the pattern of the first release."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return [[SYMBOLS[byte] for byte in word.encode()] for word in regex.findall(pattern, text)]


def joined(word, pair):
    """The word with that pair of symbols made one wherever it stands."""
    out, at = [], 0
    while at < len(word):
        hit = tuple(word[at : at + 2]) == pair
        out.append("".join(pair) if hit else word[at])
        at += 1 + hit
    return out


def gpt2_files(folder, merges=40):
    """vocab.bpe and encoder.json as OpenAI wrote them, learned from the tale."""
    words, pairs = gpt2_words(TALE), []
    for _ in range(merges):
        counts = Counter(pair for word in words for pair in pairwise(word))
        pairs.append(max(sorted(counts), key=counts.__getitem__))
        words = [joined(word, pairs[-1]) for word in words]
    names = [*SYMBOLS.values(), *map("".join, pairs), "<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    lines = ["#version: 0.2", *map(" ".join, pairs), ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    return pairs, names


def slow_gpt2(text, pairs, names):
    """Of all pairs in a word, the one merged first in the vocabulary is joined, until none is left."""
    ids = []
    for word in gpt2_words(text):
        while known := [pair for pair in pairwise(word) if pair in pairs]:
            word = joined(word, min(known, key=pairs.index))
        ids += [names.index(symbol) for symbol in word]
    return ids


def slow_wordpiece(text):
    """The longest piece that fits, again and again; a word with a rest is unknown."""
    bare = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
    ids = []
    for word in regex.findall(r"\w+|[^\w\s]", bare):
        pieces, rest = [], word
        while rest:
            lead = "##" if pieces else ""
            fits = [n for n in range(len(rest), 0, -1) if lead + rest[:n] in PIECES]
            if not fits:
                pieces = ["[UNK]"]
                break
            pieces.append(lead + rest[: fits[0]])
            rest = rest[fits[0] :]
        ids += map(PIECES.index, pieces)
    return ids


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


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_another_process_gets_the_same_tokenizer(every, name):
    made = every[name]
    again = pickle.loads(pickle.dumps(made))
    assert (again.spec, again.hash, again.size, again.eos) == (made.spec, made.hash, made.size, made.eos)
    np.testing.assert_array_equal(again.encode(TALE), made.encode(TALE))
    assert len(pickle.dumps(made)) < 1000


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


@given(st.text("The cats'mn19 \n\xef\u0660.", max_size=30))
def test_gpt2_joins_pairs_in_the_order_of_its_merges(every, text):
    path = every["gpt2"].files["encoder.json"].parent
    names = list(json.loads((path / "encoder.json").read_text()))
    pairs = [tuple(line.split()) for line in (path / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]]
    assert every["gpt2"].encode(text).tolist() == slow_gpt2(text, pairs, names)


def test_gpt2_has_an_end_and_is_padded(every):
    made = every["gpt2"]
    assert (made.size, made.eos, made.padded) == (256 + 40 + 1, 256 + 40, 384)
    assert made.decode(np.array([made.eos, made.size, made.padded - 1])) == ""  # a model may say what is no id
    made.size = 50_257
    assert made.padded == 50_304


def test_gpt2_never_looks_further_than_local_files(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    says = r"reads vocab.bpe and encoder.json, but .* has no vocab.bpe; download both from https://.* gpt2:FOLDER"
    for spec in ("gpt2", f"gpt2:{tmp_path}"):
        with pytest.raises(UserError, match=says):
            tokenizer(spec)
    gpt2_files(tmp_path)
    here = tokenizer(f"gpt2:{tmp_path}")
    for name in gpt2.FILES:  # where tiktoken puts what it downloads
        (tmp_path / name).rename(tmp_path / hashlib.sha1((gpt2.SOURCE + name).encode()).hexdigest())
    cached = tokenizer("gpt2")
    assert cached.hash == here.hash and cached.spec == "gpt2"


@pytest.mark.parametrize("name", gpt2.FILES)
@pytest.mark.parametrize("break_it", [lambda text: text[: len(text) // 2], lambda text: text.upper()])
def test_broken_files_of_gpt2_are_named(tmp_path, name, break_it):
    gpt2_files(tmp_path)
    path = tmp_path / name
    path.write_text(break_it(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(UserError, match=rf"{name}.* (are not GPT-2's vocabulary|do not belong together)"):
        tokenizer(f"gpt2:{tmp_path}")


def test_files_of_gpt2_in_another_order_are_noticed(tmp_path):
    pairs, names = gpt2_files(tmp_path)
    swapped = ["#version: 0.2", *map(" ".join, [pairs[1], pairs[0], *pairs[2:]]), ""]
    ids = {name: number for number, name in enumerate(names)}
    early = ids | {names[-1]: ids[names[-2]], names[-2]: ids[names[-1]]}  # the end stands before the last merge
    far = ids | {names[-1]: 50_256}
    encoders = [("encoder.json", json.dumps(each)) for each in (early, far)]
    for name, text in (("vocab.bpe", "\n".join(swapped)), *encoders):
        gpt2_files(tmp_path)
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="do not belong together"):
            tokenizer(f"gpt2:{tmp_path}")


@given(st.lists(st.sampled_from(WORDS)).map("".join))
def test_wordpiece_takes_the_longest_piece(every, text):
    assert every["bert"].encode(text).tolist() == slow_wordpiece(text)


def test_capital_letters_in_the_vocabulary_keep_those_of_the_text(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*PIECES, "Cat", "cafe\u0301"]), encoding="utf-8")
    made = tokenizer(f"bert:{path}")
    assert made.encode("Cat cat").tolist() == [len(PIECES), PIECES.index("cat")]


def test_bert_from_its_tokenizer_json(every, tmp_path):
    library = tokenizer(every["bert"].spec)._library
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
        ("bpe:", "'bpe' needs a file; name a tokenizer.json, or a folder"),
        ("bpe:none.json", "'bpe' finds no file at none.json"),
        ("brt:x", "unknown tokenizer 'brt:x'; did you mean 'bert'"),
        ("bpe:vocab.txt", "vocab.txt is no vocabulary of tokenizer 'bpe' (it is not JSON)"),
        ("bert:tokenizer.json", "is no vocabulary of tokenizer 'bert' (its model is BPE, not WordPiece)"),
        ("bpe:prefix", "(its pieces have a prefix, those of bytes have none)"),
        ("bpe:merges", "(it merges '0' and '0', which have no id together)"),
        ("bpe:encoder.json", "encoder.json is no vocabulary of tokenizer 'bpe'"),
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
    whole = made._pieces.encode(encodable(text))
    assert made.encode(text).tolist() == whole
    assert made.encode(text).tolist() == whole, "the second time, from memory"


def test_mistral_of_long_texts(every, rng, monkeypatch):
    monkeypatch.setattr("bam_jax.data.tokenizers.mistral._PASSAGE", 40)
    made = every["mistral"]
    mixed = "".join(rng.choice(["the ", "  ", "bias", "\u2581", "\n", " of 12", " a"], 2000))
    for text in (mixed, mixed.replace(" ", "")):
        assert made.encode(text).tolist() == made._pieces.encode(text)


@pytest.mark.parametrize(
    ("spec", "package"),
    [("mistral", "sentencepiece"), ("mistral", "mistral_common"), ("gpt2", "tiktoken"), ("bpe:x", "tokenizers")],
)
def test_what_to_install(monkeypatch, spec, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs the package {package}: pip install '\.\[tokenizers\]'"):
        tokenizer(spec)
