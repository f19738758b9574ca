"""The tokenizer of BAM's models."""

import importlib.resources
import itertools
import re
import string
from collections.abc import Callable, Iterator

import numpy as np

from bam_jax.data.tokenizers.interface import Tokenizer, digest, encodable
from bam_jax.system.extras import import_extra

_SPACE = re.compile("(?<=[^ \u2581]) (?=[^ \u2581])")  # a single one within a text; \u2581 represents a space in pieces
_PASSAGE = 2**20  # characters after which a text is cut


class MistralTokenizer(Tokenizer):
    """Mistral's v3 vocabulary of 32,768 pieces, used by BAM (section 3 and appendix C).

    Each digit is its own token, and a text is encoded as if a space preceded it. No piece extends beyond a space, so a text has
    the ids of its words, and most words are cached.
    """

    name = "mistral"

    def __init__(self) -> None:
        sentencepiece = import_extra("sentencepiece", f"tokenizer '{self.name}'", "tokenizers")
        import_extra("mistral_common", f"tokenizer '{self.name}'", "tokenizers")
        folder = importlib.resources.files("mistral_common") / "data"
        model = (folder / "mistral_instruct_tokenizer_240323.model.v3").read_bytes()
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self.pieces.vocab_size()
        self.digits = tuple(self.pieces.piece_to_id(digit) for digit in string.digits)
        self.bos, self.eos = self.pieces.bos_id(), self.pieces.eos_id()
        self.special = tuple(number for number in range(self.size) if self.pieces.is_control(number))
        self.hash = digest(model)
        self._words = _Words(self.pieces.encode)

    def encode(self, text: str) -> np.ndarray:
        ids = [
            np.fromiter(itertools.chain.from_iterable(map(self._words.__getitem__, _words(passage))), np.int32)
            for passage in _passages(encodable(text))
        ]
        return ids[0] if len(ids) == 1 else np.concatenate(ids)

    def decode(self, ids: np.ndarray) -> str:
        return self.pieces.decode(np.asarray(ids).tolist())


class _Words(dict[str, tuple[int, ...]]):
    """A cache of the ids of words, large enough for a web corpus, within about 100 MB."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._encode(word))
        if len(word) <= 32 and len(self) < 2**18:
            self[word] = ids
        return ids


def _words(text: str) -> list[str]:
    plain = "  " not in text and "\u2581" not in text and text[:1] != " " and text[-1:] != " "
    return text.split(" ") if plain else _SPACE.split(text)  # the same, twice as fast


def _passages(text: str) -> Iterator[str]:
    """Split a long text at single spaces: all of its words at once would take ten times its size."""
    start = 0
    while len(text) - start > _PASSAGE and (space := _SPACE.search(text, start + _PASSAGE)):
        yield text[start : space.start()]
        start = space.end()
    yield text[start:]
