"""The base class of tokenizers, and the two without a vocabulary to train or download: characters and bytes."""

import abc
import hashlib
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from bam_jax.system.errors import UserError


class Tokenizer(abc.ABC):
    """Converts text to token ids and back. It is pickled as its class, path and hash, and made again from these."""

    name: str
    path: str = ""  # the file or folder that it was made from; "" for one that comes with the code
    files: Mapping[str, Path] = {}  # of its vocabulary, by the file names that a copy of them must have
    size: int  # number of ids: those of `encode`, and the special ones, are below it
    digits: tuple[int, ...]  # the ids of the ten digits, 0 first
    bos: int | None = None  # the id that can begin a document; None: there is none
    eos: int | None = None  # the id that ends a document; None: documents end without one
    mask: int | None = None  # the id that stands for a token to be predicted; None: there is none
    special: tuple[int, ...] = ()  # ids that never occur in text, ascending: eos, mask, and others such as padding
    hash: str  # sixteen hex digits of the vocabulary's SHA-256

    @property
    def spec(self) -> str:
        """The tokenizer's name in a configuration: `name`, followed by a colon and the path if it has one."""
        return f"{self.name}:{self.path}" if self.path else self.name

    @property
    def padded(self) -> int:
        """The default size of a model's vocabulary: `size`, or a customary number."""
        return self.size

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The int32 ids of a text, [tokens], without special ones."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, the same as from `encode`; faster if the library is faster on batches."""
        return [self.encode(text) for text in texts]

    def encode_prompt(self, text: str) -> np.ndarray:
        """The ids of user input: like `encode`, but it also reads the symbols with which `decode` writes ids that no text has."""
        return self.encode(text)

    def out_of_vocabulary(self, text: str) -> str:
        """The characters of a prompt that the tokenizer cannot distinguish from others, each once."""
        return ""

    def out_of_vocabulary_share(self, text: str) -> float:
        """The share of a text's characters that the tokenizer cannot distinguish from others.

        >>> from bam_jax.data.tokenizers import tokenizer
        >>> tokenizer("char").out_of_vocabulary_share("a é"), tokenizer("byte").out_of_vocabulary_share("a é")
        (0.3333333333333333, 0.0)
        """
        counts = Counter(text)
        return sum(count for letter, count in counts.items() if self.out_of_vocabulary(letter)) / max(1, len(text))

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, [tokens]."""

    def identity(self) -> dict[str, str | int | None]:
        """The identity that is stored with everything made with the tokenizer, as JSON values."""
        return {"spec": self.spec, "name": self.name, "hash": self.hash, "size": self.size, "eos": self.eos}

    def check(self, wanted: str, owner: str) -> Self:
        """The tokenizer itself, if its hash is `wanted`; UserError otherwise."""
        if self.hash != wanted:
            raise UserError(
                f"{owner} was made with a tokenizer of hash {wanted}, but tokenizer {self.spec!r} has hash {self.hash}; "
                "give the tokenizer that it was made with"
            )
        return self

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[Any, ...]]:
        return _remake, (type(self), self.path, self.hash)


def _remake(kind: Callable[..., Tokenizer], path: str, wanted: str) -> Tokenizer:
    made = kind(path) if path else kind()
    return made.check(wanted, "what this process was given")


def digest(*parts: bytes) -> str:
    """Sixteen hex digits of the SHA-256 of a vocabulary."""
    whole = parts[0] if len(parts) == 1 else b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.sha256(whole).hexdigest()[:16]


def cut(ids: np.ndarray, length: int, eos: int | None) -> np.ndarray:
    """The first tokens of a document; if it is cut, the last of them is still its end token.

    >>> cut(np.array([5, 6, 7, 9]), 3, 9)
    array([5, 6, 9], dtype=int32)
    """
    head = np.array(ids[:length], np.int32)
    if len(ids) > length and eos is not None:
        head[-1] = eos
    return head


def encodable(text: str) -> str:
    """The text with "?" for what UTF-8 cannot encode: Python's strings may have lone surrogates, which libraries reject.

    >>> encodable("a\\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class CharTokenizer(Tokenizer):
    """73 symbols: lower-case letters, punctuation, space, newline, "other" (also for digits in a text), ten digits, KEY and END.

    >>> tokenizer = CharTokenizer()
    >>> tokenizer.decode(tokenizer.encode("On 5 May"))
    'on � may'
    """

    name = "char"

    def __init__(self) -> None:
        letters = string.ascii_lowercase + string.punctuation + " \n"
        symbols = [*letters, "\ufffd", *string.digits, "<KEY>", "<END>"]
        other = len(letters)
        self.size = len(symbols)
        self.digits = tuple(range(other + 1, other + 11))
        self.key, self.end = other + 11, other + 12
        self.special = (self.key, self.end)
        self.hash = digest("\0".join(symbols).encode())
        self._symbols = np.array(symbols, dtype=object)
        self._ids = np.full(128, other, np.int32)
        self._ids[[ord(letter) for letter in letters]] = np.arange(len(letters))
        self._other = other

    def encode(self, text: str) -> np.ndarray:
        # surrogatepass: a Python string may contain lone surrogates, which are "other", like any unknown letter.
        points = np.frombuffer(text.lower().encode("utf-32-le", "surrogatepass"), np.uint32)
        return np.where(points < 128, self._ids[np.minimum(points, 127)], np.int32(self._other))

    def encode_prompt(self, text: str) -> np.ndarray:
        """See `Tokenizer`: digits, <KEY> and <END> become the symbols of keys.

        >>> tokenizer = CharTokenizer()
        >>> tokenizer.decode(tokenizer.encode_prompt("<KEY>12345<END> A"))
        '<KEY>12345<END> a'
        """
        named = {"<KEY>": self.key, "<END>": self.end} | {str(n): id for n, id in enumerate(self.digits)}
        pieces = re.split("(<KEY>|<END>|[0-9])", text)
        ids = [[named[piece]] if piece in named else self.encode(piece) for piece in pieces if piece]
        return np.concatenate(ids).astype(np.int32) if ids else np.zeros(0, np.int32)

    def out_of_vocabulary(self, text: str) -> str:
        found = [letter for letter in dict.fromkeys(text.lower()) if letter not in string.digits]
        return "".join(letter for letter in found if self.encode(letter)[0] == self._other)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(self._symbols[ids])


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8, and one id that ends a document; the mask is the byte 255, which UTF-8 never has."""

    name = "byte"
    size = 257
    digits = tuple(b"0123456789")
    eos = 256
    mask = 255
    special = (255, 256)
    hash = digest(b"byte+eos")

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, ids: np.ndarray) -> str:
        ids = np.asarray(ids)
        return ids[ids < 256].astype(np.uint8).tobytes().decode("utf-8", "replace")
