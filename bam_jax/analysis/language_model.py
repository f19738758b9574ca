"""A trained model for interactive use: text in; text, logits and attention out."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float, Int

from bam_jax import config as configs
from bam_jax import theory
from bam_jax.analysis import heads
from bam_jax.attention import EMPTY
from bam_jax.config import Config
from bam_jax.convert import hub
from bam_jax.convert.runs import is_source, open_source
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.models import generate, per_device, transformer
from bam_jax.models.counts import parameter_count
from bam_jax.models.sampling import Sampling, whole_number
from bam_jax.models.transformer import Decoder
from bam_jax.parallel import sharding
from bam_jax.system.errors import UserError, shown
from bam_jax.training import bundled, checkpoint, run_folder

CHUNK = 1024
"""Tokens whose logits are computed at once."""
USUAL = Sampling(temperature=0.8)
"""The default distribution of tokens."""
TABLES = 2**31
"""Bytes of attention's tables, at most."""
CACHE = 2**37
"""Bytes of keys and values on a device, at most: the memory of the largest device."""


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer, the configuration of its run, the step of its training, and its mesh; see `load`."""

    decoder: Decoder
    tokenizer: Tokenizer
    config: Config
    step: int
    mesh: Mesh | None = None

    def __repr__(self) -> str:
        count = f"{parameter_count(self.decoder):,} parameters"
        return f"LanguageModel({self.config.encoding}, {count}, tokenizer {self.tokenizer.spec}, step {self.step:,})"

    def ids(self, text: str) -> Int[np.ndarray, " T"]:
        """The tokens of a text, preceded by the begin token of a document if the model was trained with it.

        Special symbols are written as the tokenizer writes them (such as <KEY> for the tokenizer char). UserError: the text is
        empty.
        """
        if not isinstance(text, str):
            raise UserError(f"the text is {shown(text)}, of type {type(text).__name__}; give a string")
        ids = self.tokenizer.encode_prompt(text)
        framed = any(part.packing == "framed" for _, part in self.config.data.parts().values())
        if framed and self.tokenizer.bos is not None:
            ids = np.concatenate([[self.tokenizer.bos], ids]).astype(np.int32)
        if not len(ids):
            raise UserError("the text is empty, and a model goes on from a token; give one letter at least")
        return ids

    def lacks(self, text: str) -> str:
        """A line that names the characters of a text that the tokenizer lacks; "" if it lacks none."""
        unknown = self.tokenizer.out_of_vocabulary(text) if isinstance(text, str) else ""
        what = f"the tokenizer {self.tokenizer.name!r} lacks {shown(unknown[:20])}"
        return f"{what}: they are read as one unknown character" if unknown else ""

    def _ids_or_warn(self, text: str) -> Int[np.ndarray, " T"]:
        if said := self.lacks(text):
            warnings.warn(said, stacklevel=3)
        return self.ids(text)

    def generate(
        self,
        prompt: str,
        tokens: int = 200,
        *,
        temperature: float = USUAL.temperature,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> str:
        """Generate text after a prompt, with `tokens` and `text`; temperature, top_k and top_p are those of `Sampling`.

        Like `logits` and `attention`, it warns about characters that the tokenizer lacks.

        >>> from bam_jax import load
        >>> load("quickstart").generate("<KEY>48213<END> and then we spoke of other things <KEY>", 5, temperature=0)
        '48213'
        """
        sampling = Sampling(temperature, top_k, top_p)
        self._ids_or_warn(prompt)
        return "".join(self.text(self.tokens(prompt, tokens, sampling=sampling, seed=seed), stop))

    def tokens(
        self,
        prompt: str,
        tokens: int = 200,
        *,
        sampling: Sampling = USUAL,
        seed: int = 0,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Iterator[int]:
        """Generate at most `tokens` tokens after a prompt, each as soon as it is sampled; progress as in `generate.generate`.

        Raises:
            UserError: the model is an encoder, the prompt is empty, or prompt and tokens are too many for its positions.
        """
        if not self.config.model.causal:
            raise UserError("an encoder (config.model.causal=False) does not write; evaluate it, or load a decoder")
        whole_number("tokens", tokens)
        whole_number("seed", seed, 2**32 - 1)
        ids = jnp.asarray(self.ids(prompt))[None]
        self._check_room(ids.shape[1], tokens)
        vocab = self.tokenizer.size
        written = generate.generate(
            self.decoder, ids, tokens, sampling=sampling, seed=seed, vocab=vocab, progress=progress
        )

        def one_by_one() -> Iterator[int]:
            while True:
                with sharding.active(self.mesh):  # not active while the caller has a token
                    token = next(written, None)
                if token is None:
                    return
                yield int(token[0])

        return one_by_one()

    def _check_room(self, read: int, written: int) -> None:
        """Raise UserError if the model's table of positions or the memory for its cache is too small."""
        limit, slots = self.decoder.limit, read + max(written, 1) - 1  # the last generated token is not read
        given = f"a prompt of {read:,} tokens and tokens={written:,} to write"
        if limit is not None and slots > limit:
            fewer = f"tokens={limit - read + 1} or fewer" if read <= limit else f"a prompt of {limit} tokens or fewer"
            raise UserError(f"{given} are more than the learned position table holds ({limit}); give {fewer}")
        caches = jax.eval_shape(lambda: self.decoder.caches(1, slots))  # an encoding may widen keys
        needed = sum(x.size * x.dtype.itemsize for cache in caches for x in (cache.k, cache.v))
        if self.mesh is not None:
            needed //= self.mesh.shape["tensor"] * self.mesh.shape["context"]
        if self.decoder.prune_cache != "off":
            with sharding.active(self.mesh):
                needed = int(needed * generate.Kept(self.decoder, slots).share())
        if needed > CACHE:
            raise UserError(f"{given} need {needed / 2**30:,.0f} GiB for keys and values; give fewer")

    def text(self, tokens: Iterable[int], stop: str | Sequence[str] = ()) -> Iterator[str]:
        """The text of token ids in pieces, up to the token that ends a document or to one of the strings `stop`.

        UserError: one of the strings is empty.
        """
        stop = [stop] if isinstance(stop, str) else stop
        if "" in stop:
            raise UserError("stop has an empty text, which stands everywhere; leave it out")
        return until(_decoded(self.tokenizer, tokens), stop)

    def logits(self, text: str) -> Float[np.ndarray, "T V"]:
        """Logits at each token of a text, float32: those of the next token in a decoder, of the token itself in an encoder."""
        ids = self._ids_or_warn(text)
        self.decoder.check_length(len(ids))
        with sharding.active(self.mesh):
            return self._logits(ids)

    def _logits(self, ids: Int[np.ndarray, " T"]) -> Float[np.ndarray, "T V"]:
        if self.config.model.causal and len(ids) > CHUNK:
            chunk = CHUNK // per_device.text_parts() * per_device.text_parts()  # all rows of a chunk are wanted
            pieces = generate.read_in_chunks(self.decoder, jnp.asarray(ids)[None], chunk=chunk, read=chunk)
            rows = np.concatenate([np.asarray(logits[0]) for logits, _ in pieces])
        else:
            pad = -len(ids) % generate.SLOTS
            position = np.pad(np.arange(len(ids), dtype=np.int32), (pad, 0), constant_values=EMPTY)
            rows = np.asarray(_logits(*nnx.split(self.decoder), np.pad(ids, (pad, 0)), position))
        return rows[len(rows) - len(ids) :, : self.tokenizer.size]

    def attention(self, text: str) -> list[theory.Factors]:
        """Attention weights over a text and their factors: for each layer `joint`, `content`, `position` [H, T, T].

        `position` is the prior of each query over its keys, and joint = content * position / z. UserError: the tables of all
        layers do not fit into memory.
        """
        ids = self._ids_or_warn(text)
        size = self.config.model
        needed = 3 * 4 * size.layers * size.heads * len(ids) ** 2
        if needed > TABLES:
            raise UserError(
                f"the attention of {len(ids)} tokens takes {needed / 2**30:.0f} GiB; give a shorter text, or look at one "
                "layer's `decoder.scorings`"
            )
        with sharding.active(self.mesh):
            return [_factors(*scored) for scored in heads.score_text(self.decoder, ids)]


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph: nnx.GraphDef, state: nnx.State, ids: Any, position: Any) -> Any:
    return nnx.merge(graph, state)(ids[None], position=position[None])[0][0]


