"""An evaluation that an experiment asks for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bam_jax import config
from bam_jax.data.prepared.documents import STDLIB
from bam_jax.data.tasks import ruler
from bam_jax.data.tasks.benchmarks import INVENTED

OPTIONS = {
    "harness": ("tasks", "questions", "shots", "data", "longer"),
    "passkey": ("depths", "trials", "seed", "patience"),
    "perplexity": ("tokens",),
    "ruler": ("tasks", "samples", "essays", "seed"),
    "speed": ("measure",),
}
"""Which fields of an `Evaluation` matter to which evaluation."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a trained row: the arguments of `bam_jax.evaluate`.

    Args:
        name: "harness", "passkey", "perplexity", "ruler", or "speed", which is no matter of a trained row
            (`bam_jax.bench.speed`).
        lengths: tokens.
        depths: equally spaced depths of a passkey.
        trials: prompts at each depth.
        seed: of the prompts or samples.
        patience: lengths one after another without any passkey found, after which longer ones are not measured; 0: all are.
        tokens: of text for the perplexity at each length.
        tasks: of RULER or of the harness.
        samples: of each of RULER's tasks and each length.
        essays: in which RULER hides needles.
        measure: of speed, such as "inference".
        questions: of each of the harness's tasks at most.
        shots: examples before each of them.
        data: where they are, or "invented".
        longer: what is done with those that are longer than the length: "cut" or "skip".
        overrides: changes at evaluation only, values by dotted names.
        label: the curve's name; "" means the row's.
    """

    name: str
    lengths: tuple[int, ...]
    depths: int = 20
    trials: int = 1
    seed: int = 0
    patience: int = 0
    tokens: int = 2**15
    tasks: tuple[str, ...] = tuple(ruler.TASKS)
    samples: int = 50
    essays: str = STDLIB
    measure: str = ""
    questions: int = 100_000
    shots: int = 0
    data: str = INVENTED
    longer: str = "cut"
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    label: str = ""

    def arguments(self) -> list[str]:
        """What stands behind `python -m bam_jax.evaluate --run=FOLDER`.

        >>> Evaluation("perplexity", (64, 128)).arguments()
        ['--eval=perplexity', '--lengths=64,128', '--tokens=32768']
        """
        lengths = ",".join(map(str, self.lengths))
        options = [f"--{option}={value}" for option, value in self.options().items()]
        return [f"--eval={self.name}", f"--lengths={lengths}", *options, *config.arguments(self.overrides)]

    def options(self) -> dict[str, Any]:
        """The options that `running.evaluate` takes besides lengths and overrides."""
        given = dataclasses.asdict(self) | {"tasks": ",".join(self.tasks)}
        return {option: given[option] for option in OPTIONS[self.name]}
