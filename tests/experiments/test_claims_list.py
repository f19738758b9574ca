"""The claims of the papers: each can be read alone and asked at every scale, and the papers' tables bear most of them out."""

import functools
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from bam_jax.experiments import experiment
from bam_jax.experiments.cells import Measured, Printed, SeedValues
from bam_jax.experiments.claims import Verdict, judge
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.statistics import Kind

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = ("claims.py", "claims_encoders.py")
CLAIMS = {
    f"{paper}, {file}": said
    for file in FILES
    for paper, said in runpy.run_path(str(EXPERIMENTS / file))["get_claims"]().items()
}
EVERY = [claim for said in CLAIMS.values() for claim in said]

PRINTED_OTHERWISE = {
    "on Wikipedia, BAM without SSMax",  # RoPE 18.36 and ALiBi 18.55, BAM 18.93
    "on Wikipedia, ALiBi's perplexity",  # 0.38
    "on RULER's Single 2",  # at 4K RoPE SSMax 0.52, BAM SSMax 0.24
    "on RULER's MultiKey 3",
    "each of the five tasks of LongBench v2",  # dialogues: 35.0 and 35.0
    "at every size (here: at 51K)",  # 120M: 1.0 before and after
    "SSMax dominates the time of inference",  # nothing at 120M,
    "is imperceptible in larger models",  # a tenth at 1.1B
    "GPT-2 Tiny on FineWeb-Edu, CABLE has the lowest",  # ALiBi at 8192
    "T5-bias extrapolates well",  # 17.26, then 38.32
    "GPT-2 Tiny on WikiText-103, CABLE without the weights",
    "GPT-2 Tiny on FineWeb-Edu, CABLE without the weights",
}
"""Where the papers' tables do not bear out what their text says."""


class Named(Measured):
    """No numbers; every cell that is asked for must be in a table, and measured at the scale unless it may lack there."""

    def __init__(self, scale: str, may_lack: bool) -> None:
        self.scale, self.may_lack = scale, may_lack

    def seed_values(self, name: str, title: str, row: str, column: str, scale: str = "") -> SeedValues:
        (table,) = [table for table in load(name, scale or self.scale).tables if table.title.startswith(title)]
        cells = {each.label: (each, value) for each, value in table.cells(row)}
        assert self.may_lack or not cells[column][0].missing, f"{name}, {title}: {column}"
        return SeedValues({}, Kind.ACCURACY)


@functools.cache
def load(name, scale):
    return experiment.load(EXPERIMENTS / f"{name}.py", scale=scale)


@pytest.mark.parametrize("scale", SCALES)
def test_every_claim_asks_for_cells_that_its_scale_has(scale):
    for claim in EVERY:
        may_lack = scale == "small" and (bool(claim.unfit or claim.repeats) or claim.accelerator)
        for check in (*claim.checks, *([claim.needs] if claim.needs else [])):
            if not check.__module__.startswith("bam_jax.report"):  # those read weights, not tables
                check(Named(scale, may_lack))


def test_what_the_papers_print_bears_out_what_they_say(tmp_path):
    nothing, printed = Measured(tmp_path, "toy", EXPERIMENTS), Printed(tmp_path, "paper", EXPERIMENTS)
    judged = [each for said in judge(CLAIMS, nothing, printed).values() for each in said]
    contradicted = {each.claim.says for each in judged if each.printed is False}
    assert all(sum(part in says for says in contradicted) == 1 for part in PRINTED_OTHERWISE)
    assert len(contradicted) == len(PRINTED_OTHERWISE)
    assert sum(each.printed is True for each in judged) >= 50
    # And nothing holds of nothing, but for what a configuration tells.
    assert all("parameters" in each.claim.says for each in judged if each.verdict is Verdict.HOLDS)


def test_a_claim_can_be_read_alone():
    twice = [says for (place, says), n in Counter((claim.place, claim.says) for claim in EVERY).items() if n > 1]
    assert not twice
    for claim in EVERY:
        assert claim.checks or claim.why, claim.says
        assert not re.match(r"(it|its|they|the same|both)\b", claim.says), claim.says
        assert len(claim.says) < 400, claim.says


def test_what_is_unfit_says_why_and_the_papers_scale_can_ask_it():
    assert 20 < sum(bool(claim.unfit) for claim in EVERY) < len(EVERY) / 3
    assert not any(claim.unfit and claim.repeats for claim in EVERY)
    assert all(claim.checks for claim in EVERY if claim.unfit or claim.repeats or claim.accelerator)