@jax.jit
def _factors(q: Any, k: Any, scoring: Any) -> theory.Factors:
    return theory.factors(*heads.logits(q, k, scoring))


def load(
    run: str | os.PathLike,
    *,
    overrides: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    step: int | None = None,
) -> LanguageModel:
    """A trained model, from the newest checkpoint of a run.

    Args:
        run: the folder of a run, of converted or of exported weights, local or at gs://... or s3://...; or "quickstart", the
            model that comes with the package; or a model that `python -m bam_jax.convert` reads: a folder in the format of
            transformers, a .gguf file, or "hf:ORGANISATION/NAME" on the Hugging Face hub.
        overrides: changes at evaluation time, values by dotted names, as in {"encoding_options.window": 64}. `mesh.*`
            shards the model and its caches over devices, as in {"mesh.tensor": 4, "mesh.context": 2}.
        allow: modules of your own that define the run's encoding.
        step: the step of another checkpoint.

    Raises:
        UserError: there is no run, no checkpoint or none of that step, it cannot be read, or the changes do not fit it.

    It warns about weights that a converted model does not use.

    >>> from bam_jax import load
    >>> model = load("quickstart")
    >>> model.logits("to be or not").shape
    (12, 73)
    >>> model.attention("to be or not")[0].position.shape
    (4, 12, 12)
    """
    configs.allowed([*allow])
    overrides, mesh = sharding.take_mesh(overrides or {})
    if is_source(path := hub.find(run)):
        if step is not None:
            raise UserError(f"{run} is no run and has no checkpoint of step {shown(step)}; leave step out")
        with open_source(path, overrides) as source:
            for note in source.notes:
                warnings.warn(note, stacklevel=2)
            if mesh is not None:
                sharding.check_model(source.config, mesh)
            decoder = transformer.placed(source.decoder(), mesh)
            return _scanned(source.config, source.tokenizer, decoder, source.config.steps, mesh)
    folder = bundled.find(run, step)
    step = run_folder.trained_step(folder, step)
    config, tokenizer, decoder = checkpoint.restore_model(folder, overrides=overrides, step=step, mesh=mesh)
    return _scanned(config, tokenizer, decoder, step, mesh)


