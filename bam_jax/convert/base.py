"""A layout of weights: the mapping between an author's arrays and ours."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from bam_jax.config import Config
from bam_jax.system.errors import UserError, nearest

Arrays = dict[str, np.ndarray]
ENCODING = "layers/attention/encoding/"
Count = Annotated[int, Meta(ge=1, lt=2**31)]


@dataclasses.dataclass(frozen=True)
class Form:
    """The conversions of one array: (array, config) -> array, from theirs to ours and back."""

    ours: Callable[[np.ndarray, Config], np.ndarray]
    theirs: Callable[[np.ndarray, Config], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ArrayMapping:
    """One array of ours and its place in theirs."""

    ours: str  # its path in the parameters, with layers stacked along the first axis
    theirs: str  # its name, with {n} for the layer; without {n}, all layers share it
    form: Form
    part: int = 0  # which of `parts` equal parts of theirs along `axis`
    parts: int = 1
    axis: int = 0
    groups: int = 1  # number of groups along that axis, each with all parts
    layers: Sequence[int] | None = None  # layers whose arrays are stacked; None: all

    def names(self, config: Config) -> list[str]:
        layers = range(config.model.layers) if self.layers is None else self.layers
        return [self.theirs.format(n=n) for n in layers] if "{n}" in self.theirs else [self.theirs]


def _pairs(config: Config) -> np.ndarray:
    """The order of a head's outputs: they rotate pairs of neighbours, we rotate pairs from the two halves."""
    return np.arange(config.model.head_width).reshape(-1, 2).T.ravel()


def _reorder_heads(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1, len(order))[..., order].reshape(x.shape)


def _scale(config: Config) -> float:
    """The divisor of our scores, which theirs lack."""
    return math.sqrt(config.model.head_width)


SAME = Form(lambda x, config: x, lambda x, config: x)
LINEAR = Form(lambda x, config: x.T, lambda x, config: x.T)
HEADS = Form(lambda x, config: x.reshape(-1), lambda x, config: x.reshape(1, -1, 1, 1))
ROTARY = Form(
    lambda x, config: _reorder_heads(x.T, _pairs(config)),
    lambda x, config: _reorder_heads(x, np.argsort(_pairs(config))).T,
)
QUERY = Form(lambda x, config: x.T * _scale(config), lambda x, config: x.T / _scale(config))
QUERY_BIAS = Form(lambda x, config: x * _scale(config), lambda x, config: x / _scale(config))


def linear_entries(ours: str, theirs: str, form: Form = LINEAR, bias: Form = SAME, **part: Any) -> list[ArrayMapping]:
    """The entries of a linear map with a bias, by PyTorch's names."""
    return [
        ArrayMapping(f"{ours}/kernel", f"{theirs}.weight", form, **part),
        ArrayMapping(f"{ours}/bias", f"{theirs}.bias", bias, **part),
    ]


