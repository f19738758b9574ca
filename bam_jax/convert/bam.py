"""BAM's layout, that of the training models in the public code. The plain-BAM inference file there computes another prior."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from bam_jax.config import Config
from bam_jax.convert.base import ENCODING, HEADS, LINEAR, ROTARY, SAME, ArrayMapping, Arrays, Count, Layout
from bam_jax.system import typed_json
from bam_jax.system.errors import UserError, nearest, shown

_SHARED = "prior.shape"  # present if one prior serves all layers
_ENCODINGS = {"bam": "bam", "alibi": "alibi", "nope": "nope", "rotary": "rope", "sinusoidal": "sinusoidal"}
FILE = "args.json"


class _ModelArgs(TypedDict):
    dim: Count
    n_heads: Count
    n_layers: Count
    vocab_size: Count
    max_seq_len: Count
    n_kv_heads: NotRequired[Count | None]
    norm_eps: NotRequired[float]
    multiple_of: NotRequired[int]
    ffn_dim_multiplier: NotRequired[Annotated[float, Meta(gt=0, le=2**10)] | None]
    rope_theta: NotRequired[float]
    train_shape: NotRequired[bool | int]
    train_scale: NotRequired[bool | int]
    train_loc: NotRequired[bool | int]
    ssmax_prior: NotRequired[bool | int]


class _Args(TypedDict):
    position_encoding: str


class _Described(TypedDict):
    args: _Args
    model_args: _ModelArgs


def _entries(config: Config, shared: bool) -> list[ArrayMapping]:
    layer = "layers.{n}."
    turned = ROTARY if config.encoding == "rope" else LINEAR
    entries = [
        ArrayMapping("embed/embedding", "tok_embeddings.weight", SAME),
        ArrayMapping("layers/attention_norm/scale", layer + "attention_norm.weight", SAME),
        ArrayMapping("layers/attention/query/kernel", layer + "attention.wq.weight", turned),
        ArrayMapping("layers/attention/key/kernel", layer + "attention.wk.weight", turned),
        ArrayMapping("layers/attention/value/kernel", layer + "attention.wv.weight", LINEAR),
        ArrayMapping("layers/attention/out/kernel", layer + "attention.wo.weight", LINEAR),
        ArrayMapping("layers/mlp_norm/scale", layer + "ffn_norm.weight", SAME),
        ArrayMapping("layers/mlp/gate/kernel", layer + "feed_forward.w1.weight", LINEAR),
        ArrayMapping("layers/mlp/down/kernel", layer + "feed_forward.w2.weight", LINEAR),
        ArrayMapping("layers/mlp/up/kernel", layer + "feed_forward.w3.weight", LINEAR),
        ArrayMapping("norm/scale", "norm.weight", SAME),
        ArrayMapping("head/kernel", "output.weight", LINEAR),
    ]
    if config.encoding == "bam":
        prior = "prior." if shared else layer + "attention.prior."
        for ours, theirs in (("shape", "shape"), ("log_scale", "scale"), ("loc", "loc")):
            entries.append(ArrayMapping(ENCODING + ours, prior + theirs, HEADS))
    if config.ssmax != "off":
        entries.append(ArrayMapping("layers/attention/ssmax/scale", layer + "attention.seq_scale", HEADS))
    return entries


def _config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    typed_json.check(described, _Described, "args.json", "BAM's has 'args' and 'model_args'; fetch it again")
    model, encoding = described["model_args"], described["args"]["position_encoding"]
    width, heads, layers = model["dim"], model["n_heads"], model["n_layers"]
    name, _, ssmax = encoding.partition("_")
    if name not in _ENCODINGS or ssmax not in ("", "ssmax"):
        known = nearest(name, _ENCODINGS)
        raise UserError(f"args.json has position_encoding={encoding!r}; {known}, each also with _ssmax")
    for key, value in (("norm_eps", 1e-5), ("multiple_of", 1)):
        if key in model and model[key] != value:
            raise UserError(f"args.json has {key}={model[key]}; only {value} can be converted")
    ratio = model.get("ffn_dim_multiplier")
    hidden = width if ratio is None else int(ratio * width)
    options: dict[str, Any] = {}
    if name == "bam":
        options = {name: bool(model[name]) for name in ("train_shape", "train_scale", "train_loc") if name in model}
    elif name == "rotary":
        options = {"base": float(model.get("rope_theta", 500_000))}
    elif name == "sinusoidal":
        options = {"odd_cosines": True}
    outside, groups = not model.get("ssmax_prior", True), model.get("n_kv_heads")
    size = {"layers": layers, "width": width, "heads": heads, "hidden": hidden, "vocab": model["vocab_size"]}
    return {
        "encoding": _ENCODINGS[name],
        "encoding_options": options,
        "ssmax": "off" if not ssmax else "outside" if outside else "on",
        "shared_encoding": _SHARED in weights,
        "model": {"family": "llama", **size, "kv_heads": 0 if groups in (None, heads) else groups},
        "context": model["max_seq_len"],
    }


def _args(config: Config, vocab: int) -> dict[str, Any]:
    """An args.json for `_config` and the authors' code."""
    if config.ssmax not in ("off", "on", "inside", "outside"):
        raise UserError(
            f"config.ssmax={config.ssmax!r} has no place in the layout 'bam'; their code knows inside and outside"
        )
    theirs = {ours: name for name, ours in _ENCODINGS.items()}
    if config.encoding not in theirs:
        raise UserError(
            f"the layout 'bam' has no place for the encoding {shown(config.encoding)}; it holds {', '.join(theirs)}: export "
            "without --layout"
        )
    size, options = config.model, config.encoding_options
    ratio = size.hidden / size.width
    model: dict[str, Any] = {
        "dim": size.width,
        "n_layers": size.layers,
        "n_heads": size.heads,
        "n_kv_heads": size.kv_heads or size.heads,
        "vocab_size": vocab,
        "multiple_of": 1,
        # Their code rounds its product with the width down.
        "ffn_dim_multiplier": ratio if int(ratio * size.width) == size.hidden else (size.hidden + 0.5) / size.width,
        "norm_eps": 1e-5,
        "max_seq_len": config.context,
    }
    if config.encoding == "bam":
        trained = {"train_shape": True, "train_scale": True, "train_loc": False}
        model |= {name: options.get(name, value) for name, value in trained.items()}
        model |= {"global_positional_encoding": config.shared_encoding, "ssmax_prior": config.ssmax in ("on", "inside")}
    if config.encoding == "rope":
        model["rope_theta"] = options.get("base", 10_000.0)
    return {
        "args": {"position_encoding": theirs[config.encoding] + ("" if config.ssmax == "off" else "_ssmax")},
        "model_args": model,
    }


BAM = Layout(
    entries=_entries,
    config=_config,
    file=FILE,
    args=_args,
    holds=", ".join(_ENCODINGS.values()),
    tokenizer="mistral",
    document_mask=True,
    shared=_SHARED,
)
