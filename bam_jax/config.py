"""A run's configuration: a Python file and `--config.a.b=value`, turned once into frozen dataclasses."""

import argparse
import ast
import dataclasses
import hashlib
import json
import math
import runpy
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import ml_collections

from bam_jax.errors import UserError, nearest

DTYPES = ("auto", "bfloat16", "float32")
FAMILIES = ("llama", "gpt2")
OPTIMIZERS = ("adamw", "radam")
PACKINGS = ("concat", "first_fit")
POSITIONS = ("row", "restart")
SSMAX = ("off", "on", "inside", "outside")
TASKS = ("packed", "passkey", "masked", "triplets")
TOKENIZERS = ("bert", "bpe", "byte", "char", "gpt2", "mistral")


def _kinds(cls: type["_Section"]) -> dict[str, Any]:
    """Field name to type."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _typed(path: str, value: Any, kind: Any) -> Any:
    """The value as its field's type, or a UserError; options are copied in the form that JSON gives back."""
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and type(value) is float and not math.isfinite(value):
        raise UserError(f"{path}={value} must be finite")
    wanted = typing.get_origin(kind) or kind
    if type(value) is not wanted:
        raise UserError(f"{path}={value!r} must be of type {wanted.__name__}, not {type(value).__name__}")
    if wanted is not dict:
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}={value!r} must hold JSON values only: {error}") from error


class _Section:
    """What the dataclasses below share: types are checked, and an int is accepted where a float is due."""

    path: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            object.__setattr__(self, name, _typed(self.path + name, getattr(self, name), kind))
        self._check()

    def _check(self) -> None:
        """Raises: UserError, when a value is out of its range."""

    def _require(self, name: str, holds: bool, remedy: str) -> None:
        if not holds:
            raise UserError(f"{self.path}{name}={getattr(self, name)!r} must be {remedy}")

    def _above(self, low: float, *names: str) -> None:
        for name in names:
            self._require(name, getattr(self, name) >= low, f"{low} or more")

    def _within(self, low: float, high: float, *names: str) -> None:
        for name in names:
            self._require(name, low <= getattr(self, name) <= high, f"between {low} and {high}")

    def _known(self, name: str, names: Collection[str]) -> None:
        value = getattr(self, name)
        if value not in names:
            raise UserError(f"{self.path}{name}={value!r} is unknown; {nearest(value, names)}")


@dataclasses.dataclass(frozen=True)
class ModelConfig(_Section):
    """The decoder's sizes."""

    path: ClassVar[str] = "config.model."

    family: str = "llama"
    """"llama": RMSNorm, SwiGLU, no linear biases, a head of its own; "gpt2": LayerNorm, GELU, biases, a tied head."""
    causal: bool = True
    """False: an encoder, in which every token sees the whole text."""
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 0
    """Key and value heads (grouped-query attention); 0: as many as heads."""
    hidden: int = 128
    """Width inside the MLP."""
    vocab: int = 0
    """0: what the tokenizer needs (`Tokenizer.padded`)."""
    remat: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""
    scan: bool = True
    """Compile one layer and loop over it; false compiles each, faster for a few small layers on a CPU."""
    dtype: str = "auto"
    """Of matrix products; auto: bfloat16 on accelerators, float32 on CPU."""

    def _check(self) -> None:
        self._above(1, "layers", "width", "heads", "hidden")
        self._above(0, "kv_heads", "vocab")
        self._known("family", FAMILIES)
        self._known("dtype", DTYPES)
        self._require("heads", self.width % self.heads == 0, f"a divisor of the width {self.width}")
        divides = self.kv_heads == 0 or self.heads % self.kv_heads == 0
        self._require("kv_heads", divides, f"0 or a divisor of the heads, {self.heads}")


_SHARED = {"tokenizer", "mixture", "positions", "workers"}
"""Keys of the data that hold for a whole mixture."""