def norm_entries(ours: str, theirs: str) -> list[ArrayMapping]:
    """The entries of a LayerNorm, by PyTorch's names."""
    return [
        ArrayMapping(f"{ours}/scale", f"{theirs}.weight", SAME),
        ArrayMapping(f"{ours}/bias", f"{theirs}.bias", SAME),
    ]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout of weights."""

    entries: Callable[[Config, bool], Sequence[ArrayMapping]]  # (config, whether all layers share one prior)
    config: Callable[[Arrays, Mapping[str, Any]], dict[str, Any]]  # (weights, their description) -> configuration
    holds: str  # the encodings of ours that it supports
    tokenizer: str  # of the published models; {folder} is that of the weights
    document_mask: bool  # whether attention stayed within documents in training
    task: str = "packed"  # that they were trained on
    file: str = ""  # the JSON file beside the weights that describes them, if there is one
    args: Callable[[Config, int], dict[str, Any]] | None = None  # (config, vocabulary) -> its contents in exports
    shared: str = ""  # the name of an array that is present if all layers share one prior
    # (weights, their description) -> those that are used, by the names in `entries`, and notes about the others
    normalise: Callable[[Arrays, Mapping[str, Any]], tuple[Arrays, list[str]]] = lambda weights, described: (
        weights,
        [],
    )
    constant: Callable[[Config], Arrays] = lambda config: {}  # additional arrays of theirs in exports


def sizes(config: Config, vocab: int) -> dict[str, Any]:
    """The sizes of a decoder in a config.json of transformers, by the names that most types have there."""
    model = config.model
    return {
        "vocab_size": vocab,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.head_width,
        "intermediate_size": model.hidden,
        "max_position_embeddings": config.context,
        "torch_dtype": "float32",
    }


def to_ours(layout: Layout, weights: Arrays, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Our arrays from theirs; UserError unless every array of both is used."""
    entries = layout.entries(config, layout.shared in weights)
    known = {name for entry in entries for name in entry.names(config)}
    for name in weights:
        if name not in known:
            raise UserError(f"the weights hold {name!r}, which this layout does not know; {nearest(name, known)}")
    made: Arrays = {}
    for entry in entries:
        names = entry.names(config)
        missing = [name for name in names if name not in weights]
        if missing and entry.ours in made:  # a tied weight that is stored once
            continue
        if missing:
            raise UserError(f"the weights lack {missing[0]!r} ({len(weights)} arrays are there)")
        if entry.ours not in shapes:
            raise UserError(
                f"the model has no {entry.ours!r} for {names[0]!r}; give the encoding that it was trained with"
            )
        arrays = [_take_part(entry, weights[name], config) for name in names]
        if "{n}" in entry.theirs:
            array = np.stack(arrays)
        elif entry.ours.startswith("layers/") and not config.shared_encoding:
            array = np.stack(arrays * config.model.layers)
        else:
            (array,) = arrays
        if array.shape != shapes[entry.ours]:
            raise UserError(f"{names[0]!r} makes {entry.ours!r} {array.shape}, and the model's is {shapes[entry.ours]}")
        if entry.ours in made and not np.array_equal(made[entry.ours], array):
            raise UserError(f"{names[0]!r} should be the same as another array for {entry.ours!r}, and is not")
        made[entry.ours] = array
    for name in shapes:
        if name not in made:
            raise UserError(
                f"the weights have nothing for the model's {name!r}; give the encoding that they were trained with"
            )
    return made


def to_theirs(layout: Layout, arrays: Arrays, config: Config) -> Arrays:
    entries = layout.entries(config, config.shared_encoding)
    known = {entry.ours for entry in entries}
    for name in arrays:
        if name not in known:
            raise UserError(
                f"this layout has no place for {name!r} of the encoding {config.encoding!r}; it holds {layout.holds}"
            )
    parts: dict[str, list[np.ndarray]] = {name: [] for entry in entries for name in entry.names(config)}
    entry_of = {name: entry for entry in entries for name in entry.names(config)}
    for entry in entries:
        if entry.ours not in arrays:
            raise UserError(f"the model has no {entry.ours!r} for {entry.theirs!r}; it cannot be laid out so")
        ours, names = arrays[entry.ours], entry.names(config)
        one_for_all = config.shared_encoding and entry.ours.startswith(ENCODING)
        layers = ours if "{n}" in entry.theirs and not one_for_all else [ours] * len(names)
        for name, array in zip(names, layers, strict=True):
            parts[name].append(entry.form.theirs(array, config))
    return {name: _join_parts(entry_of[name], own) for name, own in parts.items()}


def _take_part(entry: ArrayMapping, whole: np.ndarray, config: Config) -> np.ndarray:
    whole = np.asarray(whole, np.float32)
    count = entry.groups * entry.parts
    if count == 1:  # a scalar has no axis to split
        return entry.form.ours(whole, config)
    if whole.ndim <= entry.axis or whole.shape[entry.axis] % count:
        raise UserError(f"{entry.theirs!r} {whole.shape} does not divide into {count} parts")
    own = np.split(whole, count, entry.axis)[entry.part :: entry.parts]
    return entry.form.ours(np.concatenate(own, entry.axis), config)


def _join_parts(entry: ArrayMapping, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The inverse of `_take_part` of all parts."""
    if len(parts) == 1:
        return np.array(parts[0], order="C")
    groups = zip(*(np.split(part, entry.groups, entry.axis) for part in parts), strict=True)
    return np.ascontiguousarray(np.concatenate([piece for group in groups for piece in group], entry.axis))
