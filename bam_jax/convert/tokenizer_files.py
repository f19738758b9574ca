"""A tokenizer as transformers reads it: tokenizer.json, the format of the library `tokenizers`, and tokenizer_config.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax.data.tokenizers import (
    BertTokenizer,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    MistralTokenizer,
    Tokenizer,
)
from bam_jax.data.tokenizers.copies import FOLDER, IDENTITY, load_tokenizer
from bam_jax.data.tokenizers.gpt2 import END, FILES, byte_alphabet
from bam_jax.data.tokenizers.subwords import JSON
from bam_jax.system import files
from bam_jax.system.extras import import_extra


def tokenizer_files(tokenizer: Tokenizer, limit: int | None) -> dict[str, str]:
    """The contents of the files by their names; `limit` is the longest text in tokens, if there is a limit."""
    import_extra("tokenizers", JSON, "tokenizers")
    made = _library(tokenizer)
    names = {"bos": tokenizer.bos, "eos": tokenizer.eos, "mask": tokenizer.mask, "unk": None, "pad": tokenizer.eos}
    if made.model.unk_token is not None:
        names["unk"] = made.token_to_id(made.model.unk_token)
    if names["pad"] is None:
        names["pad"] = names["unk"]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["model_input_names"] = ["input_ids", "attention_mask"]  # a Llama takes no token types
    config |= {f"{name}_token": made.id_to_token(id) for name, id in names.items() if id is not None}
    if limit is not None:
        config["model_max_length"] = limit
    given = tokenizer.files.get(JSON)
    text = made.to_str(pretty=True) if given is None else files.read_small(given).decode()
    return {JSON: text, "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False) + "\n"}


def _library(tokenizer: Tokenizer) -> Any:
    """The tokenizer of the library `tokenizers` that gives the same ids."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library

    special = lambda *names: [AddedToken(name, special=True, normalized=False) for name in names]
    match tokenizer:
        case CharTokenizer():
            ids = {tokenizer.decode(np.array([id])): id for id in range(tokenizer.size)}
            made = Library(models.BPE(ids, [], unk_token="\ufffd"))
            made.normalizer, made.decoder = normalizers.Lowercase(), decoders.Fuse()
            made.add_special_tokens(special("<KEY>", "<END>"))
        case ByteTokenizer():
            made = Library(models.BPE(byte_alphabet() | {"<eos>": tokenizer.eos}, []))
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            made.decoder = decoders.ByteLevel()
            made.add_special_tokens(special("<eos>"))
        case GPT2Tokenizer():
            merges, encoder = (files.read_small(tokenizer.files[name]).decode() for name in FILES)
            pairs = [
                (line.split()[0], line.split()[1]) for line in merges.split("\n")[1:-1]
            ]  # the first line is the version
            made = Library(models.BPE(json.loads(encoder), pairs))
            made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
            made.add_special_tokens(special(END))
        case MistralTokenizer():
            pieces = tokenizer.pieces
            names = [pieces.id_to_piece(id) for id in range(tokenizer.size)]
            made = Library(models.BPE(*_merges(pieces, names), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
            made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
            space = decoders.Replace("\u2581", " ")
            made.decoder = decoders.Sequence(
                [space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            )
            made.add_special_tokens(special(*(names[id] for id in tokenizer.special)))
        case BertTokenizer() | BPETokenizer():
            made = Library.from_str(tokenizer.library.to_str())
            if JSON not in tokenizer.files:  # from a vocab.txt, so texts begin and end as BERT's do
                ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
                made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def _merges(pieces: Any, names: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary of a BPE of sentencepiece, and its merges: all pairs that make a piece, those of the best piece first."""
    ids = {name: id for id, name in enumerate(names)}
    plain = [id for id in range(len(names)) if not (pieces.is_control(id) or pieces.is_byte(id))]
    best = [names[id] for id in sorted(plain, key=pieces.get_score, reverse=True)]
    splits = ((name[:at], name[at:]) for name in best for at in range(1, len(name)))
    return ids, [(left, right) for left, right in splits if left in ids and right in ids]


def exported_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder that was exported from here, if the folder has a copy of one."""
    identity = folder / FOLDER / IDENTITY
    if not identity.is_file():
        return None
    return load_tokenizer(folder, files.read_json(identity)["name"])