@dataclasses.dataclass(frozen=True)
class DataConfig(_Section):
    """Where the text comes from and what is made of it."""

    path: ClassVar[str] = "config.data."

    source: str = "stdlib"
    """"stdlib" (the documentation every Python carries), or a folder or file of .txt or .jsonl, or a folder that
    `bam_jax.data.prepare` wrote."""
    tokenizer: str = "char"
    """"char", "byte", "mistral", "gpt2" or "gpt2:FOLDER", "bert:PATH", "bpe:PATH" (`bam_jax.data.tokenizers`)."""
    task: str = "packed"
    """"packed": documents in rows, predict the next token; "masked": the same rows, predict masked tokens;
    "passkey": random windows with planted keys; "triplets": query, positive, negative."""
    text_field: str = "text"
    """The field of a .jsonl line that holds the text."""
    holdout: float = 0.1
    """Fraction of the characters kept for evaluation; a prepared folder has its own hold-out."""
    held_out_source: str = ""
    """Evaluate on this source; then none of `source` is held out. "": on what is held out of `source`."""
    packing: str = "concat"
    """"concat": documents end to end, cut into rows; "first_fit": whole documents where they fit (longer ones are
    cut), the rest of a row padded."""
    document_mask: bool = True
    """Whether attention and loss stay within a document (tasks packed and masked)."""
    positions: str = "row"
    """"row": a token's position is its index in the row; "restart": in its document's part of the row."""
    shuffle: int = 2**20
    """Documents shuffled together; a prepared folder with more is shuffled by whole shards, and in groups of them."""
    mask_fraction: float = 0.15
    """Fraction of the tokens to predict (task masked)."""
    passkey_fraction: float = 0.8
    """Fraction of the samples that carry a key (task passkey)."""
    answer_weight: float = 1.5
    """Loss weight of a key's digits where it stands again (task passkey)."""
    mixture: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Several corpora in one batch: name to {"weight": share of the rows, and keys of this group that differ}."""
    workers: int = 0
    """Processes that make batches ahead; 0: made when asked for."""

    def parts(self) -> dict[str, tuple[float, "DataConfig"]]:
        """The corpora of the mixture, each with its weight; without a mixture this one alone.

        >>> data = DataConfig(mixture={"text": {"weight": 3}, "keys": {"weight": 1, "task": "passkey"}})
        >>> {name: (weight, part.task) for name, (weight, part) in data.parts().items()}
        {'text': (3.0, 'packed'), 'keys': (1.0, 'passkey')}

        Raises:
            UserError: a part without a weight, or with a key or value that will not do.
        """
        return {name: self._part(name, changes) for name, changes in self.mixture.items()} or {"": (1.0, self)}

    def _part(self, name: str, changes: Any) -> tuple[float, "DataConfig"]:
        path = f"{self.path}mixture.{name}"
        if not isinstance(changes, dict) or "weight" not in changes:
            raise UserError(f"{path}={changes!r} must be a group of keys with a weight, such as {{'weight': 0.1}}")
        keys = {key: value for key, value in changes.items() if key != "weight"}
        own = _kinds(DataConfig).keys() - _SHARED
        for key in keys:
            if key in _SHARED:
                raise UserError(f"{path}.{key} cannot differ within a mixture; set {self.path}{key}")
            if key not in own:
                raise UserError(f"unknown config key {path}.{key}; {nearest(key, {*own, 'weight'})}")
        weight = _typed(f"{path}.weight", changes["weight"], float)
        if weight <= 0:
            raise UserError(f"{path}.weight={weight} must be positive; leave the part out for none of it")
        try:
            return weight, dataclasses.replace(self, mixture={}, **keys)
        except UserError as error:
            raise UserError(f"{error} (in {path})") from error

    def _check_mixture(self) -> None:
        parts = self.parts()
        total = sum(weight for weight, _ in parts.values())
        for name, (weight, _) in parts.items():
            if weight < 1e-5 * total:
                raise UserError(
                    f"{self.path}mixture.{name}.weight={weight} is less than 0.00001 of all weights; leave the part out"
                )
        tasks = {part.task for _, part in parts.values()}
        if len(tasks) > 1 and not tasks <= {"packed", "passkey"}:
            raise UserError(
                f"{self.path}mixture has the tasks {', '.join(sorted(tasks))}, whose batches differ in kind; "
                "mix packed and passkey, or one task with itself"
            )

    def _check(self) -> None:
        name = self.tokenizer.partition(":")[0]  # what follows is looked at where it is read
        if name not in TOKENIZERS:
            raise UserError(f"{self.path}tokenizer={self.tokenizer!r} is unknown; {nearest(name, TOKENIZERS)}")
        self._known("task", TASKS)
        self._known("packing", PACKINGS)
        self._known("positions", POSITIONS)
        self._require("source", self.source != "", "'stdlib' or a path")
        self._require("holdout", 0 <= self.holdout < 1, "at least 0 and below 1")
        self._within(0, 1, "passkey_fraction")
        self._require("mask_fraction", 0 < self.mask_fraction <= 1, "above 0 and at most 1")
        self._above(0, "answer_weight", "workers")
        self._above(1, "shuffle")
        if self.mixture:
            self._check_mixture()
        elif self.task == "passkey":
            self._require("tokenizer", self.tokenizer == "char", "'char' for the task 'passkey'")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(_Section):
    """The optimiser and its schedule: cosine from `rate` to `final` x `rate` after a linear warm-up."""

    path: ClassVar[str] = "config.optimizer."

    name: str = "adamw"
    rate: float = 3e-3
    """Peak learning rate."""
    prior_rate: float = 1.0
    """Multiplier of the rate for the prior's parameters."""
    b1: float = 0.9
    b2: float = 0.95
    decay: float = 0.1
    """Decoupled weight decay of matrices; vectors and priors have none."""
    clip: float = 1.0
    """Largest global norm of a gradient."""
    warmup: int = 100
    """Steps."""
    final: float = 0.1
    accumulate: int = 1
    """Micro-batches that a batch is cut into, one after the other."""

    def _check(self) -> None:
        self._known("name", OPTIMIZERS)
        self._require("rate", self.rate > 0, "positive")
        self._require("clip", self.clip > 0, "positive")
        self._above(0, "prior_rate", "decay", "warmup")
        self._within(0, 1, "final")
        self._require("b1", 0 <= self.b1 < 1, "at least 0 and below 1")
        self._require("b2", 0 <= self.b2 < 1, "at least 0 and below 1")
        self._above(1, "accumulate")


