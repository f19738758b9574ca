"""The verdicts on claims: of the papers' own numbers, of none, and of seeds that were made up; and the claims themselves."""

import functools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bam_jax.experiments import claims, experiment
from bam_jax.experiments.cells import Measured, Printed, SeedValues, TableName
from bam_jax.experiments.claims import Claim, Verdict
from bam_jax.experiments.comparisons import AnyAbove, Better, Bound, Ratio
from bam_jax.experiments.experiment import SCALES
from bam_jax.experiments.statistics import Kind
from bam_jax.system.errors import UserError

X = {"table": TableName("a", "b"), "columns": ["x"]}
PROMPTS = 10_000
NOISE = np.array([-0.03, 0.01, 0.02, -0.01, 0.0, 0.03, -0.02, 0.0])


class Given(Measured):
    """Accuracies of seeds, or speeds on a device, by row; in whatever column."""

    def __init__(self, scale="small", device="", kind=Kind.ACCURACY, **rows):
        self.scale, self.device, self.kind, self.rows = scale, device, kind, rows

    def seed_values(self, table, row, column):
        values = np.atleast_1d(self.rows[row] if row in self.rows else []).tolist()
        prompts = PROMPTS * len(values) if self.kind is Kind.ACCURACY else 0
        return SeedValues(dict(enumerate(values)), self.kind, prompts, device=self.device)


def bound(row, **bounds):
    return Bound(**X, rows=[row], **bounds)


def better(row, *than, **fields):
    return Better(**X, rows=[row], than=[*than], **fields)


SURE = Given(a=0.9 + NOISE, b=0.5 + NOISE, few=[0.9] * 3, one=[0.9], same=0.9 + NOISE[::-1])
PAPER = Given(a=[0.95], b=[0.5])
HIGH = bound("a", least=0.8)
SAME = better("a", "same")


def claim(*checks, **fields):
    return Claim(place="1", says="x", paper="P", checks=[*checks], **fields)


def judge(said, measured=SURE, printed=PAPER):
    ((found,),) = claims.judge([said], measured, printed).values()
    return found


def verdict(measured, *checks, **fields):
    return judge(claim(*(checks or [HIGH]), **fields), measured).verdict


def test_a_claim_is_supported_contradicted_or_inconclusive():
    assert verdict(SURE, HIGH) is Verdict.SUPPORTED
    assert verdict(SURE, bound("a", most=0.8)) is Verdict.CONTRADICTED
    assert judge(claim(SAME)).remark == "more than 1,000 seeds needed"
    close = judge(claim(bound("a", least=0.895)))
    assert close.verdict is Verdict.INCONCLUSIVE and re.fullmatch(r"about \d+ seeds needed", close.remark)


def test_all_criteria_must_be_met_and_one_that_is_not_contradicts():
    assert verdict(SURE, HIGH, bound("b", most=0.6)) is Verdict.SUPPORTED
    assert verdict(SURE, HIGH, bound("b", least=0.6)) is Verdict.CONTRADICTED
    assert verdict(SURE, HIGH, SAME) is Verdict.INCONCLUSIVE
    # One of twenty criteria looks unmet by chance: its p-value is times their number.
    slightly = bound("a", least=0.92)
    assert verdict(SURE, slightly) is Verdict.CONTRADICTED
    assert verdict(SURE, slightly, *[HIGH] * 19) is Verdict.INCONCLUSIVE
    assert judge(claim(HIGH, bound("b", least=0.6))).decisive == 1


@pytest.mark.parametrize(("one_sided", "verdict"), [(0.02, Verdict.SUPPORTED), (0.03, Verdict.INCONCLUSIVE)])
def test_both_directions_count(one_sided, verdict):
    """Alone on its page a claim is decided at a two-sided p of 0.05."""
    losses = 2.0 + NOISE
    bound = Bound(**X, rows=["a"], least=losses.mean() - stats.t.isf(one_sided, 7) * stats.sem(losses))
    found = judge(claim(bound), Given(kind=Kind.LOSS, a=losses))
    assert found.p == pytest.approx(2 * one_sided) and found.verdict is verdict


def test_fewer_than_eight_seeds_have_no_verdict():
    found = judge(claim(HIGH, bound("few", least=0.8)))
    assert found.verdict is Verdict.UNMEASURED and found.remark == "3 of 8 seeds; 1 of 2 criteria measured"
    assert verdict(SURE, bound("none", least=0.8)) is Verdict.UNMEASURED


def test_the_toy_scale_has_no_verdict():
    toy = Given("toy", **SURE.rows)
    assert verdict(toy) is verdict(toy, accelerator=True) is verdict(toy, untestable="so") is Verdict.NONE
    assert verdict(toy, bound("one", least=0.8)) is Verdict.NONE
    assert verdict(toy, bound("none", least=0.8)) is Verdict.UNMEASURED
    assert verdict(Given("toy", kind=Kind.SPEED, device="cpu", a=1.0)) is Verdict.NONE


