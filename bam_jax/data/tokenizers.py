"""Text to token ids and back."""

import hashlib
import importlib.resources
import string
from collections.abc import Callable
from typing import Protocol

import numpy as np

from bam_jax.errors import UserError, nearest


class Tokenizer(Protocol):
    """What the data pipeline and the evaluations need of a tokenizer."""

    name: str
    size: int
    """Number of ids."""
    digits: tuple[int, ...]
    """The ids of the ten digits, 0 first."""
    eos: int | None
    """The id that ends a document; None: documents end without one."""
    hash: str
    """Sixteen hex digits of the vocabulary's SHA-256."""

    def encode(self, text: str) -> np.ndarray:
        """The int32 ids of a text, [tokens], without special ones."""

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, [tokens]."""


class CharTokenizer:
    """73 symbols: lower-case letters, punctuation, space, newline, "other", ten digits, KEY and END.

    A text's digits become "other", so that digits stand in keys only.

    >>> tokenizer = CharTokenizer()
    >>> tokenizer.decode(tokenizer.encode("On 5 May"))
    'on � may'
    """

    def __init__(self) -> None:
        letters = string.ascii_lowercase + string.punctuation + " \n"
        symbols = [*letters, "\ufffd", *string.digits, "<KEY>", "<END>"]
        other = len(letters)
        self.name = "char"
        self.size = len(symbols)
        self.digits: tuple[int, ...] = tuple(range(other + 1, other + 11))
        self.key, self.end = other + 11, other + 12
        self.eos: int | None = None
        self.hash = _digest("\0".join(symbols).encode())
        self._symbols = np.array(symbols, dtype=object)
        self._ids = np.full(128, other, np.int32)
        self._ids[[ord(letter) for letter in letters]] = np.arange(len(letters))
        self._other = other

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, [characters of its lower case] int32."""
        # surrogatepass: a Python string may hold what UTF-8 cannot; that is "other" like any foreign letter.
        points = np.frombuffer(text.lower().encode("utf-32-le", "surrogatepass"), np.uint32)
        return np.where(points < 128, self._ids[np.minimum(points, 127)], np.int32(self._other))

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; "other" is the replacement character, KEY and END are bracketed."""
        return "".join(self._symbols[ids])


class ByteTokenizer:
    """The 256 bytes of UTF-8, and one id that ends a document."""

    def __init__(self) -> None:
        self.name = "byte"
        self.size = 257
        self.digits: tuple[int, ...] = tuple(b"0123456789")
        self.eos: int | None = 256
        self.hash = _digest(b"byte+eos")

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, [bytes] int32."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; the end of a document is nothing, bytes that are not UTF-8 are replaced."""
        ids = np.asarray(ids)
        return ids[ids < 256].astype(np.uint8).tobytes().decode("utf-8", "replace")


class MistralTokenizer:
    """Mistral's v3 vocabulary of 32,768 pieces, the one of BAM (paper, section 4).

    Each digit is its own token, and a text starts as if a space stood before it.

    Raises:
        UserError: the packages that bring it are not installed.
    """

    def __init__(self) -> None:
        try:
            import sentencepiece  # an extra: only runs that name this tokenizer need it

            package = importlib.resources.files("mistral_common")
        except ModuleNotFoundError as error:
            raise UserError(
                f"tokenizer 'mistral' needs the package {error.name}: pip install 'bam_jax[tokenizers]'"
            ) from error
        model = (package / "data" / "mistral_instruct_tokenizer_240323.model.v3").read_bytes()
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.name = "mistral"
        self.size: int = self._pieces.vocab_size()
        self.digits: tuple[int, ...] = tuple(self._pieces.piece_to_id(digit) for digit in string.digits)
        self.eos: int | None = self._pieces.eos_id()
        self.hash = _digest(model)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, [pieces] int32, without begin and end."""
        # Lone surrogates cannot be encoded; "?" is what str.encode puts in their place.
        return np.array(self._pieces.encode(text.encode("utf-8", "replace").decode()), np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids."""
        return self._pieces.decode(np.asarray(ids).tolist())


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "mistral": MistralTokenizer,
}


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name.

    Raises:
        UserError: unknown name, or its packages are missing.
    """
    if name not in TOKENIZERS:
        raise UserError(f"unknown tokenizer {name!r}; {nearest(name, TOKENIZERS)}")
    return TOKENIZERS[name]()


def _digest(vocabulary: bytes) -> str:
    return hashlib.sha256(vocabulary).hexdigest()[:16]
