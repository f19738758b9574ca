"""Everything that a run depends on, as frozen dataclasses. The text below each field documents it."""

import dataclasses
from typing import Any, ClassVar

from bam_jax.config import layer_pattern
from bam_jax.config.published import METHODS
from bam_jax.config.section import ConfigSection, joined, kinds, typed, younger
from bam_jax.system.errors import UserError, nearest, shown

COUNT = 2**31 - 1
"""Maximum number of steps, and of tokens in a text: arrays count them in int32."""
DTYPES = ("auto", "bfloat16", "float32")
FAMILIES = ("llama", "gpt2", "bert", "mpt", "gemma")
OPTIMIZERS = ("adamw", "radam")
PACKINGS = ("concat", "first_fit", "framed")
POSITIONS = ("row", "restart")
SCHEDULES = ("cosine", "linear")
LOGGERS = ("", "tensorboard", "wandb")
SSMAX = ("off", "on", "inside", "outside", "effective", "asentmax", "entmax", "adaptive")
SYNTHETIC = ("copy", "recall", "recall_last")
"""Tasks whose rows are generated without any text (`bam_jax.data.tasks.synthetic`)."""
PACKED = ("packed", "masked")
"""Tasks whose rows are packed from documents."""
NEXT_TOKEN = ("packed", "passkey", *SYNTHETIC)
"""Tasks of decoders; one batch may mix their rows."""
TASKS = (*NEXT_TOKEN, "masked", "triplets")
TRIPLET = ("query", "positive", "negative")
"""The texts of a row of the task triplets."""
TOKENIZERS = ("bert", "bpe", "byte", "char", "gpt2", "mistral")


@dataclasses.dataclass(frozen=True)
class ModelConfig(ConfigSection):
    """The model's architecture and sizes."""

    path: ClassVar[str] = "config.model."

    family: str = "llama"
    """"llama": RMSNorm, SwiGLU, no linear biases, an untied output head; "gpt2": LayerNorm, GELU, biases, a tied head; "bert":
    like gpt2, but with post-norm (norms follow the residual sums), exact GELU, and a tied head that transforms its input; "mpt":
    like gpt2, but without any biases and with exact GELU; "gemma": like llama, but with GELU instead of SiLU, norms after
    attention and MLP as well as before them, and a tied embedding that is scaled by sqrt(width)."""
    causal: bool = True
    """False: an encoder, in which every token attends to the whole text."""
    layers: int = 2
    """Number of layers; each has attention and an MLP."""
    width: int = 64
    """Width of the residual stream."""
    heads: int = 4
    """Attention heads per layer."""
    head_dim: int = younger(0)
    """Width of a head's queries, keys and values; 0: width / heads."""
    kv_heads: int = 0
    """Key and value heads per layer (grouped-query attention); 0: as many as `heads`."""
    hidden: int = 128
    """Hidden width of the MLP."""
    vocab: int = 0
    """Size of the vocabulary; 0: what the tokenizer needs (`Tokenizer.padded`)."""
    remat: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""
    remat_keep: str = younger("nothing")
    """What `remat` stores of a layer anyway: "nothing", or "products", the results of matrix products and of attention, so that
    only cheap operations are recomputed."""
    scan: bool = True
    """Compile one layer and loop over it. False compiles every layer, which takes longer. The result is faster for a few small
    layers on a CPU, and moves fewer bytes in training on a GPU, because a loop copies all that it keeps for the backward pass."""
    dtype: str = "auto"
    """Dtype of matrix products; "auto": bfloat16 on accelerators, float32 on CPU."""
    qk_norm: bool = younger(False)
    """RMSNorm of every head's queries and keys, with learned scales, before rotation (Henry et al. 2020; as in Qwen 3)."""
    gate: bool = younger(False)
    """An elementwise sigmoid gate on the attention output of every head, computed from the layer's input (Qiu et al. 2025, arXiv
    2505.06708)."""
    sinks: bool = younger(False)
    """A learned attention-sink logit per head, for an extra key whose value is 0 (gpt-oss; Xiao et al. 2024)."""
    soft_cap: float = younger(0.0)
    """Soft cap c of the query-key scores, which become c tanh(score / c) (Gemma 2, with c = 50); 0: none."""
    attention_dropout: float = younger(0.0)
    """Fraction of the attention weights dropped in training (`bam_jax.attention.Dropout`), never in evaluation. Must be 0 for
    the task triplets."""
    tied: bool = younger(False)
    """Use the transposed embedding as the output head, as gpt2 and bert always do."""
    qkv_bias: bool = younger(False)
    """Add biases to queries, keys and values (as in Qwen 2); gpt2 and bert always have them."""
    embedding_norm: bool = younger(False)
    """Normalise the embeddings (as in BLOOM); bert always does."""
    norm_epsilon: float = younger(0.0)
    """Epsilon added to the variance in norms; 0: the family's own, 1e-5 or for bert 1e-12, and 1e-6 in the norm of queries and
    keys."""

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.width // self.heads

    def check(self) -> None:
        self.above(1, "layers", "width", "heads", "hidden")
        self.above(0, "head_dim", "kv_heads", "vocab", "soft_cap", "norm_epsilon")
        self.below(2**16, "layers", "heads")  # some list has an entry for each of them
        self.require("attention_dropout", 0 <= self.attention_dropout < 1, "at least 0 and below 1")
        self.known("family", FAMILIES)
        self.known("dtype", DTYPES)
        self.known("remat_keep", ("nothing", "products"))
        if not self.head_dim:
            remedy = f"a divisor of the width {self.width}, or give config.model.head_dim"
            self.require("heads", self.width % self.heads == 0, remedy)
        divides = self.kv_heads == 0 or self.heads % self.kv_heads == 0
        self.require("kv_heads", divides, f"0 or a divisor of the heads, {self.heads}")


