"""The experiment whose sweep is kept in `tests/before/sweep`."""

from bam_jax.experiments.experiment import Claim, Evaluation, Experiment, Row

CONFIG = "configs/quickstart.py"
SMALL = (
    "--config.model.layers=1",
    "--config.model.width=16",
    "--config.model.heads=2",
    "--config.model.hidden=32",
    "--config.data.source=tests/before/prepared",
    "--config.context=32",
    "--config.batch=4",
    "--config.steps=300",
    "--config.log_every=100",
)
LENGTHS = (32, 64)


def get_experiment() -> Experiment:
    """Two rows: BAM SSMax; ALiBi, with another factor at evaluation as well."""
    passkey = Evaluation("passkey", LENGTHS, depths=2, trials=2)
    perplexity = Evaluation("perplexity", LENGTHS, tokens=512)
    halved = Evaluation(
        "perplexity", LENGTHS, tokens=512, overrides=("--config.encoding_options.factor=2.0",), label="ALiBi, factor 2"
    )
    return Experiment(
        title="What a sweep left behind",
        rows=(
            Row("BAM SSMax", CONFIG, SMALL, evaluations=(passkey, perplexity)),
            Row(
                "ALiBi",
                CONFIG,
                (*SMALL, "--config.model.family=gpt2", "--config.encoding=alibi", "--config.ssmax=off"),
                evaluations=(passkey, perplexity, halved),
            ),
        ),
        claims=(Claim("BAM SSMax", 32, least=0.9),),
        notes=("Models so small find no key; what matters is that this is read.",),
    )
