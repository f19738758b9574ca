"""Embeddings of a corpus: in batches of few shapes, and in files from which a killed process resumes."""

import dataclasses
import functools
import hashlib
import io
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from bam_jax.data.tokenizers import Tokenizer
from bam_jax.data.tokenizers.interface import cut
from bam_jax.models.embedding import embed_texts, mean_rows
from bam_jax.models.transformer import Decoder
from bam_jax.retrieval.problem import Piece
from bam_jax.system import files, regular
from bam_jax.system.errors import UserError

TOKENS = 2**13  # per batch: enough to keep a device busy, few enough that the last batch of a piece wastes little
SHORTEST = 16
_CHECKSUM = 4  # bytes


def _average_tokens(model: Decoder, tokens: Array, length: Array) -> Array:
    return mean_rows(model.embed.embedding[...][tokens], length)  # no attention, no positions


# Functions that compute one vector per text, [B, E] float32.
POOLS: Mapping[str, Callable[[Decoder, Array, Array], Array]] = {"encoder": embed_texts, "tokens": _average_tokens}


def padded_length(tokens: int, longest: int) -> int:
    """The slots of a row: a power of two, or one and a half times one, so that few shapes are compiled.

    >>> [padded_length(n, 100) for n in (0, 17, 25, 64, 65, 97)]
    [16, 24, 32, 64, 96, 100]
    """
    slots = SHORTEST
    while slots < tokens:
        slots = slots * 4 // 3 if slots % 3 == 0 else slots * 3 // 2
    return min(slots, longest)


@dataclasses.dataclass(frozen=True)
class Reader:
    """A trained model and how it reads texts."""

    model: Decoder  # an encoder, or a decoder whose rows see what came before
    tokenizer: Tokenizer
    rows: Callable[[int], int]  # from a length to the maximum number of rows that fit into memory
    identity: str  # what embeddings depend on besides the parameters, such as the configuration


class Embedder:
    """A model as a function from texts to vectors."""

    def __init__(self, reader: Reader, pool: str = "encoder") -> None:
        self._graph, self._state = nnx.split(reader.model)
        self._model, self._rows, self._pool = reader.model, reader.rows, pool
        self.tokenizer, self.width = reader.tokenizer, reader.model.config.width
        self.digest = _digest_model(self._state, f"{reader.identity} {reader.tokenizer.hash} {pool}")

    def folder(self, root: Path, length: int) -> Path:
        return root / f"{self.digest}-{length}"

    def check_length(self, length: int) -> None:
        if self._pool == "encoder":
            self._model.check_length(length)

    def embed(self, texts: Sequence[np.ndarray], longest: int) -> np.ndarray:
        """The embeddings of texts, [texts, E] float32, finite."""
        vectors = np.empty((len(texts), self.width), np.float32)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for slots, group in itertools.groupby(order, key=lambda number: padded_length(len(texts[number]), longest)):
            for chosen in itertools.batched(group, self._batch(slots)):
                vectors[list(chosen)] = self._embed_batch([texts[number] for number in chosen], slots)
        if not np.isfinite(vectors).all():
            raise UserError("the model gives embeddings that are not finite; train it again, at a lower rate perhaps")
        return vectors

    def embed_further(self, ids: Sequence[np.ndarray], vectors: np.ndarray, before: int, length: int) -> np.ndarray:
        """The embeddings of texts cut at `length`, given those [texts, E] cut at `before`. Whole texts keep theirs."""
        longer = [number for number, text in enumerate(ids) if len(text) > before]
        vectors = vectors.copy()
        vectors[longer] = self.embed([cut(ids[number], length, self.tokenizer.eos) for number in longer], length)
        return vectors

    def _batch(self, slots: int) -> int:
        return min(self._rows(slots), max(1, TOKENS // slots))

    def _embed_batch(self, texts: Sequence[np.ndarray], slots: int) -> np.ndarray:
        rows = self._batch(slots)
        tokens, length = np.zeros((rows, slots), np.int32), np.zeros(rows, np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)], length[row] = text, len(text)
        return np.asarray(_pooled(self._graph, self._state, tokens, length, pool=self._pool))[: len(texts)]


@functools.partial(jax.jit, static_argnums=0, static_argnames="pool")
def _pooled(graph: nnx.GraphDef, state: nnx.State, tokens: Array, length: Array, *, pool: str) -> Array:
    return POOLS[pool](nnx.merge(graph, state), tokens, length)


def _digest_model(state: nnx.State, identity: str) -> str:
    digest = hashlib.sha256(identity.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:12]


def tokenise(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of texts, each with the token that ends a document, as in prepared triplets."""
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    return [np.append(ids, end).astype(np.int32) for ids in tokenizer.encode_batch(texts)]


def embed_corpus(
    embedder: Embedder, pieces: Iterable[Piece], lengths: Sequence[int], folder: Path | None
) -> Iterator[tuple[int, Piece, np.ndarray]]:
    """Embeds every piece of a corpus at every length, and writes each to a file, which the same call reuses after a kill.

    A file's path identifies the model, the length and the texts. A document shorter than the previous length keeps its embedding.
    """
    for piece in pieces:
        ids: list[np.ndarray] | None = None
        before, shorter = 0, np.zeros((len(piece.documents), embedder.width), np.float32)
        for length in lengths:
            path = None if folder is None else embedder.folder(folder, length) / f"{piece.first}-{piece.hash}.npy"
            vectors = None if path is None else _read(path, shorter.shape)
            if vectors is None:
                if ids is None:
                    ids = tokenise(embedder.tokenizer, [document.text for document in piece.documents])
                vectors = embedder.embed_further(ids, shorter, before, length)
                if path is not None:
                    _write(path, vectors)
            yield length, piece, vectors
            before, shorter = length, vectors


def _checksum(contents: bytes) -> bytes:
    """CRC-32 at the end of a file, because a number with a flipped bit can still be finite."""
    return zlib.crc32(contents).to_bytes(_CHECKSUM, "little")


def _write(path: Path, vectors: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = io.BytesIO()
    np.save(contents, vectors)
    written = contents.getvalue()
    files.write_atomically(path, written + _checksum(written))


def _read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    if not path.exists():
        return None
    written = regular.read(path, 4 * math.prod(shape) + 2**12)
    contents, checksum = written[:-_CHECKSUM], written[-_CHECKSUM:]
    if checksum != _checksum(contents):
        raise UserError(f"{path} does not hold what was written (its checksum is another); remove it")
    try:
        vectors = np.load(io.BytesIO(contents), allow_pickle=False)
    except (ValueError, EOFError):
        vectors = np.empty(0)
    if vectors.shape != shape or vectors.dtype != np.float32 or not np.isfinite(vectors).all():
        raise UserError(f"{path} holds other numbers than embeddings of {shape[0]} documents; remove it")
    return vectors
