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
    longer: bool = False,
    coordinator: str = "",
    count: int = 0,
    process: int | None = None,
) -> None:
    """Train to the end, together with the other processes if there are any; signals have it save and stop.

    Args:
        config, workdir, progress, longer: see `fit`.
        coordinator, count, process: see `processes.joined`.

    Raises:
        UserError: see `fit`.
        errors.Stopped: a signal came.
    """
    with processes.joined(coordinator, count, process) as end:
        finished = processes.is_first() and run_folder.latest_step(workdir) == config.steps
        with processes.stopping(end) as stop:
            fit(config, workdir, progress=progress, longer=longer, stop=stop)
        if processes.is_first():
            more = f"; a larger --config.steps trains it longer, --config.start={workdir} another run from it"
            said = (
                f"nothing to do, finished at step {config.steps}{more}"
                if finished
                else f"finished at step {config.steps}"
            )
            print(f"{workdir}: {said}")
