"""A training from where its processes meet to the line that says how it ended."""

from pathlib import Path

from bam_jax.config import Config
from bam_jax.parallel import processes
from bam_jax.training import run_folder
from bam_jax.training.loop import fit

LOSSES = ("loss", "held_out_loss")
"""The numbers of the last line of metrics that are said at the end."""


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
            records = fit(config, workdir, progress=progress, longer=longer, stop=stop)
        if processes.is_first():
            last = records[-1] if records else {}
            losses = [
                f"{name.replace('_', '-', 1).replace('_', ' ')} {last[name]:.4g}" for name in LOSSES if name in last
            ]
            late = (
                f" (of step {last['step']}, the last in its metrics)" if losses and last["step"] < config.steps else ""
            )
            said = f"finished at step {config.steps}{': ' if losses else ''}{', '.join(losses)}{late}"
            if finished:
                remedies = [f"--config.start={workdir} trains another run from it"]
                if run_folder.latest_checkpoint(workdir):
                    remedies.insert(0, "a larger --config.steps trains it longer")
                said = f"nothing to do, {said}; {', '.join(remedies)}"
            print(f"{workdir}: {said}")
