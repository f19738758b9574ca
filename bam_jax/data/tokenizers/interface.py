"""The base of every tokenizer, as the rest of the package knows it."""

import abc
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from bam_jax.system.errors import UserError


class Tokenizer(abc.ABC):
    """Text to token ids and back.

    It is pickled as its name, its path and its hash, and made again from these in the other process.
    """

    name: str
    path: str = ""
    """The file or folder that it was made from; "" for one that comes with the code."""
    files: Mapping[str, Path] = {}
    """The files of its vocabulary, by the names under which a folder of them makes it again."""
    size: int
    """Number of ids: all that `encode` gives, and the special ones, are below it."""
    digits: tuple[int, ...]
    """The ids of the ten digits, 0 first."""
    bos: int | None = None
    """The id that can begin a document; None: there is none."""
    eos: int | None = None
    """The id that ends a document; None: documents end without one."""
    mask: int | None = None
    """The id that stands for a token to be predicted (masked language models); None: there is none."""
    special: tuple[int, ...] = ()
    """Ids that no text has, in ascending order: eos and mask, and others such as pads."""
    hash: str
    """Sixteen hex digits of the vocabulary's SHA-256."""

    @property
    def spec(self) -> str:
        """The tokenizer as a configuration names it: its name, and after a colon its path if it has one."""
        return f"{self.name}:{self.path}" if self.path else self.name

    @property
    def padded(self) -> int:
        """Entries of a model's vocabulary where the configuration leaves that open: `size`, or what is customary."""
        return self.size

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The int32 ids of a text, [tokens], without special ones."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, as `encode` gives them; faster than one by one where the library is."""
        return [self.encode(text) for text in texts]

    def encode_prompt(self, text: str) -> np.ndarray:
        """The ids of what a person types: `encode`'s, and of symbols that no text has, those that `decode` writes so."""
        return self.encode(text)

    def out_of_vocabulary(self, text: str) -> str:
        """The characters of a prompt that it cannot tell from others, each once."""
        return ""

    def out_of_vocabulary_share(self, text: str) -> float:
        """The share of a text's characters that it cannot tell from others.

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
        """The identity that travels with everything made with it: spec, name, hash, size and eos, as JSON values."""
        return {"spec": self.spec, "name": self.name, "hash": self.hash, "size": self.size, "eos": self.eos}

    def check(self, wanted: str, owner: str) -> Self:
        """Itself, if it has the hash that something was made with."""
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
    """The first tokens of a document, of which the last ends it as before.

    >>> cut(np.array([5, 6, 7, 9]), 3, 9)
    array([5, 6, 9], dtype=int32)
    """
    head = np.array(ids[:length], np.int32)
    if len(ids) > length and eos is not None:
        head[-1] = eos
    return head


def encodable(text: str) -> str:
    """The text with "?" for what UTF-8 cannot hold: Python's strings may have lone surrogates, libraries refuse them.

    >>> encodable("a\\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
