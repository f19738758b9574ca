"""BAM's Figure 8 at toy scale: how far passkeys are found, by the prior's initialisation, its learning rate and the depth.

Command:  python -m bam_jax.sweep experiments/prior_init.py --runs=runs/init && python -m bam_jax.report runs/init
Hardware: a CPU; 24 models, half of them with 4 layers.
Paper:    Figure 8 compares uniform with ALiBi-like starts at 120M parameters and context 512, both at the common rate:
          uniform reaches furthest. Its values are in the image alone.
"""

from pathlib import Path

from bam_jax.evals.passkey import Passkey
from bam_jax.experiments.experiment import Experiment, Row

CONFIG = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
INITS = {
    "spread 2": {"encoding_options.init": "spread", "encoding_options.spread": 2.0},
    "spread 1": {"encoding_options.init": "spread", "encoding_options.spread": 1.0},
    **{name: {"encoding_options.init": name} for name in ("linspace", "sampled", "alibi", "uniform")},
}
RATES = (1.0, 20.0)
LAYERS = (2, 4)
LENGTHS = (64, 256, 1024, 4096)

NOTES = (
    """Uniform, ALiBi, sampled and linspace(0, 1) are the starts that the paper or its code offers; spread, linspace(-1, 1)
    or (-2, 2), is ours. The rate is a multiple of the common one, for shape and scale alone. One training seed a row.""",
    """Retrieval is trained here: 80% of the training samples carry a key two or three times. In the paper it emerges.""",
)


def get_experiment() -> Experiment:
    """A row for each init, rate and number of layers."""
    rows = tuple(
        Row(
            f"{init}, {layers} layers, rate x{rate:g}",
            CONFIG,
            {**options, "optimizer.prior_rate": rate, "model.layers": layers},
            evaluations=(Passkey(LENGTHS),),
        )
        for layers in LAYERS
        for rate in RATES
        for init, options in INITS.items()
    )
    return Experiment(
        title="The prior's initialisation (BAM, Figure 8) at toy scale",
        rows=rows,
        notes=tuple(" ".join(note.split()) for note in NOTES),
    )