_SHARED = {"tokenizer", "mixture", "positions", "similarity_scale", "workers"}
"""Keys of the data that apply to a whole mixture."""


@dataclasses.dataclass(frozen=True)
class DataConfig(ConfigSection):
    """Where the text comes from, and how it becomes batches."""

    path: ClassVar[str] = "config.data."

    source: str = "stdlib"
    """"stdlib" (the documentation that comes with Python) or another corpus in `bam_jax.data.corpora`; a file or folder of
    .txt, .jsonl or .parquet; or a folder written by `bam_jax.data.prepare`."""
    tokenizer: str = "char"
    """"char", "byte", "mistral", "gpt2" or "gpt2:FOLDER", "bert:PATH", "bpe:PATH" (`bam_jax.data.tokenizers`)."""
    task: str = "packed"
    """"packed": rows packed with documents, next-token prediction; "masked": the same rows, masked-token prediction;
    "passkey": random windows with planted keys; "triplets": query, positive, negative; "recall", "recall_last", "copy":
    synthetic rows without text, one quarter items and the rest fillers (`bam_jax.data.tasks`)."""
    text_field: str = "text"
    """The field of a .jsonl line that contains the text."""
    holdout: float = 0.1
    """Fraction of the characters held out for evaluation; a prepared folder has its own hold-out."""
    held_out_source: str = ""
    """A source to evaluate on; nothing is then held out of `source`. "": evaluate on the part of `source` that is held out."""
    packing: str = "concat"
    """"concat": documents end to end, cut into rows; "first_fit": whole documents where they fit (longer ones are
    cut), with the rest of a row padded; "framed": like concat, but each document also starts with the tokenizer's begin
    token, which the last token of the previous document predicts, as in the training of BAM's authors."""
    document_mask: bool = True
    """Whether attention and loss stay within a document (tasks packed and masked)."""
    positions: str = "row"
    """"row": a token's position is its index in the row; "restart": its index in its document's part of the row."""
    shuffle: int = 2**20
    """Number of documents shuffled together. A larger prepared folder is divided into groups of whole shards; the groups, and the
    documents of each, are shuffled."""
    mask_fraction: float = 0.15
    """Fraction of the tokens to predict (task masked)."""
    passkey_fraction: float = 0.8
    """Fraction of the samples that contain a passkey (task passkey)."""
    answer_weight: float = 1.5
    """Loss weight of the digits where a passkey is repeated (task passkey)."""
    similarity_scale: float = younger(20.0)
    """Scale of the cosines of embeddings in the loss, the inverse of its temperature (task triplets)."""
    mixture: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Several corpora in one batch: each name maps to {"weight": share of the rows, plus the keys of this group that differ}."""
    workers: int = 0
    """Processes that prepare batches in advance; 0: batches are made on demand."""

    def parts(self) -> dict[str, tuple[float, "DataConfig"]]:
        """The corpora of the mixture, each with its weight; without a mixture, only this one.

        >>> data = DataConfig(mixture={"text": {"weight": 3}, "keys": {"weight": 1, "task": "passkey"}})
        >>> {name: (weight, part.task) for name, (weight, part) in data.parts().items()}
        {'text': (3.0, 'packed'), 'keys': (1.0, 'passkey')}
        """
        return {name: self._part(name, changes) for name, changes in self.mixture.items()} or {"": (1.0, self)}

    def sources(self) -> list[str]:
        """The sources of all parts, in their order."""
        return [part.source for _, part in self.parts().values()]

    @property
    def contrastive(self) -> bool:
        """Whether embeddings are trained: the rows of all parts are triplets."""
        return all(part.task == "triplets" for _, part in self.parts().values())

    def _part(self, name: str, changes: Any) -> tuple[float, "DataConfig"]:
        path = joined(f"{self.path}mixture.", name)
        if not isinstance(changes, dict) or "weight" not in changes:
            raise UserError(f"{path}={shown(changes)} must be a group of keys with a weight, such as {{'weight': 0.1}}")
        keys = {key: value for key, value in changes.items() if key != "weight"}
        own = kinds(DataConfig).keys() - _SHARED
        for key in keys:
            if key in _SHARED:
                raise UserError(f"{path}.{key} cannot differ within a mixture; set {self.path}{key}")
            if key not in own:
                raise UserError(f"unknown config key {joined(path + '.', key)}; {nearest(key, {*own, 'weight'})}")
        weight = typed(f"{path}.weight", changes["weight"], float)
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
                path = joined(f"{self.path}mixture.", name)
                raise UserError(f"{path}.weight={weight} is less than 0.00001 of all weights; leave the part out")
        tasks = {part.task for _, part in parts.values()}
        if len(tasks) > 1 and not tasks <= {*NEXT_TOKEN}:
            raise UserError(
                f"{self.path}mixture has the tasks {', '.join(sorted(tasks))}, whose batches differ in kind; "
                f"mix {', '.join(NEXT_TOKEN)}, or one task with itself"
            )

    def check(self) -> None:
        name = self.tokenizer.partition(":")[0]  # the rest is checked where it is read
        if name not in TOKENIZERS:
            raise UserError(f"{self.path}tokenizer={shown(self.tokenizer)} is unknown; {nearest(name, TOKENIZERS)}")
        self.known("task", TASKS)
        self.known("packing", PACKINGS)
        self.known("positions", POSITIONS)
        self.require("source", self.source != "", "'stdlib' or a path")
        self.require("holdout", 0 <= self.holdout < 1, "at least 0 and below 1")
        self.within(0, 1, "passkey_fraction")
        self.require("mask_fraction", 0 < self.mask_fraction <= 1, "above 0 and at most 1")
        self.above(0, "answer_weight", "workers")
        self.require("similarity_scale", self.similarity_scale > 0, "positive")
        self.above(1, "shuffle")
        if self.mixture:
            self._check_mixture()
        elif self.task == "passkey":
            self.require("tokenizer", self.tokenizer == "char", "'char' for the task 'passkey'")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(ConfigSection):
    """The optimiser and its schedule: a linear warm-up to `rate`, then a decay to `final` x `rate`."""

    path: ClassVar[str] = "config.optimizer."

    name: str = "adamw"
    """"adamw" or "radam"."""
    rate: float = 3e-3
    """Peak learning rate."""
    prior_rate: float = 1.0
    """Learning-rate multiplier of the prior's parameters."""
    b1: float = 0.9
    """Decay of the gradient's running mean."""
    b2: float = 0.95
    """Decay of the running mean of the squared gradient."""
    decay: float = 0.1
    """Decoupled weight decay of matrices; vectors and priors have none."""
    clip: float = 1.0
    """Maximum global norm, to which gradients are clipped."""
    warmup: int = 100
    """Steps over which the rate rises from 0 to its peak."""
    schedule: str = younger("cosine")
    """Decay after the warm-up: "cosine", or "linear", the default of Hugging Face's trainers."""
    final: float = 0.1
    """The rate at the last step, as a fraction of the peak."""
    accumulate: int = 1
    """Number of micro-batches into which a batch is split; they are computed one after the other."""

    def check(self) -> None:
        self.known("name", OPTIMIZERS)
        self.known("schedule", SCHEDULES)
        self.require("rate", self.rate > 0, "positive")
        self.require("clip", self.clip > 0, "positive")
        self.above(0, "prior_rate", "decay", "warmup")
        self.below(COUNT, "warmup")
        self.within(0, 1, "final")
        self.require("b1", 0 <= self.b1 < 1, "at least 0 and below 1")
        self.require("b2", 0 <= self.b2 < 1, "at least 0 and below 1")
        self.above(1, "accumulate")


