"""The table whose comparison of speeds is kept in `tests/before/table`."""

from bam_jax.experiments.experiment import Column, Evaluation, Experiment, Row, Table, tabled

CONFIG = "configs/quickstart.py"
SMALL = ("--config.model.layers=1", "--config.model.width=16", "--config.model.heads=2", "--config.model.hidden=32")


def get_experiment() -> Experiment:
    """Two models that are not trained, and the memory of their backward passes."""
    memory = Column("memory", Evaluation("speed", (32,), measure="memory"), unit=1e3)
    return tabled(
        "What a comparison left behind",
        rows=(
            Row("BAM SSMax", CONFIG, SMALL),
            Row("ALiBi", CONFIG, ("--config.encoding=alibi", "--config.ssmax=off", *SMALL)),
        ),
        tables=(Table("Table 1", (memory,), {"BAM SSMax": ("100",), "ALiBi": ("",)}),),
    )
