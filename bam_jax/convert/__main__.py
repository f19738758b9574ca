"""Convert the authors' weights or a BERT into a run, or export a run's weights.

    python -m bam_jax.convert --run=runs/mine --export=FOLDER    # a run without its training state, to share
    python -m bam_jax.convert --run=runs/mine --export=FOLDER --layout=transformers --licence=apache-2.0

    python -m bam_jax.convert --layout=bam --source=logs/l12/bam_ssmax/version_00 --run=runs/published
    python -m bam_jax.evaluate --run=runs/published --eval=passkey --lengths=512,32768
    python -m bam_jax.convert --layout=bam --run=runs/mine --export=FOLDER
    python -m bam_jax.convert --source=bert-base-uncased --run=runs/bert      # in Hugging Face's format; also a Llama
    python -m bam_jax.convert --source=hf:HuggingFaceTB/SmolLM2-135M --run=runs/smollm    # from the hub, through its cache
    python -m bam_jax.convert --source=model.gguf --run=runs/smollm           # a Llama of llama.cpp, quantised or not

SOURCE is hf:ORGANISATION/NAME, a .gguf file, or a folder (or the file of weights in it). The folder has model.safetensors (or its
parts) or model.pt; for BAM also args.json; for models of transformers also config.json and the tokenizer's file. Without
--layout, config.json decides. A .pt or .bin file needs torch, and is read as weights only. `--config.a.b=value` sets what the
weights do not specify, such as the tokenizer. An export with a layout has model.safetensors and, for the authors' own code,
args.json for BAM, or config.json for models of transformers. With --layout=transformers it has all files that transformers needs
to open any decoder, and a model card. Without a layout, it is a folder that evaluate, heads, generate and --config.start accept
as a run.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

from collections.abc import Sequence
from typing import Any

from bam_jax import config as configs
from bam_jax.convert import LAYOUTS, hub
from bam_jax.convert.hugging_face import export_to_transformers
from bam_jax.convert.runs import export, export_own, known_layout, open_source
from bam_jax.system import files
from bam_jax.system.errors import UserError
from bam_jax.training import bundled


def main(argv: Sequence[str]) -> None:
    parser = errors.Parser(prog="python -m bam_jax.convert", description=__doc__)
    path: dict[str, Any] = {"type": files.local_path}
    parser.add_argument("--layout", help=f"whose: {', '.join(LAYOUTS)}; of --export, ours if it is left out")
    parser.add_argument(
        "--run", **path, required=True, help="the run's folder: written with --source, read with --export"
    )
    parser.add_argument("--source", **path, help="weights to convert: a folder or file, or hf:ORGANISATION/NAME")
    parser.add_argument("--export", **path, help="a new folder for the run's weights")
    parser.add_argument("--licence", help="of the weights, for the model card of --layout=transformers (unknown)")
    configs.allow_option(parser)
    arguments, overrides = configs.parse(argv, parser)
    configs.allowed(arguments.allow)
    if (arguments.source is None) == (arguments.export is None):
        raise UserError("give --source=FOLDER to convert into --run, or --export=FOLDER to convert from it")
    if arguments.licence is not None and (arguments.export is None or arguments.layout != "transformers"):
        raise UserError("--licence is that of a model card; give it with --export and --layout=transformers")
    if arguments.export is not None:
        if overrides:
            raise UserError(f"{configs.arguments(overrides)[0]} changes nothing of an export; leave it out")
        if arguments.layout == "transformers":
            export_to_transformers(bundled.find(arguments.run), arguments.export, arguments.licence)
        elif arguments.layout is None:
            export_own(bundled.find(arguments.run), arguments.export)
        else:
            export(LAYOUTS[known_layout(arguments.layout)], bundled.find(arguments.run), arguments.export)
        print(f"wrote {arguments.export}")
        return
    with open_source(hub.find(arguments.source), overrides, arguments.layout) as source:
        source.write(arguments.run)
    for note in source.notes:
        print(note)
    config = source.config
    print(f"wrote {arguments.run}: {len(source.weights)} arrays, encoding {config.encoding}, ssmax {config.ssmax}")


if __name__ == "__main__":
    errors.run(main)
