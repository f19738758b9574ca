"""Everything that a run depends on, as frozen dataclasses; each field says what it is."""

import dataclasses
from typing import Any, ClassVar

from bam_jax.config import layer_pattern
from bam_jax.config.published import METHODS
from bam_jax.config.section import ConfigSection, joined, kinds, typed, younger
from bam_jax.system.errors import UserError, nearest, shown

COUNT = 2**31 - 1
"""The most steps, and tokens of a text: arrays count them in int32."""
DTYPES = ("auto", "bfloat16", "float32")
FAMILIES = ("llama", "gpt2", "bert", "mpt", "gemma")
OPTIMIZERS = ("adamw", "radam")
PACKINGS = ("concat", "first_fit", "framed")
POSITIONS = ("row", "restart")
SCHEDULES = ("cosine", "linear")
LOGGERS = ("", "tensorboard", "wandb")
SSMAX = ("off", "on", "inside", "outside", "effective", "asentmax", "entmax", "adaptive")
SYNTHETIC = ("copy", "recall", "recall_last")
"""Tasks whose rows are made without any text (`bam_jax.data.tasks.synthetic`)."""
PACKED = ("packed", "masked")
"""Tasks whose rows are packed from documents."""
NEXT_TOKEN = ("packed", "passkey", *SYNTHETIC)
"""Tasks of decoders; their rows may stand in one batch."""
TASKS = (*NEXT_TOKEN, "masked", "triplets")
TRIPLET = ("query", "positive", "negative")
"""The texts of a row of the task triplets."""
TOKENIZERS = ("bert", "bpe", "byte", "char", "gpt2", "mistral")


@dataclasses.dataclass(frozen=True)
class ModelConfig(ConfigSection):
    """The decoder's sizes."""

    path: ClassVar[str] = "config.model."

    family: str = "llama"
    """"llama": RMSNorm, SwiGLU, no linear biases, a head of its own; "gpt2": LayerNorm, GELU, biases, a tied head; "bert":
    as gpt2, but norms follow the sums (post-norm), GELU is exact, and the tied head transforms its input; "mpt": as gpt2,
    but without any biases, and GELU is exact; "gemma": as llama, but with GELU in the place of SiLU, norms behind attention and
    MLP as well as before them, and a tied embedding times sqrt(width)."""
    causal: bool = True
    """False: an encoder, in which every token sees the whole text."""
    layers: int = 2
    """Blocks of attention and MLP."""
    width: int = 64
    """Width of the rows between the layers."""
    heads: int = 4
    """Heads of a layer."""
    head_dim: int = younger(0)
    """Width of a head's queries, keys and values; 0: width / heads."""
    kv_heads: int = 0
    """Key and value heads (grouped-query attention); 0: as many as heads."""
    hidden: int = 128
    """Width inside the MLP."""
    vocab: int = 0
    """0: what the tokenizer needs (`Tokenizer.padded`)."""
    remat: bool = False
    """Recompute each layer in the backward pass instead of storing its activations."""
    remat_keep: str = younger("nothing")
    """What `remat` stores of a layer all the same. "nothing", or "products": the results of matrix products and of attention, so
    that only cheap operations are computed again."""
    scan: bool = True
    """Compile one layer and loop over it. False compiles every layer, which takes longer. It is faster for a few small layers on
    a CPU, and trains with fewer bytes moved on a GPU: a loop copies all that it keeps for the backward pass."""
    dtype: str = "auto"
    """Dtype of matrix products; auto: bfloat16 on accelerators, float32 on CPU."""
    qk_norm: bool = younger(False)
    """An RMS norm of every head's query and key, with scales that train, before they are rotated (Henry et al. 2020; as in
    Qwen 3)."""
    gate: bool = younger(False)
    """A sigmoid gate on attention's output, elementwise and of every head, from the layer's input (Qiu et al. 2025, arXiv
    2505.06708)."""
    sinks: bool = younger(False)
    """A logit of each head, trained, of one key more whose value is 0 (gpt-oss; Xiao et al. 2024)."""
    soft_cap: float = younger(0.0)
    """c of c tanh(score / c), below which scores of queries and keys stay (Gemma 2, where it is 50); 0: none."""
    attention_dropout: float = younger(0.0)
    """Share of the attention weights that training drops (`bam_jax.attention.Dropout`); never in evaluation. Not with the task
    triplets."""
    tied: bool = younger(False)
    """The head is the transposed embedding, as it always is in gpt2 and bert."""
    qkv_bias: bool = younger(False)
    """Queries, keys and values have biases, as they always have in gpt2 and bert (Qwen 2)."""
    embedding_norm: bool = younger(False)
    """A norm behind the embeddings, as there always is in bert (BLOOM)."""
    norm_epsilon: float = younger(0.0)
    """Added to the variance in norms; 0: the family's, 1e-5 or in bert 1e-12, and 1e-6 in that of queries and keys."""

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.width // self.heads

    def check(self) -> None:
        self.above(1, "layers", "width", "heads", "hidden")
        self.above(0, "head_dim", "kv_heads", "vocab", "soft_cap", "norm_epsilon")
        self.below(2**16, "layers", "heads")  # of each, something is listed
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
"""Keys of the data that hold for a whole mixture."""


