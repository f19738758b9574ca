"""Exports any decoder, and BERT's encoders, to a folder that Hugging Face's transformers opens."""

import importlib.resources
import json
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax.config import Config
from bam_jax.convert.base import Arrays, Layout
from bam_jax.convert.bert import BERT
from bam_jax.convert.bloom import BLOOM
from bam_jax.convert.card import model_card
from bam_jax.convert.gemma3 import GEMMA3
from bam_jax.convert.gpt2 import GPT2
from bam_jax.convert.llama import LLAMA
from bam_jax.convert.mpt import MPT
from bam_jax.convert.own import OWN
from bam_jax.convert.runs import FILES, drafted, flat, lay_out
from bam_jax.convert.smollm3 import SMOLLM3
from bam_jax.convert.tokenizer_files import tokenizer_files
from bam_jax.data.tokenizers.copies import FOLDER, IDENTITY, save_tokenizer
from bam_jax.system import files
from bam_jax.system.errors import UserError
from bam_jax.system.extras import import_extra
from bam_jax.training import checkpoint, run_folder

NATIVE = (LLAMA, SMOLLM3, GPT2, BERT, BLOOM, MPT, GEMMA3)
"""Layouts of transformers' own classes, which are preferred."""
CODE = ("modeling_bam_jax.py", "biases_bam_jax.py")


def export_to_transformers(run: Path, folder: Path, licence: str | None) -> None:
    """Write a run's newest weights, tokenizer, generation settings and model card.

    If a class of transformers computes the same, the layout is that of the class; otherwise it is ours, with a modeling file.
    """
    run_folder.check_empty(folder)
    config, tokenizer, decoder = checkpoint.restore_model(run)
    arrays = {
        name: np.asarray(value, np.float32) for leaves in flat(decoder).values() for name, value in leaves.items()
    }
    layout, theirs, described = _lay_out(arrays, config, decoder.embed.num_embeddings)
    ids = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.eos}
    generation = {name: id for name, id in ids.items() if id is not None} | {"use_cache": layout is not OWN}
    library = import_extra("safetensors.numpy", FILES[0], "train")
    count = sum(array.size for array in arrays.values())
    text = {
        "README.md": model_card(run, config, count, licence, layout is OWN),
        "generation_config.json": json.dumps(generation, indent=1) + "\n",
        layout.file: json.dumps(described | ids, indent=1) + "\n",
        **tokenizer_files(tokenizer, decoder.limit),
    }
    if layout is OWN:
        code = importlib.resources.files("bam_jax.convert") / "exported"
        text |= {name: (code / name).read_text() for name in CODE}
    with drafted(folder) as draft:
        for name, contents in text.items():
            files.write_atomically(draft / name, contents)
        save_tokenizer(tokenizer, draft)
        identity = tokenizer.identity() | {"spec": tokenizer.name}  # without a path of this machine
        files.write_atomically(draft / FOLDER / IDENTITY, json.dumps(identity, indent=1) + "\n")
        contents = library.save(theirs, metadata={"format": "pt"})
        files.write_atomically(draft / FILES[0], contents)


def _lay_out(arrays: Arrays, config: Config, vocab: int) -> tuple[Layout, Arrays, dict[str, Any]]:
    """The first layout that holds the whole model, its arrays by name, and its description."""
    for layout in NATIVE:
        try:
            return layout, *lay_out(layout, arrays, config, vocab)
        except UserError:
            continue
    return OWN, *lay_out(OWN, arrays, config, vocab)
