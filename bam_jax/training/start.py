"""What a training takes, besides parameters, from the run that it starts from."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bam_jax import config as configs
from bam_jax.data.tokenizers.copies import own_spec
from bam_jax.system import files
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, remote, run_folder

SIZES = "family layers width heads kv_heads hidden vocab tied qkv_bias qk_norm gate sinks".split()
"""Fields of the model that determine which parameters it has, except those of its encoding."""
CONSTANTS = "norm_epsilon soft_cap".split()
"""Fields that the parameters were trained with, and that another training may change."""


def sizes(changes: Mapping[str, Any], workdir: str | os.PathLike) -> dict[str, Any]:
    """The model's sizes and the tokenizer of the run `changes["start"]`, as additional changes; {} without a start.

    A resumed training takes them from its own folder, because the run may be gone.

    Raises:
        UserError: the changes contradict a size, or there is no such run.
    """
    start = changes.get("start", "")
    if not start:
        return {}
    if files.is_remote(workdir):
        path, step = remote.fetch(os.fspath(workdir), weights=False), remote.latest_step(os.fspath(workdir))
    else:
        path, step = Path(workdir), run_folder.latest_step(workdir)
    resumed = step and run_folder.read_config(path).start == start
    run = path if resumed else bundled.find(start)
    config = run_folder.read_config(run)
    fields = configs.to_fields(config)
    for name in SIZES:
        theirs = fields[f"model.{name}"]
        ours = changes.get(f"model.{name}", theirs)
        if name == "kv_heads":  # 0: as many as heads
            theirs, ours = (heads or config.model.heads for heads in (theirs, ours))
        if ours != theirs:
            said = f"config.model.{name}={ours} contradicts config.start={start}, where it is {theirs}"
            raise UserError(f"{said}; leave it out, or start from another run")
    tokenizer = config.data.tokenizer if resumed else own_spec(run, config.data.tokenizer)
    return {f"model.{name}": fields[f"model.{name}"] for name in (*SIZES, *CONSTANTS)} | {"data.tokenizer": tokenizer}
