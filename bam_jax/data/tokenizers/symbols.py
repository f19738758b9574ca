"""Tokenizers without a vocabulary to learn or to fetch: characters and bytes."""

import re
import string

import numpy as np

from bam_jax.data.tokenizers.interface import Tokenizer, digest


class CharTokenizer(Tokenizer):
    """73 symbols: lower-case letters, punctuation, space, newline, "other", ten digits, KEY and END.

    A text's digits become "other", so that digits stand in keys only.

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
        """The ids of a text, [characters of its lower case] int32."""
        # surrogatepass: a Python string may hold what UTF-8 cannot; that is "other" like any foreign letter.
        points = np.frombuffer(text.lower().encode("utf-32-le", "surrogatepass"), np.uint32)
        return np.where(points < 128, self._ids[np.minimum(points, 127)], np.int32(self._other))

    def encode_prompt(self, text: str) -> np.ndarray:
        """See `Tokenizer`: digits, <KEY> and <END> are those of keys.

        >>> tokenizer = CharTokenizer()
        >>> tokenizer.decode(tokenizer.encode_prompt("<KEY>12345<END> A"))
        '<KEY>12345<END> a'
        """
        named = {"<KEY>": self.key, "<END>": self.end} | {str(n): id for n, id in enumerate(self.digits)}
        pieces = re.split("(<KEY>|<END>|[0-9])", text)
        ids = [[named[piece]] if piece in named else self.encode(piece) for piece in pieces if piece]
        return np.concatenate(ids).astype(np.int32) if ids else np.zeros(0, np.int32)

    def out_of_vocabulary(self, text: str) -> str:
        """See `Tokenizer`: all but ASCII's lower-case letters, digits, punctuation, space and newline."""
        found = [letter for letter in dict.fromkeys(text.lower()) if letter not in string.digits]
        return "".join(letter for letter in found if self.encode(letter)[0] == self._other)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; "other" is the replacement character, KEY and END are bracketed."""
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
        """The ids of a text, [bytes] int32."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; the end of a document is nothing, bytes that are not UTF-8 are replaced."""
        ids = np.asarray(ids)
        return ids[ids < 256].astype(np.uint8).tobytes().decode("utf-8", "replace")
