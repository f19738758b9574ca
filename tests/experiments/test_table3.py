"""CABLE's Table 3: thirty cells, rows that start from one another, and lengths up to 32 times the training length."""

from decimal import Decimal
from pathlib import Path

import pytest

from bam_jax.evals.retrieval import Retrieval
from bam_jax.experiments import costs, experiment, jobs, paper_encoders
from bam_jax.experiments.entries import parse_number
from bam_jax.experiments.experiment import DASH, SCALES, Preparation

FILE = Path(__file__).parents[2] / "experiments" / "cable_table3_retrieval.py"


def load(scale):
    return experiment.load(FILE, scale=scale)


@pytest.mark.parametrize("scale", SCALES)
def test_the_values_are_those_of_the_paper(scale):
    table = load(scale).tables[0]
    texts = [text for row in table.values for _, text in table.cells(row)]
    found = [value for text in texts if (value := parse_number(text)) is not None]
    assert (len(texts), len(found), sum(found), texts.count(DASH)) == (30, 25, Decimal("303.20"), 5)
    cells = {label: {column.label: text for column, text in table.cells(label)} for label in table.values}
    assert (
        cells["RoPE"]["512"] == "15.16" and cells["ALiBi"]["4096"] == "18.71" and cells["Learnable"]["512"] == "10.42"
    )


@pytest.mark.parametrize("scale", SCALES)
def test_a_row_goes_on_from_masked_training_and_is_asked_up_to_32_times_its_length(scale):
    made = load(scale)
    planned = jobs.jobs(made)
    assert len(planned) == 5 * (12 if scale == "small" else 1)
    for root in planned:
        (job,) = root.then
        assert (
            job.config.start == root.name and job.config.data.task == "triplets" and root.config.data.task == "masked"
        )
        assert (root.config.encoding, root.seed, root.config.context) == (
            job.config.encoding,
            job.seed,
            job.config.context,
        )
        assert not root.row.evaluations
        asked = {each.scorer: each for each in job.row.evaluations if isinstance(each, Retrieval)}
        lengths = [job.config.context * 2**k for k in range(6)]
        learned = job.config.encoding == "learned"
        assert list(asked["encoder"].lengths) == (lengths[:1] if learned else lengths)
        assert list(asked["tokens"].lengths) == lengths
        assert ("bm25" in asked) == (job.config.encoding == "cable"), "words are the same whatever the model"


@pytest.mark.full
def test_the_paper_scale_says_what_it_costs():
    made = load("paper")
    text = costs.table("Table 3", jobs.jobs(made), "h100")
    assert text.startswith("Table 3: 10 runs") and "FLOP evaluating" in text
    prepared = [each for each in made.preparations if isinstance(each, Preparation)]
    arguments = [argument for each in prepared for argument in each.arguments]
    assert arguments.count(f"--tokenizer=bert:{paper_encoders.VOCABULARY}") == 2
    sources = {each.config.data.source for root in jobs.jobs(made) for each in (root, *root.then)}
    assert sources == {argument.removeprefix("--out=") for argument in arguments if argument.startswith("--out=")}


def test_the_smaller_scales_make_their_problem_first():
    for scale in ("toy", "small"):
        made = load(scale)
        (preparation,) = made.preparations
        assert preparation.makes == paper_encoders.retrieval(512, scale).queries
        assert "documentation" in " ".join(made.notes) and not made.comparable
        for root in jobs.jobs(made):
            assert (
                root.config.data.tokenizer
                == root.then[0].config.data.tokenizer
                == f"bpe:{paper_encoders.PROBLEM}/bpe.json"
            )
