"""The page of the papers' claims, and the check that reads a run's weights."""

from pathlib import Path

import numpy as np
import pytest

from bam_jax import claims as claims_command
from bam_jax.analysis import priors
from bam_jax.experiments import jobs
from bam_jax.experiments.cells import Measured
from bam_jax.render.learned import Heads
from bam_jax.report import claims_page
from bam_jax.report.claims_page import clusters
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

ROOT = Path(__file__).parents[2]


PAGES = {
    "claims.py": "claims.md",
    "claims_encoders.py": "encoder_claims.md",
    "claims_patterns.py": "patterns_claims.md",
    "claims_prior.py": "prior_claims.md",
}


@pytest.mark.full  # it reads all records
@pytest.mark.parametrize(("file", "page"), PAGES.items())
def test_the_committed_page_is_that_of_the_committed_records(tmp_path, file, page):
    """Make it again with python -m bam_jax.claims experiments/FILE --scale=small --runs=none --out=docs/PAGE."""
    made = claims_page.to_markdown(ROOT / "experiments" / file, tmp_path / "none", "small")
    assert (ROOT / "docs" / page).read_text() == made


@pytest.mark.full
def test_the_page_is_written_and_bad_input_named(tmp_path):
    out = tmp_path / "claims.md"
    # Records tell what runs measured, so the folder need not be there.
    given = [str(ROOT / "experiments" / "claims.py"), "--scale=toy", f"--runs={tmp_path / 'none'}", f"--out={out}"]
    claims_command.main(given)
    page = out.read_text()
    assert page.startswith("# What the papers claim") and "## What the verdicts mean" in page
    assert "**not measured** (by the paper's own numbers: holds)" in page and "**no verdict**" not in page
    claims_command.main(given)
    assert out.read_text() == page
    with pytest.raises(UserError, match="is of another scale than --scale=paper"):
        claims_command.main([given[0], "--scale=paper", *given[2:]])
    with pytest.raises(UserError, match="is a file; give the folder of the runs"):
        claims_command.main([given[0], f"--runs={out}"])
    assert out.read_text() == page
    out.write_text("my notes")
    with pytest.raises(UserError, match="this command did not write it"):
        claims_command.main(given)
    assert out.read_text() == "my notes"
    with pytest.raises(UserError, match="no file nowhere.py"):
        claims_command.main(["nowhere.py"])
    with pytest.raises(
        UserError, match=r"has no get_claims\(\); define get_claims\(\), .* as experiments/claims_prior.py does"
    ):
        claims_command.main([str(ROOT / "experiments" / "quickstart.py")])


@pytest.mark.parametrize(
    ("shapes", "holds"),
    [([-1.0, -0.5, 0.0, 0.5, 2.0], True), ([-1.0, -2.0, 0.0, 0.5, 2.0], False), ([-0.5, 0.0, 0.5, 2.0], False)],
)
def test_clusters_are_counted_among_learned_shapes(tmp_path, monkeypatch, shapes, holds):
    measured = Measured(tmp_path, "toy", ROOT / "experiments")
    check = clusters("bam_figure12_contexts", "context 512", (-0.6, 0.0))
    assert check(measured).criteria[0].met is None
    made = measured.load("bam_figure12_contexts", "toy")
    (job,) = [job for job in jobs.row_jobs(made) if job.row.label == "context 512"]
    (tmp_path / job.name / run_folder.CHECKPOINTS / str(job.config.steps)).mkdir(parents=True)
    learned = np.array([shapes])
    monkeypatch.setattr(priors, "learned_priors", lambda run: Heads(learned, learned, learned))
    (criterion,) = check(measured).criteria
    assert (criterion.met, criterion.n) == (holds, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NOTES = ()\ndef get_claims(): return 3", r"get_claims\(\) returns 3; it must be lists of Claim by paper"),
        ("NOTES = ()\ndef get_claims(): return {'a': [3]}", r"returns \{'a': \[3\]\}; it must be lists of Claim"),
        ("NOTES = 3\ndef get_claims(): return {}", "NOTES is 3; it must be a tuple of strings"),
        (
            "NOTES = ()\nSEEDS = (1, 2)\ndef get_claims(): return {}",
            r"SEEDS is \(1, 2\); it must be the number of seeds",
        ),
        ("NOTES = 'a note'\ndef get_claims(): return {}", "NOTES is 'a note'; it must be"),
    ],
)
def test_a_claims_file_of_other_things_is_named(tmp_path, text, says):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=says):
        claims_command.main([str(tmp_path / "mine.py")])
