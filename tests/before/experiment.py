"""The experiment whose sweep is kept in `tests/before/sweep`."""

from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments.experiment import Expected, Experiment, Row

CONFIG = "configs/quickstart.py"
SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.hidden": 32,
    "data.source": "tests/before/prepared",
    "context": 32,
    "batch": 4,
    "steps": 300,
    "log_every": 100,
}
LENGTHS = (32, 64)


def get_experiment() -> Experiment:
    """Two rows: BAM SSMax; ALiBi, with another factor at evaluation as well."""
    passkey = Passkey(LENGTHS, depths=2, trials=2)
    perplexity = Perplexity(LENGTHS, tokens=512)
    halved = Perplexity(LENGTHS, tokens=512, overrides={"encoding_options.factor": 2.0}, label="ALiBi, factor 2")
    return Experiment(
        title="What a sweep left behind",
        rows=(
            Row("BAM SSMax", CONFIG, SMALL, evaluations=(passkey, perplexity)),
            Row(
                "ALiBi",
                CONFIG,
                SMALL | {"model.family": "gpt2", "encoding": "alibi", "ssmax": "off"},
                evaluations=(passkey, perplexity, halved),
            ),
        ),
        expected=(Expected("BAM SSMax", 32, least=0.9),),
        notes=("Models so small find no key; what matters is that this is read.",),
    )
