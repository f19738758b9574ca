"""An evaluation that an experiment asks for."""

import dataclasses

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
        overrides: "--config.a.b=value", changes at evaluation only.
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
    overrides: tuple[str, ...] = ()
    label: str = ""

    def arguments(self) -> list[str]:
        """What stands behind `python -m bam_jax.evaluate --run=FOLDER`.

        >>> Evaluation("perplexity", (64, 128)).arguments()
        ['--eval=perplexity', '--lengths=64,128', '--tokens=32768']
        """
        given = dataclasses.asdict(self) | {"tasks": ",".join(self.tasks)}
        lengths = ",".join(map(str, self.lengths))
        options = [f"--{option}={given[option]}" for option in OPTIONS[self.name]]
        return [f"--eval={self.name}", f"--lengths={lengths}", *options, *self.overrides]