@dataclasses.dataclass(frozen=True)
class MeshConfig(ConfigSection):
    """The mesh of devices that share a training step (`bam_jax.parallel.sharding`); a resumed run may use another.

    With `data` and `fsdp` both 0: one device on a CPU; otherwise all accelerators, with fsdp over one slice of TPUs or the GPUs
    of one host.
    """

    path: ClassVar[str] = "config.mesh."

    data: int = 0
    """Devices that share the batch, each with all parameters; 0: all that the other axes leave."""
    fsdp: int = 0
    """Devices that share the batch, the parameters and the optimiser's state; 0: all that the other axes leave."""
    tensor: int = 1
    """Devices that share heads, the MLP's width and the vocabulary."""
    context: int = 1
    """Devices that share each sequence, by ring attention."""

    def check(self) -> None:
        self.above(0, "data", "fsdp")
        self.above(1, "tensor", "context")


OF_LAYERS = ("ssmax", "log_temperature", "log_temperature_start")
"""Fields of a configuration that a place of a pattern may set for its layers, among its encoding's options."""


@dataclasses.dataclass(frozen=True)
class Config(ConfigSection):
    """Everything that a run depends on."""

    path: ClassVar[str] = "config."

    encoding: str = "bam"
    """A name in `bam_jax.encodings.ENCODINGS`, or the import path "package.module:Class" of your own encoding. Its module is
    imported only if the command line or your config file names it; a saved run never triggers an import. Or a pattern of
    encodings that layers repeat, each with its own options: "rope:window=512/rope:window=512/nope:ssmax=on" (docs/layers.md)."""
    encoding_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the encoding, which checks them, and `window`, the maximum number of tokens that a query sees, itself
    included. In a pattern, an option applies to every place that does not set it."""
    ssmax: str = "off"
    """Scalable Softmax. "on": with the prior where the encoding's authors place it; "inside" or "outside": with the prior inside
    or outside the factor; "effective": outside, with the factor log(N + C) / log C, where N is the number of effective keys of a
    head's prior and C the context (`bam_jax.encodings.EffectiveSSMax`). Replacements of softmax: "asentmax", 1.5-entmax (sparse)
    of logits whose scores have a learned factor (`AdaptiveScale`); "entmax", the same without that factor; "adaptive", an
    entropy-dependent temperature, for evaluating trained models."""
    log_temperature: float = younger(0.0)
    """alpha in the factor 1 + alpha ln max(n / n0, 1) of a query's scores, where n is the number of keys that it sees (Llama 4,
    with alpha = 0.1 and n0 = 8,192); 0: none."""
    log_temperature_start: int = younger(0)
    """n0 in the factor of `log_temperature`, in keys; 0: the context."""
    shared_encoding: bool = False
    """True: all layers share one encoding (the default of BAM's code), or in a pattern, the layers of each run of equal places.
    False: each layer has its own (BAM's paper)."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    context: int = 64
    """Tokens per training sequence."""
    batch: int = 32
    """Rows per optimiser step; a row is one sequence, or the three of a triplet."""
    steps: int = 2000
    """Optimiser steps. Raising this extends a run, which continues at the learning rate of the new total's schedule."""
    seed: int = 0
    """Seed of the initial parameters, the order of the text and everything else that is random."""
    start: str = ""
    """A run, or "quickstart", from whose trained parameters this run starts; "": parameters are drawn from the seed."""
    log_every: int = 100
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between checkpoints; there is also one at the end."""
    eval_every: int = younger(0)
    """Steps between measurements of the held-out loss, which is also measured at the end; 0: never."""
    eval_tokens: int = younger(2**16)
    """Tokens of held-out text for `eval_every`, rounded up to whole batches; always the same ones."""
    logger: str = ""
    """Where metrics are written besides metrics.jsonl: "tensorboard"; "wandb" (Weights & Biases); "": nowhere."""
    profile_steps: str = younger("")
    """FIRST:LAST, the steps to trace; the trace is written to `profile` in the run's folder, for TensorBoard or XProf. "":
    none."""

    @property
    def sequences(self) -> int:
        """Sequences per optimiser step, each of `context` tokens including padding."""
        return self.batch * (len(TRIPLET) if self.data.contrastive else 1)

    def profiled(self) -> range:
        """The steps of `profile_steps`.

        >>> Config(profile_steps="10:12").profiled(), len(Config().profiled())
        (range(10, 13), 0)
        """
        first, colon, last = self.profile_steps.partition(":")
        numbers = [int(text) if text.isascii() and text.isdigit() else 0 for text in (first, last)]
        right = not self.profile_steps or (colon == ":" and 1 <= numbers[0] <= numbers[1] <= self.steps)
        self.require("profile_steps", right, f"FIRST:LAST within the {self.steps} steps, such as 10:12")
        return range(numbers[0], numbers[1] + 1) if self.profile_steps else range(0)

    def layer_pattern(self) -> list[dict[str, Any]]:
        """The arguments of `encodings.spec` for each place of the layer pattern; a single encoding has one place.

        >>> [(place["name"], place["ssmax"]) for place in Config(encoding="rope:window=8/nope:ssmax=on").layer_pattern()]
        [('rope', 'off'), ('nope', 'on')]
        """
        pattern = []
        for name, options in layer_pattern.parse(self.encoding):
            if name in METHODS:
                raise UserError(
                    f"config.encoding={shown(self.encoding)}: {name} names a whole model; a command line or config file "
                    "gives it alone, and its options in config.encoding_options"
                )
            settings = {field: getattr(self, field) for field in OF_LAYERS}
            for field in OF_LAYERS:
                if field in options:
                    settings[field] = value = typed(f"config.encoding: {field}", options[field], type(settings[field]))
                    if not isinstance(value, str) and value < 0:
                        raise UserError(f"config.encoding: {field}={value} must be 0 or more")
            own = {option: value for option, value in options.items() if option not in OF_LAYERS}
            shared = {"options": self.encoding_options | own, "shared": self.shared_encoding}
            pattern.append({"name": name, **shared, **settings})
        return pattern

    def modules(self) -> list[str]:
        """The modules of the user's own encodings."""
        found = [place.name.partition(":") for place in layer_pattern.parse(self.encoding)]
        return list(dict.fromkeys(module for module, colon, _ in found if colon))

    def check(self) -> None:
        pattern = self.layer_pattern()
        if self.model.layers % len(pattern):
            raise UserError(
                f"config.encoding={shown(self.encoding)} has {len(pattern)} places, which must divide "
                f"config.model.layers={self.model.layers}; give a multiple of {len(pattern)}"
            )
        self.known("ssmax", SSMAX)
        self.known("logger", LOGGERS)
        self.above(0, "log_temperature", "log_temperature_start", "eval_every")
        self.above(1, "context", "batch", "steps", "log_every", "checkpoint_every", "eval_tokens")
        self.below(COUNT, "context", "batch", "steps")
        self.profiled()
        self.within(0, 2**32 - 1, "seed")
        if self.data.contrastive:  # each micro-batch is embedded twice, and both results must be equal
            self.model.require("attention_dropout", not self.model.attention_dropout, "0 for the task 'triplets'")
        masked = [name for name, (_, part) in self.data.parts().items() if part.task == "masked"]
        if masked and self.model.causal:
            raise UserError("config.data.task='masked' needs an encoder; set --config.model.causal=False")
        count = self.optimizer.accumulate
        self.require("batch", self.batch % count == 0, f"a multiple of config.optimizer.accumulate={count}")