@dataclasses.dataclass(frozen=True)
class DataConfig(ConfigSection):
    """Where the text comes from and what is made of it."""

    path: ClassVar[str] = "config.data."

    source: str = "stdlib"
    """"stdlib" (the documentation every Python carries) or another corpus of `bam_jax.data.corpora`, or a folder or file of
    .txt, .jsonl or .parquet, or a folder that `bam_jax.data.prepare` wrote."""
    tokenizer: str = "char"
    """"char", "byte", "mistral", "gpt2" or "gpt2:FOLDER", "bert:PATH", "bpe:PATH" (`bam_jax.data.tokenizers`)."""
    task: str = "packed"
    """"packed": documents in rows, predict the next token; "masked": the same rows, predict masked tokens;
    "passkey": random windows with planted keys; "triplets": query, positive, negative; "recall", "recall_last", "copy":
    synthetic rows without text, a quarter items and the rest fillers (`bam_jax.data.tasks`)."""
    text_field: str = "text"
    """The field of a .jsonl line that holds the text."""
    holdout: float = 0.1
    """Fraction of the characters kept for evaluation; a prepared folder has its own hold-out."""
    held_out_source: str = ""
    """Evaluate on this source; then none of `source` is held out. "": on what is held out of `source`."""
    packing: str = "concat"
    """"concat": documents end to end, cut into rows; "first_fit": whole documents where they fit (longer ones are
    cut), the rest of a row padded; "framed": as concat, but a document begins with the tokenizer's begin token as well, and
    the last token of one predicts that of the next, as BAM's authors train."""
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
    similarity_scale: float = younger(20.0)
    """Factor of the cosines of embeddings in the loss, the inverse of its temperature (task triplets)."""
    mixture: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Several corpora in one batch: name to {"weight": share of the rows, and keys of this group that differ}."""
    workers: int = 0
    """Processes that make batches ahead; 0: made when asked for."""

    def parts(self) -> dict[str, tuple[float, "DataConfig"]]:
        """The corpora of the mixture, each with its weight; without a mixture this one alone.

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
        """True where embeddings are trained: rows are triplets, those of all parts of a mixture."""
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
        name = self.tokenizer.partition(":")[0]  # what follows is looked at where it is read
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
    """The optimiser and its schedule: from `rate` down to `final` x `rate` after a linear warm-up."""

    path: ClassVar[str] = "config.optimizer."

    name: str = "adamw"
    """"adamw" or "radam"."""
    rate: float = 3e-3
    """Peak learning rate."""
    prior_rate: float = 1.0
    """Multiplier of the rate for the prior's parameters."""
    b1: float = 0.9
    """Decay of the gradient's running mean."""
    b2: float = 0.95
    """Decay of its square's."""
    decay: float = 0.1
    """Decoupled weight decay of matrices; vectors and priors have none."""
    clip: float = 1.0
    """Largest global norm of a gradient."""
    warmup: int = 100
    """Steps in which the rate rises from 0 to its peak."""
    schedule: str = younger("cosine")
    """The way down after the warm-up: "cosine", or "linear", the default of Hugging Face's trainers."""
    final: float = 0.1
    """The rate at the last step, as a fraction of the peak."""
    accumulate: int = 1
    """Micro-batches that a batch is cut into, one after the other."""

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
    """The mesh of devices that share a training step (`bam_jax.parallel.sharding`); a run may go on with another.

    Both at 0: one device of a CPU; all accelerators, where fsdp spans one slice of TPUs or one host's GPUs.
    """

    path: ClassVar[str] = "config.mesh."

    data: int = 0
    """Devices that share the batch, each with all parameters; 0: what the others leave."""
    fsdp: int = 0
    """Devices that share the batch, the parameters and the optimiser's state; 0: what the others leave."""
    tensor: int = 1
    """Devices that share heads, the MLP's width and the vocabulary."""
    context: int = 1
    """Devices that share each sequence, by ring attention."""

    def check(self) -> None:
        self.above(0, "data", "fsdp")
        self.above(1, "tensor", "context")


