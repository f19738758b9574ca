"""The table whose comparison of speeds is kept in `tests/before/table`."""

from bam_jax.experiments.experiment import Column, Experiment, Row, Speed, Table, tabled

CONFIG = "configs/quickstart.py"
SMALL = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.hidden": 32}


def get_experiment() -> Experiment:
    """Two models that are not trained, and the memory of their backward passes."""
    memory = Column("memory", speed=Speed("memory", 32), unit=1e3)
    return tabled(
        "What a comparison left behind",
        rows=(Row("BAM SSMax", CONFIG, SMALL), Row("ALiBi", CONFIG, SMALL | {"encoding": "alibi", "ssmax": "off"})),
        tables=(Table("Table 1", (memory,), {"BAM SSMax": ("100",), "ALiBi": ("",)}),),
    )