def _scanned(config: Config, tokenizer: Tokenizer, decoder: Decoder, step: int, mesh: Mesh | None) -> LanguageModel:
    """The model, set to compile one layer instead of each."""
    decoder.config = dataclasses.replace(config.model, scan=True)
    return LanguageModel(decoder, tokenizer, config, step, mesh)


def until(pieces: Iterator[str], stop: Sequence[str]) -> Iterator[str]:
    """The text of pieces up to the first of some non-empty strings, wherever the pieces split it.

    A possible beginning of a string is held back until the next pieces decide.

    >>> list(until(iter(["one, t", "wo, th", "ree"]), ["two", "e"]))
    ['on']
    >>> list(until(iter(["one, t", "wo, th", "ree"]), ["two"]))
    ['one, ']
    """
    held = ""
    first = lambda: min((held.index(word) for word in stop if word in held), default=len(held))
    for piece in pieces:
        held += piece
        begun = max((n for word in stop for n in range(1, len(word)) if held.endswith(word[:n])), default=0)
        found, unknown = first(), len(held) - begun
        if end := min(found, unknown):
            yield held[:end]
        if found < len(held) and found <= unknown:
            return
        held = held[end:]
    if end := first():
        yield held[:end]


def _decoded(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens that continue a text, up to the end token; each piece is yielded once its characters are complete."""
    ids = tokenizer.encode("a").tolist()  # decoding may drop a text's first space, but this text continues
    # A token's text may depend on the tokens before it, so the last piece is decoded again with the next.
    start, said = 0, len(ids)
    text = lambda stop: tokenizer.decode(np.array(ids[start:stop], np.int32))
    for token in tokens:
        if token == tokenizer.eos:
            break
        ids.append(token)
        before, now = text(said), text(len(ids))
        if len(now) > len(before) and not now.endswith("\ufffd"):  # this may be the first bytes of a character
            yield now[len(before) :]
            start, said = said, len(ids)
    yield text(len(ids))[len(text(said)) :]
