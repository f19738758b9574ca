"""A training from where its processes meet to the line that says how it ended."""

from pathlib import Path

from bam_jax.config import Config
from bam_jax.parallel import processes
from bam_jax.training import run_folder
from bam_jax.training.loop import fit


def train(
    config: Config,
    workdir: Path,
    *,
    progress: bool | None = None,
    coordinator: str = "",
    count: int = 0,
    process: int | None = None,
) -> None:
    """Train to the end, together with the other processes if there are any; signals have it save and stop.

    Args:
        config, workdir, progress: see `fit`.
        coordinator, count, process: see `processes.joined`.

    Raises:
        UserError: see `fit`.
        errors.Stopped: a signal came.
    """
    with processes.joined(coordinator, count, process) as end:
        finished = processes.is_first() and run_folder.latest_step(workdir) == config.steps
        with processes.stopping(end) as stop:
            fit(config, workdir, progress=progress, stop=stop)
        if processes.is_first():
            print(f"{workdir}: {'nothing to do, ' if finished else ''}finished at step {config.steps}")
