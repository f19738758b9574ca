"""A training's size and an estimate of its duration on this machine, logged before it begins."""

import operator
from collections.abc import Iterator, Sequence

import jax

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.models import counts, layers
from bam_jax.models.counts import ParameterCounts
from bam_jax.system import extras, resources
from bam_jax.training import optimizer

LONG_STEP, LONG_RUN = 60.0, 30 * 86400.0  # seconds above which a smaller trial is suggested
SMALL = 0.1  # seconds; in shorter steps, operations do not take most of the time, so the estimate is a lower bound
_TRIAL = {"batch": 8, "context": 128, "model.layers": 2, "optimizer.accumulate": 1}
_UNITS = {"years": 365.25 * 86400, "days": 86400.0, "hours": 3600.0, "minutes": 60.0}


def describe(config: Config, known: ParameterCounts, devices: Sequence[jax.Device], done: int) -> Iterator[str]:
    """Lines with the size, with the estimated time of the remaining steps, and if that is very long, with a remedy."""
    count = known.embedding + known.transformer + known.prior
    size = f"{count:,} parameters, {config.steps:,} steps of {config.sequences * config.context:,} tokens"
    plural = "" if len(devices) == 1 else "s"
    yield f"{size}, on {len(devices)} device{plural} ({devices[0].device_kind})"
    cpu = devices[0].platform == "cpu"
    # The speed of a matrix product on this process's first device. CPU devices share the cores: many are no faster than one.
    sharing = len({device.process_index for device in devices} if cpu else devices)
    speed = sharing * resources.speed(layers.product_dtype(config.model.dtype)) * counts.UTILISATION
    step = counts.step_operations(config, known) / speed
    run = step * (config.steps - done)
    bound = "at least" if step < SMALL else "about"
    measured = f"by the speed of a matrix product here ({speed:.1e} operations a second at {counts.UTILISATION:.0%})"
    yield f"{bound} {span(step)} a step and {span(run)} for the steps to come, {measured}"
    if step > LONG_STEP or run > LONG_RUN:
        less = f"{' '.join(configs.arguments(smaller(config))) or 'fewer --config.steps'} into another --workdir"
        accelerator = f"an accelerator (make cuda or make tpu, or {extras.remedy('cuda')})"
        quick = "; --config=configs/quickstart.py takes about a minute" if cpu else ""
        yield f"that is long: try it on {accelerator if cpu else 'more devices'}, or with {less}{quick}"


def describe_more(config: Config, before: int, done: int) -> str:
    """A line on the learning rate of a run that is extended after `done` steps of a previous total of `before`."""
    then, now, end = (
        float(optimizer.schedule(config.optimizer, steps)(step))
        for steps, step in ((before, done), (config.steps, done), (config.steps, config.steps))
    )
    return (
        f"going on to {config.steps:,} steps, not {before:,}: the rate of step {done + 1:,} is {now:.2g}, as the schedule of "
        f"all steps has it, where that of before had come to {then:.2g}; the last one is {end:.2g}"
    )


def span(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two.

    >>> span(0.0123), span(75), span(5000), span(40 * 86400), span(1e9)
    ('0.012 s', '75 s', '83 minutes', '40 days', '32 years')
    """
    for name, length in _UNITS.items():
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def smaller(config: Config) -> dict[str, int]:
    """The changes that make a run small enough for a trial."""
    return {name: small for name, small in _TRIAL.items() if operator.attrgetter(name)(config) > small}
