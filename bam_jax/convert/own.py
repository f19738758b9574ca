"""Our own layout within Hugging Face's format: any of our decoders, read by the modeling file that is exported with it."""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from flax import nnx, traverse_util

from bam_jax import biases
from bam_jax.config import Config, to_dict
from bam_jax.convert.base import LINEAR, SAME, ArrayMapping, Arrays, Layout, sizes
from bam_jax.encodings import (
    CABLENW,
    ENCODINGS,
    FIRE,
    NAPE,
    T5,
    ALiBi,
    Dims,
    Encoding,
    LearnedALiBi,
    RoPE,
    Sandwich,
    Sinusoidal,
    Spec,
    T5Distance,
    sharpened,
)
from bam_jax.models import transformer
from bam_jax.models.pattern import specs
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, shown

NAME = "bam_jax"
FILE = "config.json"
FIELDS = (
    "encoding",
    "encoding_options",
    "ssmax",
    "log_temperature",
    "log_temperature_start",
    "shared_encoding",
    "model",
    "context",
)
"""Fields of the configuration that decide what the model computes."""
WITHOUT = (
    *("dape_kerple", "dape_cable", "cope", "shaw", "grape_ap", "path"),
    *("inkling", "bam_mixture", "grape_a", "xpos", "pope", "selective_rope"),
)
"""Encodings that the modeling file lacks: those with whole rows of scores, with profiles mixed by the query, with gated slopes,
or with a `turn` other than RoPE's."""


class _Described(TypedDict):
    model_type: str
    bam_jax: dict[str, Any]


def _decoder(config: Config) -> transformer.Decoder:
    """The shapes of the model, whose vocabulary does not matter here."""
    return nnx.eval_shape(lambda: transformer.build(config, vocab=config.model.vocab or 1, rngs=nnx.Rngs(0)))


def _names(path: tuple[str, ...]) -> str:
    """The name in the modeling file of a parameter that does not belong to an encoding."""
    *where, leaf = path
    if where[-1:] == ["ssmax"]:
        return ".".join([*where[:-1], "ssmax_scale"])
    renamed = {"kernel": "weight", "embedding": "weight", "scale": "weight"}
    return ".".join([*where, renamed.get(leaf, leaf)])


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    decoder = _decoder(config)
    owned: dict[int, list[int]] = {}
    for layer, (place, _) in enumerate(decoder.order()):
        owned.setdefault(decoder.stack_of[place], []).append(layer)
    _, tree = transformer.split(decoder)
    entries = []
    for ours in (path for kind in tree.values() for path in traverse_util.flatten_dict(kind)):
        form = LINEAR if ours[-1] == "kernel" and "encoding" not in ours else SAME
        if ours[0] != "layers":
            entries.append(ArrayMapping("/".join(ours), _names(ours), form))
            continue
        stack, rest = (int(ours[1]), ours[2:]) if len(owned) > 1 else (0, ours[1:])
        if rest[:2] == ("attention", "encoding"):
            theirs = f"encodings.{stack if config.shared_encoding else '{n}'}.{'_'.join(rest[2:])}"
        else:
            theirs = "layers.{n}." + _names(rest)
        entries.append(ArrayMapping("/".join(ours), theirs, form, layers=owned[stack]))
    return entries


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, FILE, "export the run again")
    given: dict[str, Any] = described[NAME]
    if unknown := given.keys() - {*FIELDS}:
        raise UserError(f"{FILE} has the field {shown(min(unknown))} in '{NAME}', which is none; export the run again")
    return given


