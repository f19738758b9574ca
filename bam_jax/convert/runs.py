"""Converts an author's weights into a run, and a run into an author's layout."""

import contextlib
import dataclasses
import json
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np
from flax import nnx, traverse_util

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.convert import LAYOUTS, gguf
from bam_jax.convert.base import Arrays, Layout, to_ours, to_theirs
from bam_jax.convert.tokenizer_files import exported_tokenizer
from bam_jax.data.tokenizers import Tokenizer, subwords
from bam_jax.data.tokenizers.copies import find_tokenizer
from bam_jax.models import transformer
from bam_jax.system import files, typed_json
from bam_jax.system.errors import UserError, nearest, shown
from bam_jax.system.extras import import_extra
from bam_jax.system.fields import Name
from bam_jax.training import checkpoint, run_folder, weights

FILES = ("model.safetensors", "model.pt", "pytorch_model.bin")
MODEL_TYPES = {
    "bam_jax": "transformers",
    "bert": "bert",
    "bloom": "bloom",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "llama": "llama",
    "mpt": "mpt",
    "qwen2": "llama",
    "qwen3": "llama",
    "smollm3": "smollm3",
}
"""The layout of each model type in a config.json of transformers. CABLE's models have the type gpt2 as well."""
_PREFIXES = ("_orig_mod.", "module.")  # of compiled and of distributed PyTorch models


@dataclasses.dataclass(frozen=True)
class Source:
    """A model to convert: its weights, and everything needed to build the same model here."""

    layout: Layout
    weights: Arrays
    config: Config
    tokenizer: Tokenizer
    notes: list[str]  # on weights that are left out or added

    def tree(self) -> dict[str, Any]:
        """Our arrays, as `transformer.split` gives them."""
        size = self.config.model.vocab
        if size and self.tokenizer.size > size:
            raise UserError(
                f"the tokenizer {self.config.data.tokenizer!r} has {self.tokenizer.size} tokens and the embedding {size} "
                "rows; fetch both from one model, or give another --config.data.tokenizer"
            )
        kinds = flat(_abstract(self.config, run_folder.vocabulary_size(self.config, self.tokenizer)))
        shapes = {name: value.shape for leaves in kinds.values() for name, value in leaves.items()}
        made = to_ours(self.layout, self.weights, self.config, shapes)
        return {
            kind: traverse_util.unflatten_dict({name: jax.numpy.asarray(made[name]) for name in leaves}, sep="/")
            for kind, leaves in kinds.items()
        }

    def decoder(self) -> transformer.Decoder:
        """The model itself."""
        tree, vocab = self.tree(), run_folder.vocabulary_size(self.config, self.tokenizer)
        graph, _ = transformer.split(_abstract(self.config, vocab))
        return nnx.merge(graph, tree["params"], tree["frozen"])

    def write(self, run: Path) -> None:
        """Write the model as a finished run."""
        checkpoint.write_model(run, self.config, self.tokenizer, self.tree())


@contextlib.contextmanager
def open_source(source: Path, overrides: Mapping[str, Any], layout: str | None = None) -> Iterator[Source]:
    """Open a model to convert, in a given layout or that of its config.json. Files of its tokenizer may be temporary."""
    name, folder = _layout(source, layout), source if source.is_dir() else source.parent
    if source.suffix != ".gguf":
        weights, described, notes = read(LAYOUTS[name], source)
        tokenizer = None if "data.tokenizer" in overrides else exported_tokenizer(folder)
        if tokenizer is not None:
            overrides = {"data.tokenizer": tokenizer.name, **overrides}
        config = describe(LAYOUTS[name], weights, described, overrides, folder)
        tokenizer = tokenizer or find_tokenizer(config.data.tokenizer, config.data.sources())
        yield Source(LAYOUTS[name], weights, config, tokenizer, notes)
        return
    if name != "llama":
        raise UserError(f"--layout={name} is not what a .gguf file holds; leave it out")
    weights, described, text = gguf.read(source)
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / subwords.JSON).write_text(text)
        config = describe(LAYOUTS[name], weights, described, {"data.tokenizer": "bpe", **overrides}, folder)
        yield Source(LAYOUTS[name], weights, config, subwords.BPETokenizer(made), [])


