"""The page of claims, and the check that reads a run's weights."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from bam_jax import claims as claims_command
from bam_jax.analysis import figures
from bam_jax.experiments import jobs
from bam_jax.experiments.cells import Measured
from bam_jax.experiments.claims import Claim, ClaimsFile, Judgement, Verdict
from bam_jax.experiments.criteria import voted
from bam_jax.render.learned import Heads
from bam_jax.report import claims_page
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

ROOT = Path(__file__).parents[2]
PAGES = {
    "papers": "claims",
    "encoders": "encoder_claims",
    "patterns": "patterns_claims",
    "prior": "prior_claims",
    "null_models": "null_claims",
    "fair_retrieval": "fair_claims",
}


@pytest.mark.full  # it reads all records
@pytest.mark.parametrize(("file", "name"), PAGES.items())
def test_the_committed_page_is_that_of_the_committed_records(tmp_path, monkeypatch, file, name):
    """Make it again with python -m bam_jax.claims experiments/claims/FILE.toml --runs=none --out=docs/NAME.md."""
    monkeypatch.syspath_prepend(ROOT / "experiments")  # where `near_heads` finds its encoding
    judged = claims_page.judge(ROOT / "experiments" / "claims" / f"{file}.toml", tmp_path / "none", "small")
    assert (ROOT / "docs" / f"{name}.md").read_text() == claims_page.to_markdown(judged, "small")


@pytest.mark.full
def test_the_page_is_written_and_bad_input_named(tmp_path):
    out = tmp_path / "claims.md"
    file = str(ROOT / "experiments" / "claims" / "papers.toml")
    given = [file, "--scale=toy", f"--runs={tmp_path / 'none'}", f"--out={out}"]  # records need no folder of runs
    claims_command.main(given)
    written = out.read_text()
    assert "| not measured |" in written and "no verdict" not in written
    claims_command.main(given)
    assert out.read_text() == written
    for arguments, says in (
        ([file, "--scale=paper", *given[2:]], "is of another scale than --scale=paper"),
        ([file, f"--runs={out}"], "is a file; give the folder of the runs"),
        ([*given, "--format=csv"], "this command did not write it"),
        (["nowhere.toml"], "no file nowhere.toml"),
    ):
        with pytest.raises(UserError, match=says):
            claims_command.main(arguments)
    out.write_text("my notes")
    with pytest.raises(UserError, match="this command did not write it"):
        claims_command.main(given)
    assert out.read_text() == "my notes"


@pytest.fixture
def judged():
    """A claim that is contradicted, one that is inconclusive and one without numbers."""
    shown = lambda votes: voted("a | b < 3", votes)
    first, second = Claim(place="1", says="all <keys>", here="at 1K"), Claim(place="2", says="most keys")
    said = [
        Judgement(first, [shown([False] * 8)], [shown([True])], Verdict.CONTRADICTED, p=0.01),
        Judgement(second, [shown([True] * 5 + [False] * 3)], [shown([])], remark="about 9 seeds needed", p=0.5),
        Judgement(Claim(place="3", says="proven", note="mathematics"), [], [], Verdict.UNCHECKED),
    ]
    return claims_page.Judged(ClaimsFile(frozen="abc1234"), {"P": said}, ["a machine"])


def test_a_claim_unfolds_to_its_criterion(judged):
    lines = [line for line in claims_page.to_markdown(judged, "small").splitlines() if line.startswith("|")][-3:]
    assert lines == [
        "|1|<details><summary>all &lt;keys&gt;</summary>at 1K; a \\| b &lt; 3</details>|contradicted||1|0 [0, 0.369]|8|",
        "|2|<details><summary>most keys</summary>a \\| b &lt; 3</details>"
        "|inconclusive (about 9 seeds needed)|||0.625 [0.245, 0.915]|8|",
        "|3|<details><summary>proven</summary>mathematics</details>|not checked|||||",
    ]


def test_every_criterion_is_in_the_csv(judged):
    assert "frozen in commit `abc1234`" in claims_page.to_markdown(judged, "small")
    rows = list(csv.DictReader(io.StringIO(claims_page.to_csv(judged))))
    assert len(rows) == 2 and (*rows[0],) == claims_page.CSV_HEAD
    found = [rows[0][name] for name in ("claim", "seeds", "printed", "estimate")]
    assert found == ["all <keys>", "8", "1", "0"]
    assert rows[1]["criterion"] == "a | b < 3" and rows[1]["p_for"] == "0.363" and rows[1]["printed"] == ""


def test_learned_shapes_are_read_from_runs(tmp_path, monkeypatch):
    measured = Measured(tmp_path, "toy", ROOT / "experiments", claims_page._read_shapes)
    assert measured.learned_shapes("bam_figure12_contexts", "context 512") == []
    made = measured.load("bam_figure12_contexts", "toy")
    (job,) = [job for job in jobs.row_jobs(made) if job.row.label == "context 512"]
    (tmp_path / job.name / run_folder.CHECKPOINTS / str(job.config.steps)).mkdir(parents=True)
    learned = np.array([[-1.0, 2.0]])
    monkeypatch.setattr(figures, "learned_priors", lambda run: Heads(learned, learned, learned))
    assert measured.learned_shapes("bam_figure12_contexts", "context 512") == [pytest.approx(learned)]
