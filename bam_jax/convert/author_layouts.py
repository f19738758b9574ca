"""How the authors of BAM and of CABLE name and lay out their models' weights, row by row beside ours.

Source: the public code of both papers. BAM's layout is that of its training models: a plain-BAM inference file computes
another prior. CABLE's code leaves q.k unscaled and its steps have a bias: the queries of ours are multiplied by sqrt(D).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from bam_jax.config import Config
from bam_jax.system import strict_json
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.strict_json import Must

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Form:
    """How one array is laid out there and here.

    Args:
        ours, theirs: (array, config) -> the array as it is here, or there.
    """

    ours: Callable[[np.ndarray, Config], np.ndarray]
    theirs: Callable[[np.ndarray, Config], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Row:
    """One array of ours and where it is in theirs.

    Args:
        ours: its path in the parameters, the layers stacked in front.
        theirs: its name, {n} being the layer. A name without it gives every layer of ours the same.
        form: how it is laid out.
        part, parts: which of how many equal parts of theirs, along the first axis.
    """

    ours: str
    theirs: str
    form: Form
    part: int = 0
    parts: int = 1

    def names(self, config: Config) -> list[str]:
        """Theirs, of each layer, or the only one."""
        return [self.theirs.format(n=n) for n in range(config.model.layers)] if "{n}" in self.theirs else [self.theirs]


def _same(x: np.ndarray, config: Config) -> np.ndarray:
    return x


def _transposed(x: np.ndarray, config: Config) -> np.ndarray:
    return x.T


def _pairs(config: Config) -> np.ndarray:
    """Their outputs of a head in our order: they turn neighbours together, we the two halves."""
    width = config.model.width // config.model.heads
    return np.arange(width).reshape(-1, 2).T.ravel()


def _of_heads(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The columns of a kernel, head by head in another order."""
    return x.reshape(x.shape[0], -1, len(order))[..., order].reshape(x.shape)


