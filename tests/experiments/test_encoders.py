"""CABLE's encoders: Figure 6 of masked tokens, Figure 7 of triplets, and Table 3 of retrieval, at every scale."""

import functools
from pathlib import Path

import paper_encoders
import paper_rows
import pytest
from paper_encoders import ENCODER_METHODS

from bam_jax.evals.retrieval import Retrieval
from bam_jax.experiments import experiment, jobs
from bam_jax.experiments.experiment import DASH, SCALES

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FIGURE6, FIGURE7, TABLE3 = "cable_figure6_mlm", "cable_figure7_contrastive", "cable_table3_retrieval"


@functools.cache
def load(name, scale):
    """An experiment, and its jobs by row; the small scale's seeds are alike."""
    made = experiment.load(EXPERIMENTS / f"{name}.py", scale=scale)
    return made, jobs.jobs(made)


def rows(name, scale):
    return {job.row.label: job for job in jobs.row_jobs(load(name, scale)[0])}


def later(name, scale):
    """Pairs of a masked training and the contrastive one that starts from it."""
    for root in load(name, scale)[1]:
        (job,) = root.then
        yield root, job


def test_masked_training_is_the_papers():
    found = rows(FIGURE6, "paper")
    assert list(found) == [f"{method}, {row}" for method in ENCODER_METHODS for row in ("masked", "early")]
    _, preparation, _ = load(FIGURE6, "paper")[0].preparations
    assert "--tokenizer=bert:corpora/bert-base-uncased" in preparation.arguments
    for config in (job.config for job in found.values()):
        assert f"--out={config.data.source}" in preparation.arguments
        assert (config.model.family, config.model.causal, config.model.vocab) == ("bert", False, 30_522)
        assert (config.context, config.optimizer.rate, config.optimizer.decay) == (512, 1e-4, 0.0)
        assert config.batch // config.optimizer.accumulate == 4 * 32
    for method in ENCODER_METHODS:
        whole, early = (found[f"{method}, {row}"].config for row in ("masked", "early"))
        assert whole.encoding == early.encoding == paper_rows.CABLE_METHODS[method]
        assert (whole.steps, early.steps) == (14_000, 3500)
        assert whole.batch * whole.context * whole.steps == pytest.approx(10e9, rel=0.02), "about an epoch"


@pytest.mark.parametrize("scale", SCALES)
def test_every_encoding_is_evaluated_at_its_training_length(scale):
    for job in rows(FIGURE6, scale).values():
        (evaluation,) = job.row.evaluations
        assert evaluation.encoder and evaluation.lengths == (job.config.context,)
        assert job.config.data.task == "masked"


@pytest.mark.parametrize("scale", SCALES)
def test_a_contrastive_loss_has_as_many_candidates_as_in_training(scale):
    for root, job in later(FIGURE7, scale):
        assert (root.config.data.task, job.config.data.task) == ("masked", "triplets") and not root.row.evaluations
        (evaluation,) = job.row.evaluations
        assert (evaluation.lengths, evaluation.batch) == ((job.config.context,), job.config.batch)
        assert job.config.optimizer.warmup == pytest.approx(0.05 * job.config.steps, abs=1), "of whole steps"
        if scale == "small":  # a verdict is of triplets that chose no rate
            chose = job.config.data.held_out_source
            assert evaluation.overrides["data.held_out_source"] not in ("", chose)
            assert chose not in ("", job.config.data.source)


@pytest.mark.parametrize("scale", SCALES)
def test_retrieval_is_measured_to_32_times_the_training_length(scale):
    made, planned = load(TABLE3, scale)
    assert len(planned) == 5 * (12 if scale == "small" else 1)
    texts = [text for row in made.tables[0].values for _, text in made.tables[0].cells(row)]
    assert (len(texts), texts.count(DASH)) == (30, 5)
    for root, job in later(TABLE3, scale):
        assert job.config.start == root.name and root.config.data.task == "masked"
        same = ("encoding", "seed", "context")
        assert [getattr(root.config, name) for name in same] == [getattr(job.config, name) for name in same]
        asked = {each.scorer: each for each in job.row.evaluations if isinstance(each, Retrieval)}
        lengths = [job.config.context * 2**k for k in range(6)]
        learned = job.config.encoding == "learned"
        assert list(asked["encoder"].lengths) == (lengths[:1] if learned else lengths)
        assert list(asked["tokens"].lengths) == lengths
        assert ("bm25" in asked) == (job.config.encoding == "cable"), "words are the same whatever the model"


@pytest.mark.parametrize("scale", SCALES[:2])
def test_the_smaller_scales_make_their_problem_first(scale):
    made, _ = load(TABLE3, scale)
    (preparation,) = made.preparations
    assert preparation.makes == paper_encoders.retrieval(512, scale).queries
    tokenizers = {job.config.data.tokenizer for pair in later(TABLE3, scale) for job in pair}
    assert tokenizers == {f"bpe:{paper_encoders.PROBLEM}/bpe.json"}
