"""The tokenizer of BAM's models."""

import importlib.resources
import string
from collections.abc import Sequence

import numpy as np

from bam_jax.data.tokenizers.base import Tokenizer, digest, encodable, need


class MistralTokenizer(Tokenizer):
    """Mistral's v3 vocabulary of 32,768 pieces, the one of BAM (paper, section 4).

    Each digit is its own token, and a text starts as if a space stood before it.

    Raises:
        UserError: the packages that bring it are not installed.
    """

    name = "mistral"

    def __init__(self) -> None:
        sentencepiece = need("sentencepiece", self.name)
        need("mistral_common", self.name)
        folder = importlib.resources.files("mistral_common") / "data"
        model = (folder / "mistral_instruct_tokenizer_240323.model.v3").read_bytes()
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._pieces.vocab_size()
        self.digits = tuple(self._pieces.piece_to_id(digit) for digit in string.digits)
        self.eos = self._pieces.eos_id()
        self.special = tuple(number for number in range(self.size) if self._pieces.is_control(number))
        self.hash = digest(model)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, [pieces] int32, without begin and end."""
        return np.array(self._pieces.encode(encodable(text)), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, on one thread."""
        return [np.array(ids, np.int32) for ids in self._pieces.encode(list(map(encodable, texts)), num_threads=1)]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids."""
        return self._pieces.decode(np.asarray(ids).tolist())
