"""Vocabulary files read by the library `tokenizers`: BERT's WordPiece, and BPE trained on your own text."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bam_jax.data.tokenizers.interface import Tokenizer, digest, encodable
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.files import read_small

JSON, TXT = "tokenizer.json", "vocab.txt"
BEGINS = ("[CLS]",)
ENDS = ("<eos>", "</s>", "<|endoftext|>", "[SEP]")
MASKS = ("<mask>", "[MASK]")


class _Subwords(Tokenizer):
    """The base class of both kinds."""

    model: ClassVar[str]  # its type in a tokenizer.json
    usual: ClassVar[tuple[str, ...]]  # names of the file in a folder

    def __init__(self, path: str) -> None:
        library = import_extra("tokenizers", f"tokenizer '{self.name}'", "tokenizers")
        given = Path(path)
        found = [given] if given.is_file() else [given / name for name in self.usual if (given / name).is_file()]
        if not path or not found:
            why = f"finds no file at {path}" if path else "needs a file"
            remedy = f"name a {' or '.join(self.usual)}, or a folder with one, as in {self.name}:PATH"
            raise UserError(f"tokenizer '{self.name}' {why}; {remedy}")
        self.path = path
        contents = read_small(found[0])
        is_json = contents.lstrip()[:1] == b"{"
        self.files = {JSON if is_json else TXT: found[0]}
        try:
            text = contents.decode()
            if is_json:
                self._check_model(json.loads(text)["model"])
            self.library = library.Tokenizer.from_str(text) if is_json else self._from_txt(text)
        except Exception as error:  # the library raises nothing narrower
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"{found[0]} is no vocabulary of tokenizer '{self.name}' ({reason}); give {' or '.join(self.usual)}"
            ) from error
        self.library.encode_special_tokens = True  # in a text, the name of a special token is ordinary text
        self.library.no_truncation()
        self.library.no_padding()
        vocabulary: dict[str, int] = self.library.get_vocab()
        if lacking := [digit for digit in string.digits if digit not in vocabulary]:
            raise UserError(f"tokenizer '{self.spec}' has no token for the digit {lacking[0]}; give another vocabulary")
        self.digits = tuple(vocabulary[digit] for digit in string.digits)
        self.size = max(vocabulary.values()) + 1
        if self.size > 2**31 - 1:
            raise UserError(
                f"tokenizer '{self.spec}' has the id {self.size - 1}, which 32 bits do not hold; give another"
            )
        self.bos, self.eos, self.mask = (
            next((vocabulary[name] for name in names if name in vocabulary), None) for names in (BEGINS, ENDS, MASKS)
        )
        name = self.library.model.unk_token
        if name is not None and name not in vocabulary:
            raise UserError(f"tokenizer '{self.spec}' lacks its own token {name!r}; give another vocabulary")
        self._unk = vocabulary[name] if name is not None else None  # not special: it occurs in text
        self.special = tuple(sorted(self._special(vocabulary) - {self._unk}))
        self.hash = digest(contents)

    def _check_model(self, model: Any) -> None:
        """Raises ValueError, KeyError or TypeError if it is not a model of this kind."""
        if model["type"] != self.model:
            raise ValueError(f"its model is {model['type']}, not {self.model}")

    def _from_txt(self, text: str) -> Any:
        raise ValueError("it is not JSON")

    def _special(self, vocabulary: dict[str, int]) -> set[int]:
        added = self.library.get_added_tokens_decoder()
        return {number for number, token in added.items() if token.special}

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        # On as many threads as the library takes (RAYON_NUM_THREADS).
        encodings = self.library.encode_batch_fast(list(map(encodable, texts)), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def out_of_vocabulary(self, text: str) -> str:
        """See `Tokenizer`: the characters that are unknown by themselves; a word with one of them is a single unknown token."""
        if self._unk is None:
            return ""
        letters = list(dict.fromkeys(text))
        found = zip(letters, self.encode_batch(letters), strict=True)
        return "".join(letter for letter, ids in found if self._unk in ids)

    def decode(self, ids: np.ndarray) -> str:
        ids = np.asarray(ids)
        return self.library.decode(ids[~np.isin(ids, self.special)].tolist())


class BertTokenizer(_Subwords):
    """BERT's WordPiece from a vocab.txt or tokenizer.json, lower case without accents unless the vocabulary has capital letters.

    A document ends with [SEP] and can begin with [CLS]. Decoding changes the spaces.
    """

    name = "bert"
    model = "WordPiece"
    usual = (JSON, TXT)

    def _from_txt(self, text: str) -> Any:
        pieces = text.splitlines()
        absent = [name for name in ("[UNK]", "[SEP]") if name not in pieces]
        if absent or len(set(pieces)) < len(pieces):
            raise ValueError(f"it has no line {absent[0]}" if absent else "a piece has two lines")
        cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
        return wordpiece(pieces, lowercase=not cased)

    def _special(self, vocabulary: dict[str, int]) -> set[int]:
        # BERT's vocab.txt also has pieces [unused...]. No text is encoded as these, because brackets are split off.
        return {
            number for piece, number in vocabulary.items() if len(piece) > 2 and piece[0] == "[" and piece[-1] == "]"
        }


def wordpiece(pieces: Sequence[str], *, lowercase: bool) -> Any:
    """A WordPiece of the library `tokenizers` that normalises and splits text as BERT's does."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    made = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made


class BPETokenizer(_Subwords):
    """Byte-level BPE from a tokenizer.json, such as `python -m bam_jax.data.train_tokenizer` makes from your own text."""

    name = "bpe"
    model = "BPE"
    usual = (JSON,)

    def _check_model(self, model: Any) -> None:
        super()._check_model(model)
        # The library panics on these instead of raising an error.
        if model.get("continuing_subword_prefix"):
            raise ValueError("its pieces have a prefix, those of bytes have none")
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            if left + right not in model["vocab"]:
                raise ValueError(f"it merges {left!r} and {right!r}, which have no id together")