def _scale(config: Config) -> float:
    return math.sqrt(config.model.width // config.model.heads)


_ENCODING = "layers/attention/encoding/"
_SHARED = "prior.shape"  # of BAM, where one prior serves all layers

_SAME = Form(_same, _same)
_LINEAR = Form(_transposed, _transposed)
_HEADS = Form(lambda x, config: x.reshape(-1), lambda x, config: x.reshape(1, -1, 1, 1))
_ROTARY = Form(
    lambda x, config: _of_heads(x.T, _pairs(config)),
    lambda x, config: _of_heads(x, np.argsort(_pairs(config))).T,
)
_QUERY = Form(lambda x, config: x.T * _scale(config), lambda x, config: x.T / _scale(config))
_QUERY_BIAS = Form(lambda x, config: x * _scale(config), lambda x, config: x / _scale(config))


def _bam_rows(config: Config, shared: bool) -> list[Row]:
    layer = "layers.{n}."
    turned = _ROTARY if config.encoding == "rope" else _LINEAR
    rows = [
        Row("embed/embedding", "tok_embeddings.weight", _SAME),
        Row("layers/attention_norm/scale", layer + "attention_norm.weight", _SAME),
        Row("layers/attention/query/kernel", layer + "attention.wq.weight", turned),
        Row("layers/attention/key/kernel", layer + "attention.wk.weight", turned),
        Row("layers/attention/value/kernel", layer + "attention.wv.weight", _LINEAR),
        Row("layers/attention/out/kernel", layer + "attention.wo.weight", _LINEAR),
        Row("layers/mlp_norm/scale", layer + "ffn_norm.weight", _SAME),
        Row("layers/mlp/gate/kernel", layer + "feed_forward.w1.weight", _LINEAR),
        Row("layers/mlp/down/kernel", layer + "feed_forward.w2.weight", _LINEAR),
        Row("layers/mlp/up/kernel", layer + "feed_forward.w3.weight", _LINEAR),
        Row("norm/scale", "norm.weight", _SAME),
        Row("head/kernel", "output.weight", _LINEAR),
    ]
    if config.encoding == "bam":
        prior = "prior." if shared else layer + "attention.prior."
        for ours, theirs in (("shape", "shape"), ("log_scale", "scale"), ("loc", "loc")):
            rows.append(Row(_ENCODING + ours, prior + theirs, _HEADS))
    if config.ssmax != "off":
        rows.append(Row("layers/attention/ssmax/scale", layer + "attention.seq_scale", _HEADS))
    return rows


def _cable_rows(config: Config, shared: bool) -> list[Row]:
    layer = "transformer.h.{n}."

    def linear(ours: str, theirs: str, form: Form = _LINEAR, bias: Form = _SAME, **part: int) -> list[Row]:
        return [
            Row(f"{ours}/kernel", f"{theirs}.weight", form, **part),
            Row(f"{ours}/bias", f"{theirs}.bias", bias, **part),
        ]

    def norm(ours: str, theirs: str) -> list[Row]:
        return [Row(f"{ours}/scale", f"{theirs}.weight", _SAME), Row(f"{ours}/bias", f"{theirs}.bias", _SAME)]

    attention = layer + "attn."
    return [
        Row("embed/embedding", "transformer.wte.weight", _SAME),
        Row("embed/embedding", "lm_head.weight", _SAME),
        *norm("layers/attention_norm", layer + "ln_1"),
        *linear("layers/attention/query", attention + "c_attn", _QUERY, _QUERY_BIAS, part=0, parts=3),
        *linear("layers/attention/key", attention + "c_attn", part=1, parts=3),
        *linear("layers/attention/value", attention + "c_attn", part=2, parts=3),
        *linear("layers/attention/out", attention + "c_proj"),
        *linear(_ENCODING + "step_size", attention + "h_attn"),
        *norm("layers/mlp_norm", layer + "ln_2"),
        *linear("layers/mlp/up", layer + "mlp.c_fc"),
        *linear("layers/mlp/down", layer + "mlp.c_proj"),
        *norm("norm", "transformer.ln_f"),
    ]


_ENCODINGS = {"bam": "bam", "alibi": "alibi", "nope": "nope", "rotary": "rope", "sinusoidal": "sinusoidal"}


Count = Annotated[int, Must(lambda n: 1 <= n < 2**31, "from 1 to 2147483647")]


class _ModelArgs(TypedDict):
    dim: Count
    n_heads: Count
    n_layers: Count
    vocab_size: Count
    max_seq_len: Count
    n_kv_heads: NotRequired[Count | None]
    norm_eps: NotRequired[float]
    multiple_of: NotRequired[int]
    ffn_dim_multiplier: NotRequired[Annotated[float, Must(lambda x: 0 < x <= 2**10, "from 0 to 1024")] | None]
    rope_theta: NotRequired[float]
    train_shape: NotRequired[bool | int]
    train_scale: NotRequired[bool | int]
    train_loc: NotRequired[bool | int]
    ssmax_prior: NotRequired[bool | int]


class _Args(TypedDict):
    position_encoding: str


class _Described(TypedDict):
    """BAM's args.json, as far as it is read."""

    args: _Args
    model_args: _ModelArgs


def _bam_config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    """From the 'args' and 'model_args' of their args.json."""
    strict_json.check(described, _Described, "args.json", "BAM's has 'args' and 'model_args'; fetch it again")
    model, encoding = described["model_args"], described["args"]["position_encoding"]
    width, heads, layers = model["dim"], model["n_heads"], model["n_layers"]
    vocab, context = model["vocab_size"], model["max_seq_len"]
    name, _, ssmax = encoding.partition("_")
    if name not in _ENCODINGS or ssmax not in ("", "ssmax"):
        known = nearest(name, _ENCODINGS)
        raise UserError(f"args.json has position_encoding={encoding!r}; {known}, each also with _ssmax")
    for key, value in (("norm_eps", 1e-5), ("multiple_of", 1)):
        if key in model and model[key] != value:
            raise UserError(f"args.json has {key}={model[key]}; only {value} can be converted")
    hidden = width
    if "ffn_dim_multiplier" in model and model["ffn_dim_multiplier"] is not None:
        hidden = int(model["ffn_dim_multiplier"] * width)
    options: dict[str, Any] = {}
    if name == "bam":
        options = {name: bool(model[name]) for name in ("train_shape", "train_scale", "train_loc") if name in model}
    elif name == "rotary":
        options = {"base": float(model["rope_theta"])} if "rope_theta" in model else {"base": 500_000.0}
    elif name == "sinusoidal":
        options = {"odd_cosines": True}
    outside = "ssmax_prior" in model and not model["ssmax_prior"]
    groups = model["n_kv_heads"] if "n_kv_heads" in model else None
    return {
        "encoding": _ENCODINGS[name],
        "encoding_options": options,
        "ssmax": "off" if not ssmax else "outside" if outside else "on",
        "shared_encoding": _SHARED in weights,
        "model": {
            "family": "llama",
            "layers": layers,
            "width": width,
            "heads": heads,
            "kv_heads": 0 if groups in (None, heads) else groups,
            "hidden": hidden,
            "vocab": vocab,
        },
        "context": context,
    }


def _bam_args(config: Config, vocab: int) -> dict[str, Any]:
    """An args.json that `_bam_config` reads, and the authors' code."""
    theirs = {ours: name for name, ours in _ENCODINGS.items()}[config.encoding]
    size, options = config.model, config.encoding_options
    ratio = size.hidden / size.width
    model: dict[str, Any] = {
        "dim": size.width,
        "n_layers": size.layers,
        "n_heads": size.heads,
        "n_kv_heads": size.kv_heads or size.heads,
        "vocab_size": vocab,
        "multiple_of": 1,
        # They round its product with the width down.
        "ffn_dim_multiplier": ratio if int(ratio * size.width) == size.hidden else (size.hidden + 0.5) / size.width,
        "norm_eps": 1e-5,
        "max_seq_len": config.context,
    }
    if config.encoding == "bam":
        trained = {"train_shape": True, "train_scale": True, "train_loc": False}
        model |= {name: options[name] if name in options else value for name, value in trained.items()}
        model |= {"global_positional_encoding": config.shared_encoding, "ssmax_prior": config.ssmax in ("on", "inside")}
    if config.encoding == "rope":
        model["rope_theta"] = options["base"] if "base" in options else 10_000.0
    return {
        "args": {"position_encoding": theirs + ("" if config.ssmax == "off" else "_ssmax")},
        "model_args": model,
    }


def _cable_config(weights: Arrays, described: Mapping[str, Any]) -> dict[str, Any]:
    """From the shapes of their weights, which come without a description."""
    try:
        vocab, width = weights["transformer.wte.weight"].shape
        heads = len(weights["transformer.h.0.attn.h_attn.bias"])
        hidden = len(weights["transformer.h.0.mlp.c_fc.bias"])
    except (KeyError, ValueError) as error:  # none of that name, or one of other axes
        raise UserError(f"the weights have no {error}; CABLE's are a GPT-2 with attn.h_attn in each layer") from error
    layers = sum(name.endswith(".attn.h_attn.bias") for name in weights)
    return {
        "encoding": "cable_nw",
        "encoding_options": {"gate": "softplus", "step_bias": True},
        "model": {
            "family": "gpt2",
            "layers": layers,
            "width": width,
            "heads": heads,
            "hidden": hidden,
            "vocab": vocab,
        },
        "context": 1024,
    }


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to lay out weights.

    Args:
        rows: (config, whether one prior serves all layers) -> every array.
        config: (weights, what stands beside them) -> the configuration, as nested dictionaries.
        args: (config, size of the vocabulary) -> what stands in args.json; None: there is none.
        holds: the encodings of ours that it has a place for.
        tokenizer: of the published models.
        document_mask: whether those were trained within documents.
    """

    rows: Callable[[Config, bool], Sequence[Row]]
    config: Callable[[Arrays, Mapping[str, Any]], dict[str, Any]]
    args: Callable[[Config, int], dict[str, Any]] | None
    holds: str
    tokenizer: str
    document_mask: bool


LAYOUTS = {
    "bam": Layout(_bam_rows, _bam_config, _bam_args, ", ".join(_ENCODINGS.values()), "mistral", document_mask=True),
    "cable": Layout(
        _cable_rows, _cable_config, None, "cable_nw with gate=softplus and step_bias=True", "gpt2", document_mask=False
    ),
}


def to_ours(layout: Layout, weights: Arrays, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Our arrays from theirs; every one of both is used.

    Args:
        layout: theirs.
        weights: by their names, of any real dtype.
        config: of the model.
        shapes: of ours by their paths, layers stacked.

    Returns:
        Float32 arrays by our paths.

    Raises:
        UserError: a name is missing, unknown, or has another shape; two arrays that should be one differ.
    """
    rows = layout.rows(config, _SHARED in weights)
    known = {name for row in rows for name in row.names(config)}
    for name in weights:
        if name not in known:
            raise UserError(f"the weights hold {name!r}, which this layout does not know; {nearest(name, known)}")
    made: Arrays = {}
    for row in rows:
        names = row.names(config)
        missing = [name for name in names if name not in weights]
        if missing and row.ours in made:  # a tied weight that is written once
            continue
        if missing:
            raise UserError(f"the weights lack {missing[0]!r} ({len(weights)} arrays are there)")
        if row.ours not in shapes:
            raise UserError(
                f"the model has no {row.ours!r} for {names[0]!r}; give the encoding that it was trained with"
            )
        parts = [_part(row, weights[name], config) for name in names]
        if "{n}" in row.theirs:
            array = np.stack(parts)
        elif row.ours.startswith("layers/") and not config.shared_encoding:
            array = np.stack(parts * config.model.layers)
        else:
            (array,) = parts
        if array.shape != shapes[row.ours]:
            raise UserError(f"{names[0]!r} makes {row.ours!r} {array.shape}, and the model's is {shapes[row.ours]}")
        if row.ours in made and not np.array_equal(made[row.ours], array):
            raise UserError(f"{names[0]!r} should be the same as another array for {row.ours!r}, and is not")
        made[row.ours] = array
    for name in shapes:
        if name not in made:
            raise UserError(
                f"the weights have nothing for the model's {name!r}; give the encoding that they were trained with"
            )
    return made


def to_theirs(layout: Layout, arrays: Arrays, config: Config) -> Arrays:
    """Their arrays from ours, by their names.

    Args:
        layout: theirs.
        arrays: float32, by our paths, layers stacked.
        config: of the model.

    Raises:
        UserError: an array that theirs cannot hold.
    """
    rows = layout.rows(config, config.shared_encoding)
    known = {row.ours for row in rows}
    for name in arrays:
        if name not in known:
            raise UserError(
                f"this layout has no place for {name!r} of the encoding {config.encoding!r}; it holds {layout.holds}"
            )
    parts: dict[str, list[np.ndarray]] = {}
    for row in rows:
        if row.ours not in arrays:
            raise UserError(f"the model has no {row.ours!r} for {row.theirs!r}; it cannot be laid out so")
        ours, names = arrays[row.ours], row.names(config)
        each = row.ours.startswith("layers/") and not (config.shared_encoding and row.ours.startswith(_ENCODING))
        for name, array in zip(names, ours if each else [ours] * len(names), strict=True):
            parts.setdefault(name, []).append(row.form.theirs(array, config))
    return {name: np.ascontiguousarray(np.concatenate(each)) for name, each in parts.items()}


def _part(row: Row, whole: np.ndarray, config: Config) -> np.ndarray:
    whole = np.asarray(whole, np.float32)
    if len(whole) % row.parts:
        raise UserError(f"{row.theirs!r} {whole.shape} does not divide into {row.parts} parts")
    return row.form.ours(np.split(whole, row.parts)[row.part], config)
