"""Convert the authors' weights or a BERT into a run, or export a run's weights.

    python -m bam_jax.convert --run=runs/mine --export=FOLDER    # a run without its training, to be given away

    python -m bam_jax.convert --layout=bam --source=logs/l12/bam_ssmax/version_00 --run=runs/published
    python -m bam_jax.evaluate --run=runs/published --eval=passkey --lengths=512,32768
    python -m bam_jax.convert --layout=bam --run=runs/mine --export=FOLDER
    python -m bam_jax.convert --source=bert-base-uncased --run=runs/bert      # as Hugging Face has it; also a Llama
    python -m bam_jax.convert --source=model.gguf --run=runs/smollm           # a Llama of llama.cpp, quantised or not

SOURCE is a folder with model.safetensors (or its parts) or model.pt and, of BAM, args.json, of BERT and Llama, config.json and
the tokenizer's file; or the file of weights in it; or a .gguf file. Without --layout its config.json decides. A .pt or .bin file
needs torch, and is read as weights only. `--config.a.b=value` sets what the weights do not say (the tokenizer, for one). What is
exported with a layout is model.safetensors and, of BAM, args.json, for the authors' own code, of Llama, config.json; without one
it is a folder that evaluate, heads, generate and --config.start take for a run.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bam_jax import config as configs
from bam_jax.convert import LAYOUTS, gguf
from bam_jax.convert.runs import describe, export, export_own, model_type, read, to_run
from bam_jax.data.tokenizers import subwords
from bam_jax.system import files
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import bundled

MODEL_TYPES = {"bert": "bert", "gpt2": "gpt2", "llama": "llama", "qwen2": "llama", "": ""}
"""The layout of each type in a config.json, as transformers names them. CABLE's models are of type gpt2 as well."""


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.convert", description=__doc__)
    path: dict[str, Any] = {"type": files.local_path}
    parser.add_argument("--layout", help=f"whose: {', '.join(LAYOUTS)}; of --export, ours if it is left out")
    parser.add_argument(
        "--run", **path, required=True, help="the run's folder: written with --source, read with --export"
    )
    parser.add_argument("--source", **path, help="weights to convert: a folder or file")
    parser.add_argument("--export", **path, help="a new folder for the run's weights")
    configs.allow_option(parser)
    arguments, overrides = configs.parse(argv, parser)
    configs.allowed(arguments.allow)
    if (arguments.source is None) == (arguments.export is None):
        raise UserError("give --source=FOLDER to convert into --run, or --export=FOLDER to convert from it")
    kind = model_type(arguments.source) if arguments.source is not None else ""
    if kind not in MODEL_TYPES:
        raise UserError(
            f"--source={arguments.source} holds a model of type {kind!r}, by its config.json; there are layouts for the public "
            "code of BAM (bam) and of CABLE (cable), and for transformers' bert, gpt2, llama and qwen2"
        )
    if arguments.layout in (None, "auto") and arguments.source is not None:
        arguments.layout = MODEL_TYPES[kind] or None
        if arguments.layout is None:
            raise UserError(f"give the layout of --source={arguments.source}: --layout={' or '.join(LAYOUTS)}")
    if arguments.layout is not None and arguments.layout not in LAYOUTS:
        raise UserError(f"unknown layout {arguments.layout!r}; {nearest(arguments.layout, LAYOUTS)}")
    if arguments.export is not None:
        if overrides:
            raise UserError(f"{configs.arguments(overrides)[0]} changes nothing of an export; leave it out")
        if arguments.layout is None:
            export_own(bundled.find(arguments.run), arguments.export)
        else:
            export(LAYOUTS[arguments.layout], bundled.find(arguments.run), arguments.export)
        print(f"wrote {arguments.export}")
        return
    layout = LAYOUTS[arguments.layout]
    folder = arguments.source if arguments.source.is_dir() else arguments.source.parent
    tokenizer = None
    if arguments.source.suffix == ".gguf":
        if arguments.layout != "llama":
            raise UserError(f"--layout={arguments.layout} is not what a .gguf file holds; leave it out")
        weights, described, text = gguf.read(arguments.source)
        notes: list[str] = []
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / subwords.JSON).write_text(text)
            tokenizer = subwords.BPETokenizer(made)
            config = describe(layout, weights, described, {"data.tokenizer": "bpe", **overrides}, folder)
            to_run(layout, weights, config, arguments.run, tokenizer)
    else:
        weights, described, notes = read(layout, arguments.source)
        config = describe(layout, weights, described, overrides, folder)
        to_run(layout, weights, config, arguments.run)
    for note in notes:
        print(note)
    print(f"wrote {arguments.run}: {len(weights)} arrays, encoding {config.encoding}, ssmax {config.ssmax}")


if __name__ == "__main__":
    errors.run(main)