@dataclasses.dataclass(frozen=True)
class Config(_Section):
    """Everything that a run depends on."""

    path: ClassVar[str] = "config."

    encoding: str = "bam"
    """A name in `bam_jax.encodings.ENCODINGS`, or the import path "package.module:Class" of your own."""
    encoding_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the encoding, which checks them."""
    ssmax: str = "off"
    """"on": the placement that the authors use with that encoding."""
    shared_encoding: bool = False
    """Whether all layers have one encoding together (the default of BAM's code) or each its own (its paper)."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    context: int = 64
    """Tokens of a training sequence."""
    batch: int = 32
    """Sequences of one optimiser step."""
    steps: int = 2000
    seed: int = 0
    start: str = ""
    """A run whose trained parameters are the first ones here; "": drawn from the seed."""
    log_every: int = 100
    checkpoint_every: int = 500
    tensorboard: bool = False

    def _check(self) -> None:
        self._require("encoding", self.encoding != "", "a name or package.module:Class")
        self._known("ssmax", SSMAX)
        self._above(1, "context", "batch", "steps", "log_every", "checkpoint_every")
        self._within(0, 2**32 - 1, "seed")
        masked = [name for name, (_, part) in self.data.parts().items() if part.task == "masked"]
        if masked and self.model.causal:
            raise UserError("config.data.task='masked' needs an encoder; set --config.model.causal=False")
        count = self.optimizer.accumulate
        self._require("batch", self.batch % count == 0, f"a multiple of config.optimizer.accumulate={count}")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a file, with changes from the command line.

    Args:
        path: a Python file with `get_config() -> ml_collections.ConfigDict` of what is no default.
        overrides: "--config.a.b=value"; a value is a Python literal, else a string.

    Raises:
        UserError: no such file, no `get_config` in it, or an unknown key, wrong type or bad value.
    """
    if not Path(path).is_file():
        raise UserError(f"no config file {path} in {Path.cwd()}; give the path of a Python file that has a get_config")
    if Path(path).suffix != ".py":
        raise UserError(f"config file {path} is not a Python file; name one whose name ends in .py")
    try:
        names = runpy.run_path(str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path} is not Python: {error}") from error
    if "get_config" not in names:
        raise UserError(f"config file {path} has no get_config(), which returns an ml_collections.ConfigDict")
    made = names["get_config"]()
    if not isinstance(made, ml_collections.ConfigDict):
        raise UserError(f"get_config() of {path} returned {type(made).__name__}, not a ConfigDict of ml_collections")
    return override(made.to_dict(), overrides)


def override(tree: Config | Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """A configuration with changes from the command line, one after another.

    Another encoding comes without the options of the one before: those were not meant for it.

    >>> override(Config(), ["--config.model.heads=8"]).model.heads
    8
    >>> override(Config(encoding_options={"init": "spread"}), ["--config.encoding=alibi"]).encoding_options
    {}

    Raises:
        UserError: an argument that is not "--config.a.b=value", unknown key, wrong type or bad value.
    """
    changed = to_dict(tree) if isinstance(tree, Config) else _copy(tree)
    for argument in overrides:
        name, equals, text = argument.partition("=")
        keys = name.removeprefix("--config.").split(".")
        if not name.startswith("--config.") or not equals or "" in keys:
            raise UserError(f"{argument} is not of the form --config.name=value")
        if keys == ["encoding"] and text != changed.get("encoding", Config.encoding):
            changed["encoding_options"] = {}
        _set(changed, Config, keys, text, name.removeprefix("--"))
    return from_dict(changed)


def parse(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Splits a command line into what `parser` knows and the overrides "--config.a.b=value".

    Raises:
        UserError: an argument that neither of them knows (and, from an `errors.Parser`, any other mistake).
    """
    overrides = [argument for argument in argv if argument.startswith("--config.")]
    rest = [argument for argument in argv if not argument.startswith("--config.")]
    namespace, unknown = parser.parse_known_args(rest)
    if unknown:
        options = [f"--{name}" for name in vars(namespace)] + ["--config.name=value"]
        raise UserError(f"unknown argument {unknown[0]}; {nearest(unknown[0].partition('=')[0], options)}")
    return namespace, overrides


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values."""
    return dataclasses.asdict(config)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """The configuration of nested dictionaries; what is left out has its default.

    Raises:
        UserError: unknown key, wrong type or bad value.
    """
    return _build(Config, tree)


def to_json(config: Config) -> str:
    """The configuration as indented JSON with sorted keys."""
    return json.dumps(to_dict(config), indent=2, sort_keys=True)


def from_json(text: str) -> Config:
    """The configuration of `to_json`.

    Raises:
        UserError: text that is not JSON or not a configuration.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"the configuration is not JSON: {error}") from error
    return from_dict(tree)