def test_where_no_model_can_do_the_task_nothing_is_tested():
    able = lambda *rows, above: [AnyAbove(**X, rows=[*rows], above=above)]
    assert verdict(SURE, HIGH, needs=able("a", "b", above=0.7)) is Verdict.SUPPORTED
    unable = judge(claim(HIGH, needs=able("b", above=0.49)))
    assert unable.verdict is Verdict.UNTESTABLE and unable.p == 1.0 and unable.remark == "condition not met: p = 0.1"
    assert verdict(SURE, HIGH, needs=able("a", "few", above=0.7)) is Verdict.UNMEASURED
    # All conditions are needed.
    assert verdict(SURE, HIGH, needs=[*able("a", above=0.7), *able("b", above=0.7)]) is Verdict.UNTESTABLE


def test_a_claim_that_a_scale_cannot_test_waits_for_the_papers():
    paper = Given("paper", **SURE.rows)
    assert judge(claim(HIGH, untestable="always so")).remark == "always so"
    assert verdict(SURE, untestable="always so") is Verdict.UNTESTABLE
    assert verdict(paper, untestable="always so") is Verdict.SUPPORTED
    again = judge(claim(HIGH, repeats="Table 1"))
    assert (again.verdict, again.remark, again.p) == (Verdict.REPEATED, "Table 1", None)
    assert verdict(paper, repeats="Table 1") is Verdict.SUPPORTED


def test_what_needs_an_accelerator_is_tested_where_it_was_measured_on_one():
    fast = Ratio(**X, rows=["a"], over=["b"], least=1.0)
    on = lambda device, **rows: verdict(Given(kind=Kind.SPEED, device=device, **rows), fast, accelerator=True)
    assert on("cpu", a=2.0, b=1.0) is Verdict.ACCELERATOR
    assert on("an H100", a=2.0, b=1.0) is Verdict.SUPPORTED
    assert on("an H100", a=1.0, b=2.0) is Verdict.CONTRADICTED
    assert verdict(Given(), accelerator=True) is Verdict.ACCELERATOR
    assert verdict(SURE, bound("few", least=0.8), accelerator=True) is Verdict.ACCELERATOR
    assert verdict(SURE, accelerator=True) is Verdict.SUPPORTED


def test_a_property_of_a_configuration_needs_no_seeds():
    sizes = Given("toy", kind=Kind.CONFIGURATION, a=576)
    assert verdict(sizes, bound("a", most=1000)) is Verdict.SUPPORTED
    found = judge(claim(bound("a", most=500)), sizes)
    assert found.verdict is Verdict.CONTRADICTED and found.p is None
    assert verdict(sizes, bound("b", most=500)) is Verdict.UNMEASURED
    assert judge(claim(note="mathematics")).verdict is Verdict.UNCHECKED


def test_the_papers_own_numbers_meet_criteria_or_not():
    checks = [HIGH], [bound("b", least=0.8)], [HIGH, bound("few", least=0.8)]
    assert [claims._met(judge(claim(*each)).printed) for each in checks] == [True, False, None]


def page_of(rng, *, count, differing, noise=0.05):
    """The verdicts on claims about rows, of which some differ by something, and the truth of each claim."""
    rows = 12
    means = np.where(rng.uniform(size=rows) < differing, rng.normal(0.0, 0.1, rows), 0.0)
    seeds = 20 * np.exp(means[:, None] + rng.normal(0.0, noise, (rows, 8)) + rng.normal(0.0, noise, 8))
    measured = Given(kind=Kind.PERPLEXITY, **{str(k): values for k, values in enumerate(seeds)})
    page, truth = [], []
    for _ in range(count):
        one, *others = rng.permutation(rows)[: 2 + rng.integers(2)]
        page.append(claim(better(str(one), *map(str, others), lower=True)))
        truth.append(all(means[one] < means[other] for other in others))
    return [each.verdict for each in claims.judge(page, measured, measured)["P"]], truth


@pytest.mark.parametrize("differing", [0.0, 0.6])
def test_few_verdicts_of_a_page_are_false(differing):
    rng, shares, told = np.random.default_rng(0), [], []
    for _ in range(20):
        verdicts, truth = page_of(rng, count=20, differing=differing)
        wrong = [
            v is (Verdict.CONTRADICTED if true else Verdict.SUPPORTED) for v, true in zip(verdicts, truth, strict=True)
        ]
        told.append(sum(each in (Verdict.SUPPORTED, Verdict.CONTRADICTED) for each in verdicts))
        shares.append(sum(wrong) / max(told[-1], 1))
    assert np.mean(shares) <= claims.FALSE_DISCOVERIES
    assert np.mean(told) > 3 or not differing


def test_claims_share_the_false_discoveries_of_their_page():
    """A p-value that decides alone may not do so among many that show nothing."""
    alone = claim(bound("a", least=0.88))
    assert judge(alone).verdict is Verdict.SUPPORTED
    assert claims.judge([alone, *[claim(SAME)] * 30], SURE, PAPER)["P"][0].verdict is Verdict.INCONCLUSIVE


