"""The claims of the papers: each can be read alone and tested at every scale, and the papers' tables bear most of them out."""

import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from bam_jax.experiments import claims, experiment
from bam_jax.experiments.cells import Measured, Printed, SeedValues
from bam_jax.experiments.claims import Verdict, judge
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.statistics import Kind

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = ("papers", "encoders", "patterns", "prior", "null_models", "synthetic")
CLAIMS = {name: claims.load(EXPERIMENTS / "claims" / f"{name}.toml").claims for name in FILES}
PAPERS = [*CLAIMS["papers"], *CLAIMS["encoders"]]

PRINTED_OTHERWISE = {
    "on Wikipedia: BAM without SSMax",  # RoPE 18.36 and ALiBi 18.55, BAM 18.93
    "on Wikipedia: ALiBi's perplexity",  # 0.38
    "on RULER's Single 2",  # at 4K RoPE SSMax 0.52, BAM SSMax 0.24
    "on RULER's MultiKey 3",
    "each of the five tasks of LongBench v2",  # dialogues: 35.0 and 35.0
    "BAM SSMax at every size",  # 120M: 1.0 before and after
    "SSMax dominates the time of inference",  # nothing at 120M,
    "is imperceptible in larger models",  # a tenth at 1.1B
    "Tiny, FineWeb-Edu: CABLE has the lowest",  # ALiBi at 8192
    "T5-bias extrapolates well",  # 17.26, then 38.32
    "Tiny, WikiText-103: CABLE without the weights",
    "Tiny, FineWeb-Edu: CABLE without the weights",
}
"""Where the papers' tables do not bear out what their text says."""


class Named(Measured):
    """No numbers; every cell that is asked for must be in a table, and measured at the scale unless it may lack there."""

    def __init__(self, scale: str, may_lack: bool) -> None:
        self.scale, self.may_lack = scale, may_lack

    def seed_values(self, table, row: str, column: str) -> SeedValues:
        (found,) = [
            each for each in load(table.file, table.scale or self.scale).tables if each.title.startswith(table.title)
        ]
        cells = {each.label: (each, value) for each, value in found.cells(row)}
        assert self.may_lack or not cells[column][0].missing, f"{table}: {column}"
        return SeedValues({}, Kind.ACCURACY)

    def learned_shapes(self, name, row):
        assert row in {each.label for each in load(name, self.scale).rows}
        return []


@functools.cache
def load(name, scale):
    return experiment.load(EXPERIMENTS / f"{name}.py", scale=scale)


@pytest.mark.parametrize("scale", SCALES)
def test_every_claim_reads_cells_that_its_scale_has(scale):
    for name, said in CLAIMS.items():
        if (scale == "paper" and name in FILES[2:]) or (name, scale) == ("synthetic", "small"):
            continue  # no paper has them, and the rates of the synthetic tasks are not searched yet
        for claim in said:
            may_lack = scale == "small" and (bool(claim.untestable or claim.repeats) or claim.accelerator)
            for check in (*claim.checks, *claim.needs):
                check.criteria(Named(scale, may_lack))


def test_what_the_papers_print_bears_out_what_they_say(tmp_path):
    nothing, printed = Measured(tmp_path, "toy", EXPERIMENTS), Printed(tmp_path, "paper", EXPERIMENTS)
    judged = [each for said in judge(PAPERS, nothing, printed).values() for each in said]
    contradicted = {each.claim.says for each in judged if each.printed_met is False}
    assert all(sum(part in says for says in contradicted) == 1 for part in PRINTED_OTHERWISE)
    assert len(contradicted) == len(PRINTED_OTHERWISE)
    assert sum(each.printed_met is True for each in judged) >= 50
    # And nothing is supported by nothing, except by a configuration.
    assert all("parameters" in each.claim.says for each in judged if each.verdict is Verdict.SUPPORTED)


def test_a_claim_can_be_read_alone():
    for said in CLAIMS.values():
        assert max(Counter((claim.place, claim.says, claim.here) for claim in said).values()) == 1
    for claim in (claim for said in CLAIMS.values() for claim in said):
        assert claim.note or claim.checks, claim.says
        assert claim.checks or not (claim.untestable or claim.repeats or claim.accelerator), claim.says
        assert not (claim.untestable and claim.repeats), claim.says
        assert not re.match(r"(it|its|they|the same|both)\b", claim.says), claim.says


def test_claims_on_retrieval_need_models_that_retrieve():
    for name, count, words in (("patterns", 8, "(more|fewer) keys|retrieves?"), ("synthetic", 14, "^(?!.*perplexity)")):
        retrieval = [claim for claim in CLAIMS[name] if re.search(words, f"{claim.says} {claim.here}")]
        assert len(retrieval) == count and all(claim.needs for claim in retrieval)
