"""The small scale: its rates, and that the committed records hold what its experiments ask."""

from pathlib import Path

import pytest
import small_scale

from bam_jax.experiments.sweep import Sweep
from bam_jax.system.errors import UserError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_missing_and_damaged_rates_name_their_search(tmp_path):
    file = tmp_path / "small_rates.json"
    with pytest.raises(UserError, match="after python experiments/small_rates.py"):
        small_scale.chosen_rates("ALiBi", file)
    with pytest.raises(UserError, match="has no rates of 'Mine, text'"):
        small_scale.chosen_rates("Mine, text", small_scale.RATES)
    for damaged in ("{", "{}", "[]"):
        file.write_text(damaged)
        with pytest.raises(UserError, match="is not what python experiments/.* writes .*; put it back"):
            small_scale.chosen_rates("ALiBi", file)


PAPERS = [path.stem for pattern in ("bam_*.py", "cable_*.py") for path in sorted(EXPERIMENTS.glob(pattern))]
ENCODERS = ["cable_figure6_mlm", "cable_figure7_contrastive", "cable_table3_retrieval"]
RATES = ["small_rates", "encoder_rates", "patterns_rates", "quickstart_rates"]
STUDIES = ["prior_study", "prior_slopes", "prior_patterns", "prior_shapes"]


@pytest.mark.parametrize(
    ("names", "scale", "runs"),
    [
        *((name, None, count) for name, count in zip(RATES, (150, 30, 54, 36), strict=True)),
        *((name, None, count) for name, count in zip(STUDIES, (80, 56, 28, 67), strict=True)),
        ("prior_confirmation", "small", 160),
        pytest.param(ENCODERS, "small", 120, marks=pytest.mark.full),
        # In the order of the page's command: of two experiments that ask one run, the earlier's row has the job's changes.
        pytest.param([name for name in PAPERS if name not in ENCODERS], "small", 504, marks=pytest.mark.full),
    ],
)
def test_the_committed_records_hold_all_that_experiments_ask(tmp_path, names, scale, runs):
    """A change of a configuration, seed or evaluation after the runs shows here."""
    files = [names] if isinstance(names, str) else names
    records = None if scale else str(EXPERIMENTS / "records" / names)
    paths = [str(EXPERIMENTS / f"{name}.py") for name in files]
    asked = Sweep.load(paths, runs=tmp_path, scale=scale, records=records)
    assert len(asked.rows) == runs and asked.find_unrecorded() == asked.benchmarks