def test_seeds_that_were_fixed_before_are_waited_for():
    """A page that is made while they are trained tempts nobody to stop."""
    more = Given(a=0.9 + NOISE, nine=0.9 + np.append(NOISE, 0.0))
    needing = claim(bound("nine", least=0.8), needs=[bound("a", least=0.5)])
    for said, remark in ((claim(HIGH), "8 of 9 seeds; "), (needing, "8 of 9 seeds of its condition")):
        assert claims.judge([said], more, PAPER, 8)["P"][0].verdict is Verdict.SUPPORTED
        (found,) = claims.judge([said], more, PAPER, 9)["P"]
        assert found.verdict is Verdict.UNMEASURED and found.remark.startswith(remark)


def test_a_cell_that_does_not_exist_is_named(tmp_path):
    measured = Measured(tmp_path, "toy", EXPERIMENTS)
    with pytest.raises(UserError, match="no cell 'BAM', '3K'"):
        measured.seed_values(TableName("bam_figure2_passkey", "Figure 2"), "BAM", "3K")
    with pytest.raises(UserError, match="0 tables whose titles begin with 'Figure 3'"):
        measured.seed_values(TableName("bam_figure2_passkey", "Figure 3"), "BAM", "1K")


MINE = """
[tables]
table1 = {file = "mine", title = "Table 1"}
[rows]
others = ["B", "C"]
[[claim]]
place = "1"
says = "A is best"
"""
CHECK = 'is = "better", table = "table1", columns = "16", rows = "A", than = "others"'


@pytest.fixture
def load(tmp_path):
    def read(text):
        (tmp_path / "mine.toml").write_text(text)
        return claims.load(tmp_path / "mine.toml")

    return read


def test_names_stand_for_tables_rows_and_reasons(load):
    (made,) = load(MINE + f'untestable = "small"\nchecks = [{{{CHECK}}}]\n[reasons]\nsmall = "too small"\n').claims
    assert made.untestable == "too small" and made.checks[0].than == ["B", "C"] and made.checks[0].rows == ["A"]
    assert made.checks[0].table == TableName("mine", "Table 1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds = 0", "mine.toml: Expected `int` >= 1 - at `\\$.seeds`"),
        ("[[claim]]\nplace = '1'", r"mine.toml, claim 1 \(\): Object missing required field `says`"),
        (MINE + "checks = [{is = 'best'}]", "claim 1 .*Invalid value 'best' - at `\\$.checks\\[0\\].is`"),
        (MINE + f"checks = [{{{CHECK.replace('table1', 'table2')}}}]", "table 'table2' is not in .tables.; .*table1"),
        (MINE + f"checks = [{{{CHECK}, margin = nan}}]", "claim 1 .*margin"),
        (MINE + "checks = [{is = 'bound', table = 'table1', columns = '16', rows = 'A'}]", "claim 1 .*it has no bound"),
        (MINE + "checks = [{is = 'some', least = 2, checks = []}]", "least=2 of 0 checks"),
        ("[", "mine.toml: .*; mend that file"),
        ("include = ['other.toml']", "other.toml"),
    ],
)
def test_a_claims_file_of_other_things_is_named_in_one_line(load, text, says):
    with pytest.raises(UserError, match=says) as caught:
        load(text)
    assert "\n" not in str(caught.value)


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = (
    "papers",
    "encoders",
    "patterns",
    "prior",
    "null_models",
    "synthetic",
    "fair_retrieval",
    "leaderboard",
    "emergence",
)
UNSEARCHED = ("synthetic", "leaderboard")
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
            each
            for each in load_experiment(table.file, table.scale or self.scale).tables
            if each.title.startswith(table.title)
        ]
        cells = {each.label: (each, value) for each, value in found.cells(row)}
        assert self.may_lack or not cells[column][0].missing, f"{table}: {column}"
        return SeedValues({}, Kind.ACCURACY)

    def learned_shapes(self, name, row):
        assert row in {each.label for each in load_experiment(name, self.scale).rows}
        return []


@functools.cache
def load_experiment(name, scale):
    return experiment.load(EXPERIMENTS / f"{name}.py", scale=scale)


@pytest.mark.parametrize("scale", SCALES)
def test_every_claim_reads_cells_that_its_scale_has(scale):
    for name, said in CLAIMS.items():
        if (scale == "paper" and name in FILES[2:-1]) or (scale == "small" and name in UNSEARCHED):
            continue  # no paper has them, and the rates of some are not searched yet
        for claim in said:
            may_lack = scale == "small" and (bool(claim.untestable or claim.repeats) or claim.accelerator)
            for check in (*claim.checks, *claim.needs):
                check.criteria(Named(scale, may_lack))


def test_what_the_papers_print_bears_out_what_they_say(tmp_path):
    nothing, printed = Measured(tmp_path, "toy", EXPERIMENTS), Printed(tmp_path, "paper", EXPERIMENTS)
    judged = [each for said in claims.judge(PAPERS, nothing, printed).values() for each in said]
    contradicted = {each.claim.says for each in judged if claims._met(each.printed) is False}
    assert all(sum(part in says for says in contradicted) == 1 for part in PRINTED_OTHERWISE)
    assert len(contradicted) == len(PRINTED_OTHERWISE)
    assert sum(claims._met(each.printed) is True for each in judged) >= 50
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
