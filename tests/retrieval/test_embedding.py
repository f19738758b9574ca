"""Embeddings in batches and files against means of rows of a table, by a model that is no more than that table."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.config import ModelConfig
from bam_jax.data.tokenizers import ByteTokenizer
from bam_jax.data.tokenizers.interface import cut
from bam_jax.retrieval import embedding
from bam_jax.retrieval.embedding import Embedder, Reader, embed_corpus, padded_length, tokenise
from bam_jax.retrieval.problem import Document, Piece
from bam_jax.system.errors import UserError

BYTE = ByteTokenizer()
LENGTHS = (5, 20, 40)
ROWS = 3


class Table(nnx.Module):
    """Token embeddings alone."""

    def __init__(self, seed=0):
        self.config = ModelConfig(width=8, heads=2)
        self.embed = nnx.Embed(BYTE.size, 8, rngs=nnx.Rngs(seed))


def reader(seed=0, identity="x"):
    return Reader(Table(seed), BYTE, lambda length: ROWS, identity)


def embed(reader, pieces, lengths, folder=None):
    return [vectors for _, _, vectors in embed_corpus(Embedder(reader, "tokens"), pieces, lengths, folder)]


@pytest.fixture
def pieces():
    texts = ["", "short", "a text of middling length", "x" * 39, "y" * 60, "twelve bytes"]
    documents = [Document(str(n), text) for n, text in enumerate(texts)]
    return [Piece(0, documents[:4]), Piece(4, documents[4:])]


def test_batches_and_pads_change_nothing(pieces):
    made = reader()
    table = np.asarray(made.model.embed.embedding[...])
    found = list(embed_corpus(Embedder(made, "tokens"), pieces, LENGTHS, None))
    assert [(length, piece.first) for length, piece, _ in found] == [(n, f) for f in (0, 4) for n in LENGTHS]
    for length, piece, vectors in found:
        ids = [cut(tokenise(BYTE, [document.text])[0], length, BYTE.eos) for document in piece.documents]
        np.testing.assert_allclose(vectors, [table[each].mean(0) for each in ids], atol=1e-6)
    empty = Embedder(made, "tokens").embed([np.zeros(0, np.int32)], 5)
    assert not empty.any(), "a text without any token"


def test_few_shapes_are_compiled(monkeypatch):
    shapes = []
    pooled = lambda graph, state, tokens, length, pool: shapes.append(tokens.shape) or jnp.zeros((len(tokens), 8))
    monkeypatch.setattr(embedding, "_pooled", pooled)
    embed(reader(), [Piece(0, [Document(str(n), "z" * (n % 200)) for n in range(300)])], (100,))
    assert {shape[1] for shape in shapes} == {16, 24, 32, 48, 64, 96, 100} and {shape[0] for shape in shapes} == {ROWS}
    assert all(n <= padded_length(n, 1000) < max(17, 1.5 * n + 1) for n in range(1, 1001))


def test_what_is_in_files_is_not_embedded_again(pieces, tmp_path, monkeypatch):
    """A kill before any of the files is written loses that one alone; the rest has the same bits."""
    made = reader()
    whole = embed(made, pieces, LENGTHS)
    inner, written = embedding.files.write_atomically, []

    def write(path, contents):
        written.append(path)
        if len(written) in (2, 4):
            raise KeyboardInterrupt
        inner(path, contents)

    monkeypatch.setattr(embedding.files, "write_atomically", write)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            embed(made, pieces, LENGTHS, tmp_path)
    again = embed(made, pieces, LENGTHS, tmp_path)
    assert len(written) == len(whole) + 2 and len(list(tmp_path.rglob("*.npy"))) == len(whole)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(embedding, "tokenise", None)
    embed(made, pieces, LENGTHS, tmp_path)


def test_another_model_or_text_has_files_of_its_own(pieces, tmp_path):
    for each in (reader(), reader(seed=1), reader(identity="y")):
        embed(each, pieces[:1], (5,), tmp_path)
    embed(reader(), [Piece(0, [Document("0", "other"), *pieces[0].documents[1:]])], (5,), tmp_path)
    assert len(list(tmp_path.rglob("*.npy"))) == 4
    assert Embedder(reader(), "tokens").digest != Embedder(reader(), "encoder").digest


def test_a_file_that_was_changed_is_refused(pieces, tmp_path):
    made = reader()
    embed(made, pieces[:1], (5,), tmp_path)
    (path,) = tmp_path.rglob("*.npy")
    whole = path.read_bytes()
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(0, len(whole), 7)]
    for contents in (b"", whole[:-1], *flipped):
        path.write_bytes(contents)
        with pytest.raises(UserError, match="does not hold what was written .*; remove it"):
            embed(made, pieces[:1], (5,), tmp_path)
    embedding._write(path, np.full((4, 8), np.nan, np.float32))
    for contents in (path.read_bytes(), b"nothing" + embedding._checksum(b"nothing")):
        path.write_bytes(contents)
        with pytest.raises(UserError, match="holds other numbers than embeddings of 4 documents; remove it"):
            embed(made, pieces[:1], (5,), tmp_path)


def test_a_model_that_gives_nan_is_refused(pieces):
    broken = reader()
    broken.model.embed.embedding[...] = broken.model.embed.embedding[...] * np.nan
    with pytest.raises(UserError, match="embeddings that are not finite"):
        embed(broken, pieces, (5,))