def _layout(source: Path, layout: str | None) -> str:
    """The name of a source's layout."""
    kind = model_type(source)
    if kind and kind not in MODEL_TYPES:
        raise UserError(
            f"--source={source} holds a model of type {kind!r}, by its config.json; there are layouts for the public "
            f"code of BAM (bam) and of CABLE (cable), and for transformers' {', '.join(MODEL_TYPES)}"
        )
    if layout in (None, "auto") and not kind:
        raise UserError(f"give the layout of --source={source}: --layout={' or '.join(LAYOUTS)}")
    return known_layout(MODEL_TYPES[kind] if layout in (None, "auto") else layout)


def known_layout(name: str) -> str:
    """The name of a layout, or a UserError."""
    if name not in LAYOUTS:
        raise UserError(f"unknown layout {name!r}; {nearest(name, LAYOUTS)}")
    return name


def is_source(path: Path) -> bool:
    """True for a .gguf file and a folder in the format of transformers."""
    with contextlib.suppress(UserError):  # for a damaged config.json; a run has one as well
        return (path.is_file() and path.suffix == ".gguf") or (path.is_dir() and bool(model_type(path)))
    return False


def read(layout: Layout, source: Path) -> tuple[Arrays, dict[str, Any], list[str]]:
    """Weights by name, float32; the contents of the layout's file beside them, {} without one; and notes."""
    paths = _find(source)
    weights: Arrays = {}
    for path in paths:
        weights |= _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    for prefix in _PREFIXES:
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    beside = paths[0].with_name(layout.file or "none")
    described = typed_json.parse(files.read_small(beside), str(beside)) if layout.file and beside.exists() else {}
    weights, notes = layout.normalise(weights, described)
    return weights, described, notes


def _find(source: Path) -> list[Path]:
    """The files of weights: the given file, the one in a given folder, or the parts that the folder's index names."""
    if source.is_dir():
        index = source / f"{FILES[0]}.index.json"
        if index.is_file():
            return _parts(index)
        found = [source / name for name in FILES if (source / name).exists()]
        if not found:
            raise UserError(f"{source} has none of {', '.join(FILES)}; name the folder or file of the weights")
        source = found[0]
    if not source.is_file():
        raise UserError(f"no weights at {source}; name a .safetensors or .pt file, or a folder with one")
    return [source]


class _Index(TypedDict):
    weight_map: dict[str, Name]


def _parts(index: Path) -> list[Path]:
    """The files of weights that are split into several, in the folder of their index."""
    again = "fetch the folder again"
    described = typed_json.check(
        typed_json.parse(files.read_small(index), str(index), again), _Index, str(index), again
    )
    found = [index.with_name(name) for name in sorted({*described["weight_map"].values()})]
    for path in found:
        if path.suffix != ".safetensors":
            raise UserError(f"{index} names {path.name}, which is no .safetensors file; {again}")
        if not path.is_file():
            raise UserError(f"{index} names {path.name}, which is not there; {again}")
    return found


def model_type(source: Path) -> str:
    """The model type in a config.json of transformers beside the weights; "" without one; llama for a .gguf file."""
    if source.suffix == ".gguf":  # its reader refuses others
        return "llama"
    path = (source if source.is_dir() else source.parent) / "config.json"
    described = (
        typed_json.parse(files.read_small(path), str(path)) if path.is_file() else {}
    )  # a link in the hub's cache
    return str(described["model_type"]) if isinstance(described, dict) and "model_type" in described else ""


def describe(
    layout: Layout, weights: Arrays, described: Mapping[str, Any], overrides: Mapping[str, Any], folder: Path
) -> Config:
    tree = layout.config(weights, described)
    tokenizer = layout.tokenizer.format(folder=folder)
    data = {"tokenizer": tokenizer, "document_mask": layout.document_mask, "task": layout.task}
    return configs.override({**tree, "data": data, "steps": 1}, overrides)


