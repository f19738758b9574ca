"""The tokenizer of CABLE's models."""

import hashlib
import os
import string
import tempfile
from pathlib import Path

import numpy as np

from bam_jax.data.tokenizers.interface import Tokenizer, digest, encodable
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.system.files import read_small

FILES = ("vocab.bpe", "encoder.json")
SOURCE = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
END = "<|endoftext|>"
MULTIPLE = 128  # of a model's vocabulary: 50,304 entries for 50,257 ids (CABLE's, after nanoGPT)


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-level BPE of 50,257 ids, which CABLE's models use padded to 50,304.

    The path is the folder with vocab.bpe and encoder.json; "": tiktoken's cache of downloads (TIKTOKEN_CACHE_DIR). Nothing is
    ever downloaded.
    """

    name = "gpt2"

    def __init__(self, path: str = "") -> None:
        tiktoken = import_extra("tiktoken", f"tokenizer '{self.name}'", "tokenizers")
        pattern = import_extra("tiktoken_ext.openai_public", f"tokenizer '{self.name}'", "tokenizers").r50k_pat_str
        self.path = path
        self.files = _files(path)
        merges, encoder = (read_small(self.files[name]) for name in FILES)
        ranks, self.eos = _ranks(merges, encoder, self.files)
        self._encoding = tiktoken.Encoding(
            "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: self.eos}
        )
        self.size = self._encoding.n_vocab
        self.digits = tuple(ranks[digit.encode()] for digit in string.digits)
        self.special = (self.eos,)
        self.hash = digest(merges, encoder)

    @property
    def padded(self) -> int:
        return -(-self.size // MULTIPLE) * MULTIPLE

    def encode(self, text: str) -> np.ndarray:
        # In a text, the name of the end token is ordinary text.
        return self._encoding.encode_to_numpy(encodable(text), disallowed_special=()).astype(np.int32)

    def decode(self, ids: np.ndarray) -> str:
        ids = np.asarray(ids)  # the end token and the padding of a model's vocabulary are not text
        return self._encoding.decode(ids[ids < self.eos].tolist())


def _files(path: str) -> dict[str, Path]:
    if path:
        found = {name: Path(path) / name for name in FILES}
    else:  # the names of files in tiktoken's cache
        temporary = Path(tempfile.gettempdir()) / "data-gym-cache"
        cache = Path(os.environ["TIKTOKEN_CACHE_DIR"] if "TIKTOKEN_CACHE_DIR" in os.environ else temporary)
        found = {name: cache / hashlib.sha1((SOURCE + name).encode()).hexdigest() for name in FILES}
    missing = [name for name in FILES if not found[name].is_file()]
    if missing:
        where = f"{path} has no {missing[0]}" if path else f"tiktoken's cache {cache} has no {missing[0]}"
        raise UserError(
            f"tokenizer 'gpt2' reads {FILES[0]} and {FILES[1]}, but {where}; "
            f"download both from {SOURCE} into a folder and name it: gpt2:FOLDER"
        )
    return found


def _ranks(merges: bytes, encoder: bytes, files: dict[str, Path]) -> tuple[dict[bytes, int], int]:
    """The id of each sequence of bytes, which is also its rank among the merges, and the id of the end token."""
    byte_of = byte_alphabet()
    try:
        ids: dict[str, int] = typed_json.parse(encoder, str(files[FILES[1]]))
        eos = ids.pop(END)
        pairs = [line.split() for line in merges.decode().split("\n")[1:-1]]  # the first line is the version
        ranks = {bytes(byte_of[symbol] for symbol in piece): number for piece, number in ids.items()}
        fits = all(ids[left + right] == 256 + rank for rank, (left, right) in enumerate(pairs))
        fits &= sorted(ranks.values()) == [*range(256 + len(pairs))] and {type(number) for number in ids.values()} == {
            int
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{files[FILES[0]]} and {files[FILES[1]]} are not GPT-2's vocabulary ({type(error).__name__}: {reason}); "
            f"download both again from {SOURCE}"
        ) from error
    if not fits or eos != len(ranks):
        raise UserError(
            f"{files[FILES[0]]} and {files[FILES[1]]} do not belong together: {len(pairs)} merges and 256 bytes, "
            f"but {len(ranks)} pieces or in another order; download both again from {SOURCE}"
        )
    return ranks, eos


def byte_alphabet() -> dict[str, int]:
    """The byte of each symbol in the files: printable bytes represent themselves, others follow U+00FF in order."""
    printing = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + n): byte for n, byte in enumerate(others)}