OF_LAYERS = ("ssmax", "log_temperature", "log_temperature_start")
"""Fields of a configuration that a place of a pattern may state for its layers, among its encoding's options."""


@dataclasses.dataclass(frozen=True)
class Config(ConfigSection):
    """Everything that a run depends on."""

    path: ClassVar[str] = "config."

    encoding: str = "bam"
    """A name in `bam_jax.encodings.ENCODINGS`, or the import path "package.module:Class" of your own, whose module is
    imported where a command or its config file names it, and never because a run does. Or a pattern of such that layers
    repeat, each with options of its own: "rope:window=512/rope:window=512/nope:ssmax=on" (docs/layers.md)."""
    encoding_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the encoding, which checks them, and `window`, the tokens that a query sees at most, itself included. In a
    pattern those of every place that does not state its own."""
    ssmax: str = "off"
    """"on": the placement that the authors use with that encoding; "inside" or "outside": the prior's, of its factor;
    "effective": outside, the factor log(N + C) / log C of N keys that a head's prior leaves in play, C the context
    (`bam_jax.encodings.EffectiveSSMax`). "asentmax": 1.5-entmax (sparse) of logits whose scores have a
    learned factor (`AdaptiveScale`); "entmax": the same without it; "adaptive": an entropy-dependent temperature, for
    evaluating trained models."""
    log_temperature: float = younger(0.0)
    """alpha of the factor 1 + alpha ln max(n / n0, 1) of a query's scores, n the keys that it sees: Llama 4's, where it is 0.1
    and n0 8,192; 0: none."""
    log_temperature_start: int = younger(0)
    """n0 of that factor, in keys; 0: the context."""
    shared_encoding: bool = False
    """True: all layers have one encoding together (the default of BAM's code); false: each its own (its paper); in a pattern the
    layers of each run of equal places."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    context: int = 64
    """Tokens of a training sequence."""
    batch: int = 32
    """Rows of one optimiser step; a row is a sequence, or the three of a triplet."""
    steps: int = 2000
    """Optimiser steps; a run goes on where this is raised, at the rate that the schedule of all steps has there."""
    seed: int = 0
    """Seed of first parameters, order of the text and everything else that is drawn."""
    start: str = ""
    """A run, or quickstart, whose trained parameters are the first ones here; "": drawn from the seed."""
    log_every: int = 100
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between two checkpoints; there is one at the end as well."""
    eval_every: int = younger(0)
    """Steps between two measurements of the loss on held-out text, and at the end; 0: none."""
    eval_tokens: int = younger(2**16)
    """Tokens of that text, rounded up to whole batches; always the same."""
    logger: str = ""
    """Where metrics are written as well: "tensorboard"; "wandb", Weights & Biases; "": nowhere."""
    profile_steps: str = younger("")
    """FIRST:LAST, steps of which a trace is written into the run's folder, `profile`, for TensorBoard or XProf; "": none."""

    @property
    def sequences(self) -> int:
        """Sequences of one optimiser step, each of `context` tokens, pads among them."""
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
        """The arguments of `encodings.spec` for each place of the pattern of layers, one of a single encoding.

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
        """The modules of encodings of the user's own."""
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
        if self.data.contrastive:  # each micro-batch is embedded twice, to the same embeddings
            self.model.require("attention_dropout", not self.model.attention_dropout, "0 for the task 'triplets'")
        masked = [name for name, (_, part) in self.data.parts().items() if part.task == "masked"]
        if masked and self.model.causal:
            raise UserError("config.data.task='masked' needs an encoder; set --config.model.causal=False")
        count = self.optimizer.accumulate
        self.require("batch", self.batch % count == 0, f"a multiple of config.optimizer.accumulate={count}")
