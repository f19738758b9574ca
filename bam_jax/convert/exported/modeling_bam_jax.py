"""A decoder of bam_jax for Hugging Face's transformers: dense attention, without a cache of keys and values.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

config.json describes each layer's attention in `places`, which layers repeat, and the rest in `bam_jax`, the configuration there.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .biases_bam_jax import BIASES, counts, linear, log_effective_keys, softplus, steps


class BamJaxConfig(PretrainedConfig):
    """The fields of config.json."""

    model_type = "bam_jax"


class Norm(nn.Module):
    """RMSNorm, or LayerNorm with a bias, in float32."""

    def __init__(self, width: int, epsilon: float, centred: bool):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon
        self.bias = nn.Parameter(torch.zeros(width)) if centred else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        if self.bias is not None:
            wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.epsilon) * self.weight
        return (scaled if self.bias is None else scaled + self.bias).to(x.dtype)


class Encoding(nn.Module):
    """A positional encoding: its parameters, and what they make of queries, keys and pairs of both."""

    def __init__(self, place: dict):
        super().__init__()
        self.place = place
        for name, shape in place["parameters"].items():
            trained = name not in place["frozen"]
            self.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=trained))

    def values(self, device: torch.device) -> dict:
        """The parameters in float32, and the constants."""
        constant = lambda x: torch.tensor(x, dtype=torch.float32, device=device) if isinstance(x, list) else x
        constants = {name: constant(x) for name, x in self.place["constants"].items()}
        return constants | {name: x.float() for name, x in self.named_parameters()}

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """Queries or keys [B, H, T, D] whose pairs (x_n, x_{n + D/2}) are turned by position * rate_n."""
        if self.place["rates"] is None:
            return x
        rates = torch.tensor(self.place["rates"], dtype=torch.float64, device=x.device)
        angle = position[:, None, :, None] * rates  # in float64, exact enough at any position
        cos, sin = (self.place["magnitude"] * each.float() for each in (angle.cos(), angle.sin()))
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def bias(self, x: Tensor, position: Tensor, filled: Tensor) -> Tensor | float:
        """Nats [B, #H, T, T], given the layer's normed input."""
        name, p = self.place["encoding"], self.values(x.device)
        if name not in BIASES:
            return 0.0
        i = position[:, None].float()
        step = steps(torch, name, p, x.float())
        if step is not None:
            i = (step * filled[..., None]).double().cumsum(1).swapaxes(1, 2)
        if "weight_kernel" in p:
            p["query_weight"] = softplus(torch, linear(p, "weight", x.float())).swapaxes(1, 2)[..., None]
        return BIASES[name](torch, p, i[..., :, None], i[..., None, :]).float()

    def growth(self, count: Tensor) -> Tensor:
        """Scalable Softmax's factor [B, #H, T] without its scale, of queries that see so many keys."""
        if self.place["ssmax"] != "effective":
            return count.log()[:, None]
        known = torch.tensor(counts(), dtype=torch.float32, device=count.device)
        found = log_effective_keys(torch, self.place["encoding"], self.values(count.device), count, known)
        context = found.new_tensor(self.place["log_context"])
        return torch.logaddexp(found.detach(), context) / context


class Attention(nn.Module):
    """Attention over all pairs; the names of fields are those of bam_jax.models.blocks."""

    def __init__(self, config: BamJaxConfig, place: dict):
        super().__init__()
        model = config.bam_jax["model"]
        self.place, self.heads, self.soft_cap = place, config.num_attention_heads, model["soft_cap"]
        width, self.kv_heads, head = config.hidden_size, config.num_key_value_heads, config.head_dim
        has_bias, epsilon = model["family"] == "gpt2" or model["qkv_bias"], model["norm_epsilon"] or 1e-6
        self.query = nn.Linear(width, self.heads * head, bias=has_bias)
        self.key = nn.Linear(width, self.kv_heads * head, bias=has_bias)
        self.value = nn.Linear(width, self.kv_heads * head, bias=has_bias)
        self.out = nn.Linear(self.heads * head, width, bias=model["family"] == "gpt2")
        self.gate = nn.Linear(width, self.heads * head, bias=model["family"] == "gpt2") if model["gate"] else None
        self.query_norm = Norm(head, epsilon, False) if model["qk_norm"] else nn.Identity()
        self.key_norm = Norm(head, epsilon, False) if model["qk_norm"] else nn.Identity()
        self.sink_logits = nn.Parameter(torch.zeros(self.heads)) if model["sinks"] else None
        self.ssmax_scale = nn.Parameter(torch.ones(self.heads)) if place["ssmax"] else None

    def forward(self, x: Tensor, encoding: Encoding, position: Tensor, filled: Tensor) -> Tensor:
        split = lambda y, heads: y.unflatten(-1, (heads, -1)).swapaxes(1, 2)
        q, k, v = (
            split(self.query(x), self.heads),
            split(self.key(x), self.kv_heads),
            split(self.value(x), self.kv_heads),
        )
        q, k = (encoding.rotate(y, position) for y in (self.query_norm(q), self.key_norm(k)))
        apart = position[:, :, None] - position[:, None]
        seen = (apart >= 0) & filled[:, None]
        if self.place["window"] is not None:
            seen = seen & (apart < self.place["window"])
        count = seen.sum(-1).clamp(min=1).float()
        factor: Tensor | float = 1.0
        if self.place["log_temperature"]:
            alpha, start = self.place["log_temperature"]
            factor = (1 + alpha * (count / start).clamp(min=1).log())[:, None, :, None]
        inside: Tensor | float = 1.0
        if self.ssmax_scale is not None:
            ssmax = (self.ssmax_scale[:, None] * encoding.growth(count))[..., None]
            inside, factor = (ssmax, factor) if self.place["ssmax"] == "inside" else (1.0, factor * ssmax)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        scores = (q @ k.swapaxes(2, 3)).float() / math.sqrt(q.shape[-1]) * factor
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        logits = (scores + encoding.bias(x, position, filled)) * inside
        logits = logits.masked_fill(~seen[:, None], torch.finfo(torch.float32).min)
        if self.sink_logits is not None:  # one key more, whose value is 0
            sink = self.sink_logits[:, None, None].expand(*logits.shape[:3], 1)
            weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        out = (weights.to(v.dtype) @ v).swapaxes(1, 2).flatten(2)
        return self.out(out if self.gate is None else out * self.gate(x).sigmoid())


class MLP(nn.Module):
    """SwiGLU, or GELU with the tanh approximation and biases."""

    def __init__(self, width: int, hidden: int, gated: bool):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None
        self.up, self.down = nn.Linear(width, hidden, bias=not gated), nn.Linear(hidden, width, bias=not gated)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: BamJaxConfig, place: dict):
        super().__init__()
        gated = config.bam_jax["model"]["family"] == "llama"
        norm = lambda: Norm(config.hidden_size, config.norm_epsilon, not gated)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention = Attention(config, place)
        self.mlp = MLP(config.hidden_size, config.intermediate_size, gated)

    def forward(self, x: Tensor, *info: Any) -> Tensor:
        x = x + self.attention(self.attention_norm(x), *info)
        return x + self.mlp(self.mlp_norm(x))