def digest(config: Config) -> str:
    """Twelve hex digits that name the configuration: the start of the SHA-256 of its sorted JSON."""
    text = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_section(kind: Any) -> TypeGuard[type[_Section]]:
    return isinstance(kind, type) and issubclass(kind, _Section)


def _kind(cls: type[_Section], name: str) -> Any:
    kinds = _kinds(cls)
    if name not in kinds:
        raise UserError(f"unknown config key {cls.path}{name}; {nearest(name, kinds)}")
    return kinds[name]


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _build[S: _Section](cls: type[S], tree: Any) -> S:
    if not isinstance(tree, Mapping):
        raise UserError(f"{cls.path.rstrip('.')}={tree!r} must be a group of keys: {', '.join(_kinds(cls))}")
    values = {}
    for name, value in tree.items():
        kind = _kind(cls, name)
        values[name] = _build(kind, value) if _is_section(kind) else value
    return cls(**values)


def _set(tree: dict[str, Any], cls: type[_Section], keys: list[str], text: str, path: str) -> None:
    """Puts one override where it belongs; the field's type decides how its text is read."""
    head, *rest = keys
    kind = _kind(cls, head)
    if _is_section(kind):
        if not rest:
            raise UserError(f"{path} is a group; name one of its keys: {', '.join(sorted(_kinds(kind)))}")
        group = tree.setdefault(head, {})
        if not isinstance(group, dict):
            raise UserError(f"config.{head}={group!r} must be a group of keys: {', '.join(_kinds(kind))}")
        return _set(group, kind, rest, text, path)
    if typing.get_origin(kind) is dict and rest:
        for key in (head, *rest[:-1]):
            tree = tree.setdefault(key, {})
            if not isinstance(tree, dict):
                raise UserError(f"{path}: {key} is not a group of options")
        tree[rest[-1]] = _literal(text)
    elif rest:
        raise UserError(f"{path}: {head} is a single value; write {path.rpartition('.')[0]}=value")
    else:
        tree[head] = text if kind is str else _literal(text)
    return None


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