def _constants(encoding: Encoding, dims: Dims) -> dict[str, Any]:
    """The constants, besides its parameters, in an encoding's bias."""
    match encoding:
        case LearnedALiBi():
            return {"factor": encoding.factor}
        case ALiBi():
            slopes = biases.alibi_slopes(dims.heads).astype(np.float32) / np.float32(encoding.factor)
            return {"slope": slopes.tolist()}
        case NAPE():
            return {"slope": [*encoding.slopes]}
        case Sandwich():
            rates = encoding.base ** (-2 * np.arange(encoding.width // 2) / encoding.width)
            return {"rates": rates.tolist(), "compression": biases.sandwich_compression(dims.heads).tolist()}
        case FIRE():
            return {"length": encoding.length}
        case T5():
            return {"starts": [float(start) for start in encoding.starts]}
        case T5Distance():
            return {"starts": [float(start) for start in range(encoding.table.shape[-1])]}
        case CABLENW():
            return {"gate": encoding.gate}
    return {}


def _place(spec: Spec, name: str, config: Config) -> dict[str, Any]:
    """The description, for the modeling file, of the layers at one place of the pattern."""
    dims = Dims(config.model.heads, config.model.width, config.context, head_dim=config.model.head_dim)
    encoding = nnx.eval_shape(lambda: spec.build(dims, nnx.Rngs(0)))
    _, tree = transformer.split(encoding)
    found = {
        kind: {"_".join(path): x.shape for path, x in traverse_util.flatten_dict(tree[kind]).items()} for kind in tree
    }
    turning = encoding if isinstance(encoding, RoPE) else None
    start = spec.log_temperature_start or config.context
    return {
        "encoding": name,
        "parameters": {name: [*shape] for leaves in found.values() for name, shape in leaves.items()},
        "frozen": [*found["frozen"]],
        "constants": _constants(encoding, dims),
        "rates": turning.rates(dims.head_width // 2).tolist() if turning else None,
        "magnitude": turning.magnitude if turning else 1.0,
        "window": encoding.window,
        "ssmax": spec.ssmax,
        "log_context": float(np.log(max(config.context, 2))),
        "log_temperature": [spec.log_temperature, start] if spec.log_temperature else None,
    }


def _waves(config: Config) -> list[list[float]] | None:
    """The rates, in radians per token, of the sines and of the cosines that are added to the embeddings."""
    spec = specs(config)[0]
    if spec.encoding is not Sinusoidal:
        return None
    options, width = spec.all_options(), config.model.width
    even = np.arange(0, width, 2)
    rate = lambda n: (options["base"] ** (-n / width)).tolist()
    return [rate(even), rate(even + 1 if options["odd_cosines"] else even)]


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """The contents of config.json, which the modeling file reads."""
    model, pattern = config.model, specs(config)
    others = "export without --layout"
    if model.family not in ("llama", "gpt2") or model.embedding_norm or not model.causal:
        raise UserError(
            f"neither transformers' classes nor the modeling file hold a model of config.model.family={model.family!r} with "
            f"causal={model.causal} and embedding_norm={model.embedding_norm} as it is; {others}"
        )
    names = [place["name"] for place in config.layer_pattern()]
    for name, place in zip(names, pattern, strict=True):
        if name not in ENCODINGS or name in WITHOUT:
            raise UserError(f"the modeling file for transformers has no encoding {shown(name)}; {others}")
        if sharpened(None, place.ssmax) is not None:
            raise UserError(f"the modeling file for transformers has no config.ssmax={place.ssmax}; {others}")
    decoder = _decoder(config)
    order = [decoder.stack_of[place] for place, _ in decoder.order()]
    own = {field: to_dict(config)[field] for field in FIELDS}
    return {
        "architectures": ["BamJaxForCausalLM"],
        "model_type": NAME,
        "auto_map": {
            "AutoConfig": "modeling_bam_jax.BamJaxConfig",
            "AutoModelForCausalLM": "modeling_bam_jax.BamJaxForCausalLM",
        },
        **sizes(config, vocab),
        "norm_epsilon": model.norm_epsilon or 1e-5,
        "tied": decoder.head is None,
        "tie_word_embeddings": False,  # there is no second array
        "positions": decoder.limit or 0,
        "waves": _waves(config),
        "places": [_place(spec, name, config) for spec, name in zip(pattern, names, strict=True)],
        "encoding_of": order if config.shared_encoding else [*range(model.layers)],
        NAME: own | {"model": own["model"] | {"vocab": vocab}},
    }


OWN = Layout(
    entries=_entries,
    config=_config,
    holds="every decoder's encoding but " + ", ".join(WITHOUT),
    tokenizer="bpe:{folder}",
    document_mask=True,
    file=FILE,
    args=_args,
)
