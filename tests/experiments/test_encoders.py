"""CABLE's encoders: Figure 6 of masked tokens, Figure 7 of triplets, and Table 3 of retrieval, at every scale."""

import functools
import json
from pathlib import Path

import numpy as np
import paper_encoders
import paper_rows
import pytest
from paper_encoders import ENCODER_METHODS

from bam_jax.data import make_retrieval, tokenizers
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


def test_the_toy_scale_takes_minutes():
    assert sum(job.cost() for job in rows(FIGURE6, "toy").values()) / 2 < 400, "seconds of two cores"


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


def test_contrastive_training_is_one_epoch_of_the_papers():
    for _, job in later(FIGURE7, "paper"):
        config = job.config
        assert (config.batch, config.context) == (128, 512) and 0 <= 1_250_000 - config.batch * config.steps < 128
        assert (config.optimizer.schedule, config.optimizer.final, config.optimizer.decay) == ("linear", 0.0, 0.0)


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


WITHOUT_CONTEXT, SHOWN_ALONE = 658.0, 379.0
"""Perplexities of masked tokens in experiments/claims/encoders.toml: by frequencies, and where the token itself is shown."""


def shown_alone(frequency, tested):
    """The perplexity by Bayes' rule of what stands in a token's place, and nothing around it: see `data/packing/task_rows.py`."""
    kept = changed = 0.1
    shown = kept * frequency + changed / len(frequency)  # how often each token stands where one is to be foretold
    hidden = -np.log(frequency)
    as_it_was = -np.log(frequency * (kept + changed / len(frequency)) / shown)
    another = -np.log(frequency * changed / len(frequency)) + np.log(shown).mean()
    return np.exp((0.8 * hidden + kept * as_it_was + changed * another)[tested].mean())


@pytest.mark.full
def test_frequencies_alone_have_the_perplexity_that_the_condition_halves(tmp_path):
    make_retrieval.main(["--source=stdlib", "--vocab=2048", f"--out={tmp_path / 'made'}"])
    tokenizer = tokenizers.tokenizer(f"bpe:{tmp_path / 'made' / 'bpe.json'}")

    def ids(name):
        lines = (tmp_path / "made" / f"{name}.jsonl").read_text().splitlines()
        return tokenizer.encode_batch([json.loads(line)["text"] for line in lines])

    trained, tested = np.concatenate(ids("texts")), ids("corpus")
    counts = np.bincount(trained, minlength=tokenizer.size) + 1.0
    perplexity = np.exp(-np.log(counts / counts.sum())[np.concatenate(tested)].mean())
    assert perplexity == pytest.approx(WITHOUT_CONTEXT, rel=0.05)  # other Pythons have other documentation
    assert shown_alone(counts / counts.sum(), np.concatenate(tested)) == pytest.approx(SHOWN_ALONE, rel=0.05)
    assert min(map(len, tested)) > 2048, "documents are shorter than the longest length"