class BamJaxForCausalLM(PreTrainedModel, GenerationMixin):
    """The language model; `generate` reads the whole text again for each token."""

    config_class = BamJaxConfig
    _no_split_modules = ("Block",)

    def __init__(self, config: BamJaxConfig):
        super().__init__(config)
        family = config.bam_jax["model"]["family"]
        places = [config.places[n % len(config.places)] for n in range(config.num_hidden_layers)]
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.positions, config.hidden_size) if config.positions else None
        owners = {own: places[n] for n, own in reversed([*enumerate(config.encoding_of)])}
        self.encodings = nn.ModuleList(Encoding(owners[own]) for own in sorted(owners))
        self.layers = nn.ModuleList(Block(config, place) for place in places)
        self.norm = Norm(config.hidden_size, config.norm_epsilon, family == "gpt2")
        self.head = None if config.tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are those of the file."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **unused: Any
    ) -> CausalLMOutput:
        """Logits of the next token, and the loss of `labels`, -100 being none."""
        filled = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        filled = filled.bool()
        position = (filled.long().cumsum(-1) - 1).clamp(min=0)  # padding on the left counts for nothing
        x = self.embed(input_ids)
        if self.position is not None:
            if position.max() >= self.position.num_embeddings:
                raise ValueError(f"the table of positions has {self.position.num_embeddings}: give a shorter text")
            x = x + self.position(position)
        if self.config.waves:
            rates = torch.tensor(self.config.waves, dtype=torch.float64, device=x.device)  # of sines and of cosines
            angle = position[..., None, None] * rates.T
            waves = torch.stack([angle[..., 0].sin(), angle[..., 1].cos()], -1).flatten(-2)
            x = x + waves[..., : x.shape[-1]].to(x.dtype)
        for layer, own in zip(self.layers, self.config.encoding_of, strict=True):
            x = layer(x, self.encodings[own], position, filled)
        x = self.norm(x)
        logits = (x @ self.embed.weight.T if self.head is None else self.head(x)).float()
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **unused: Any) -> dict:
        """The whole text."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
