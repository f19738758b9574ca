"""A trained run, opened for an analysis."""

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data import loader
from bam_jax.data.tokenizers import Tokenizer
from bam_jax.models.transformer import Decoder
from bam_jax.system import git
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, checkpoint, run_folder


@dataclasses.dataclass(frozen=True)
class OpenRun:
    """A run's newest checkpoint."""

    path: Path
    config: Config  # with the overrides
    tokenizer: Tokenizer
    model: Decoder
    # the fields of a record that identify the model: `step`, `config`, `commit`, `overrides`, `tokenizer`
    origin: Mapping[str, Any]
    allow: frozenset[str]  # addresses of text that may be fetched

    def require_decoder(self, because: str) -> None:
        if not self.config.model.causal:
            raise UserError(f"{self.path} is an encoder, {because}; give the run of a decoder")

    def held_out(self) -> np.ndarray:
        """The tokens of its held-out text, [tokens] int32; errors as in `loader.held_out`."""
        return loader.held_out(self.config, self.tokenizer, self.allow)

    def first_tokens(self, number: int) -> np.ndarray:
        """The first tokens of its held-out text, [number] int32."""
        found = self.held_out()[:number]
        if len(found) < number:
            raise UserError(f"the held-out text has {len(found)} tokens, not {number}; ask for a shorter text")
        return found


def open_run(run: str | os.PathLike, *, overrides: Mapping[str, Any] = {}, allow: Collection[str] = ()) -> OpenRun:
    """Opens a run for an analysis."""
    for name, value in overrides.items():
        if name.startswith("mesh."):
            raise UserError(f"{configs.arguments({name: value})[0]}: an analysis runs on one device; leave it out")
    path = bundled.find(run)
    digest = configs.digest(run_folder.read_config(path))
    step = run_folder.trained_step(path)  # read once: training may save another one in the meantime
    config, tokenizer, model = checkpoint.restore_model(path, overrides=overrides, step=step)
    origin = {"step": step, "config": digest, "commit": git.describe()}
    origin |= {"overrides": configs.typed(overrides), "tokenizer": tokenizer.hash}
    return OpenRun(path, config, tokenizer, model, origin, frozenset({*allow, *configs.mentioned(overrides)}))