def export(layout: Layout, run: Path, folder: Path) -> None:
    run_folder.check_empty(folder)
    config, _, decoder = checkpoint.restore_model(run)
    kinds = flat(decoder)
    arrays = {name: np.asarray(value, np.float32) for leaves in kinds.values() for name, value in leaves.items()}
    theirs, described = lay_out(layout, arrays, config, decoder.embed.num_embeddings)
    library = import_extra("safetensors.numpy", "model.safetensors", "train")
    with drafted(folder) as draft:
        if described:
            files.write_atomically(draft / layout.file, json.dumps(described, indent=1) + "\n")
        files.write_atomically(draft / FILES[0], library.save(theirs))  # its `save_file` hides files from other users


def lay_out(layout: Layout, arrays: Arrays, config: Config, vocab: int) -> tuple[Arrays, dict[str, Any]]:
    """A model in the authors' layout: its arrays by name, and the contents of the layout's file, {} without one."""
    theirs = to_theirs(layout, arrays, config) | layout.constant(config)
    described = layout.args(config, vocab) if layout.args is not None else {}
    same: dict[str, Any] = {"data.tokenizer": config.data.tokenizer, "model.dtype": config.model.dtype}
    same["shared_encoding"] = config.shared_encoding  # else an array for each layer
    again = describe(layout, theirs, described, same, Path())
    if _attention(again, vocab) != _attention(config, vocab):
        raise UserError(
            f"this layout cannot say all of encoding={shown(config.encoding)}, its options, ssmax={config.ssmax!r} and how the "
            f"model attends otherwise; it holds {layout.holds}, as their authors have them: export without --layout"
        )
    return theirs, described


def flat(model: transformer.Decoder) -> dict[str, dict[str, Any]]:
    """The leaves of each kind by their paths."""
    _, tree = transformer.split(model)
    return {kind: traverse_util.flatten_dict(leaves, sep="/") for kind, leaves in tree.items()}


def _abstract(config: Config, vocab: int) -> transformer.Decoder:
    return nnx.eval_shape(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0)))


def _attention(config: Config, vocab: int) -> list[Any]:
    """Everything but the parameters that decides how a model attends."""
    model = _abstract(config, vocab)
    parts = [model.position, model.alternatives, *(stack.attention for stack in model.stacks())]
    return [None if part is None else nnx.graphdef(part) for part in parts]


def export_own(run: Path, folder: Path) -> None:
    """Write a run's newest weights and records: a run without its training state."""
    run_folder.check_empty(folder)
    step = run_folder.trained_step(run)
    _, tokenizer, decoder = checkpoint.restore_model(run, step=step)
    with drafted(folder) as draft:
        weights.write(draft, run_folder.read_config(run), tokenizer, transformer.split(decoder)[1], step)
        weights.copy_records(run, draft)


@contextlib.contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """A draft folder, whose files are moved into `folder` once all of them are written."""
    made, draft = not folder.exists(), folder / ".draft"
    run_folder.make_empty(folder)
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of a command that was killed
        draft.mkdir()
        yield draft
        # The configuration is moved last, so that a folder that can be opened as a run is complete.
        for path in sorted(draft.iterdir(), key=lambda path: path.name == run_folder.CONFIG):
            path.rename(folder / path.name)
        draft.rmdir()
    except BaseException:
        shutil.rmtree(folder if made else draft, ignore_errors=True)
        raise


def _safetensors(path: Path) -> Arrays:
    flax = import_extra("safetensors.flax", path.name, "train")  # numpy has no bfloat16
    try:
        loaded = flax.load_file(path)
    except (OSError, import_extra("safetensors", path.name, "train").SafetensorError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); fetch it again") from error
    return {name: np.asarray(value, np.float32) for name, value in loaded.items()}


def _torch(path: Path) -> Arrays:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError("a PyTorch file needs PyTorch: pip install torch, or give a .safetensors file") from error
    # In earlier versions, weights_only=True runs code that a file contains (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise UserError(f"{path}: PyTorch {torch.__version__} may run code that a file holds; pip install 'torch>=2.6'")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{path} cannot be read as PyTorch weights ({reason}); save model.state_dict()") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise UserError(f"{path} holds something other than weights by name; save model.state_dict()")
    return {name: value.float().numpy() for name, value in loaded.items()}
