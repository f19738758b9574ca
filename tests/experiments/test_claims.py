"""The verdicts on the papers' claims: of the papers' own numbers, of none, and of seeds that were made up."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from bam_jax.experiments import claims
from bam_jax.experiments.cells import Cells, Measured, SeedValues
from bam_jax.experiments.checks import above_chance, better, ratio, within
from bam_jax.experiments.claims import Claim, Verdict
from bam_jax.experiments.statistics import Kind
from bam_jax.report import claims_page
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[2]

X, Y = Cells("a", "b", ("x",)), Cells("a", "b", ("y",))
PROMPTS = 10_000
NOISE = np.array([-0.03, 0.01, 0.02, -0.01, 0.0, 0.03, -0.02, 0.0])


class Given(Measured):
    """Accuracies of seeds, or speeds on a device, by row; in whatever column."""

    def __init__(self, scale="small", device="", kind=Kind.ACCURACY, **rows):
        self.scale, self.device, self.kind, self.rows = scale, device, kind, rows

    def seed_values(self, name, title, row, column, scale=""):
        values = np.atleast_1d(self.rows[row] if row in self.rows else []).tolist()
        prompts = PROMPTS * len(values) if self.kind is Kind.ACCURACY else 0
        return SeedValues(dict(enumerate(values)), self.kind, prompts, device=self.device)


SURE = Given(a=0.9 + NOISE, b=0.5 + NOISE, few=[0.9] * 3, one=[0.9], same=0.9 + NOISE[::-1])
PAPER = Given(a=[0.95], b=[0.5])
HIGH = within(X, "a", least=0.8)


def judge(claim, measured=SURE, printed=PAPER):
    ((found,),) = claims.judge({"P": [claim]}, measured, printed).values()
    return found


def verdict(measured=SURE, *checks, **others):
    return judge(Claim("1", "x", checks or (HIGH,), **others), measured).verdict


def test_a_claim_holds_is_contradicted_or_not_told_apart():
    assert verdict(SURE, HIGH) is Verdict.HOLDS
    assert verdict(SURE, within(X, "a", most=0.8)) is Verdict.CONTRADICTED
    assert verdict(SURE, better(X, "a", ("same",))) is Verdict.UNTOLD
    assert judge(Claim("1", "x", (better(X, "a", ("same",)),))).remark == "more than 1,000 seeds would tell"
    close = judge(Claim("1", "x", (within(X, "a", least=0.895),)))
    assert close.verdict is Verdict.UNTOLD and re.fullmatch(r"about \d+ seeds would tell", close.remark)


def test_all_criteria_must_be_met_and_one_that_is_not_contradicts():
    low = within(X, "b", most=0.6)
    assert verdict(SURE, HIGH, low) is Verdict.HOLDS
    assert verdict(SURE, HIGH, within(X, "b", least=0.6)) is Verdict.CONTRADICTED
    assert verdict(SURE, HIGH, better(X, "a", ("same",))) is Verdict.UNTOLD
    # One of twenty criteria looks unmet by chance: its p-value is times their number.
    slightly = within(X, "a", least=0.92)
    assert verdict(SURE, slightly) is Verdict.CONTRADICTED
    assert verdict(SURE, slightly, *[HIGH] * 19) is Verdict.UNTOLD
    found = judge(Claim("1", "x", (HIGH, within(X, "b", least=0.6))))
    assert found.decisive.says == "b at x ≥ 0.6"


def test_fewer_than_eight_seeds_have_no_verdict():
    found = judge(Claim("1", "x", (HIGH, within(X, "few", least=0.8))))
    assert found.verdict is Verdict.UNMEASURED
    assert found.remark == "3 of 8 seeds; 1 of 2 criteria have what they need"
    assert verdict(SURE, within(X, "none", least=0.8)) is Verdict.UNMEASURED


def test_the_toy_scale_has_no_verdict():
    toy = Given("toy", **SURE.rows)
    assert verdict(toy) is Verdict.NONE
    assert verdict(toy, accelerator=True) is verdict(toy, unfit="so") is Verdict.NONE
    assert verdict(toy, within(X, "one", least=0.8)) is Verdict.NONE
    assert verdict(toy, within(X, "none", least=0.8)) is Verdict.UNMEASURED
    assert verdict(Given("toy", kind=Kind.SPEED, device="cpu", a=1.0)) is Verdict.NONE


def test_where_no_model_can_do_the_task_nothing_is_tested():
    assert verdict(SURE, HIGH, needs=above_chance([X], ("a", "b"), 0.7)) is Verdict.HOLDS
    unable = judge(Claim("1", "x", (HIGH,), needs=above_chance([X], ("b",), 0.49)))
    assert unable.verdict is Verdict.UNTESTABLE and unable.p == 1.0
    assert unable.remark == "its condition is not shown to be met, the best mean of b at x > 0.49: p = 0.1"
    assert verdict(SURE, HIGH, needs=above_chance([X], ("a", "few"), 0.7)) is Verdict.UNMEASURED


def test_a_claim_that_a_scale_cannot_test_waits_for_the_papers():
    assert judge(Claim("1", "x", (HIGH,), unfit="always so")).remark == "always so"
    assert verdict(SURE, unfit="always so") is Verdict.UNTESTABLE
    assert verdict(Given("paper", **SURE.rows), unfit="always so") is Verdict.HOLDS
    again = Claim("1", "x", (HIGH,), repeats="Table 1 again")
    assert (judge(again).verdict, judge(again).remark, judge(again).p) == (Verdict.UNASKED, "Table 1 again", None)
    assert judge(again, Given("paper", **SURE.rows)).verdict is Verdict.HOLDS
    assert judge(again, Given("toy", **SURE.rows)).verdict is Verdict.NONE


def test_what_needs_an_accelerator_is_judged_where_it_was_measured_on_one():
    fast = ratio((X, "a"), (X, "b"), least=1.0)
    speeds = {"a": 2.0, "b": 1.0}
    assert verdict(Given(kind=Kind.SPEED, device="cpu", **speeds), fast, accelerator=True) is Verdict.ACCELERATOR
    assert verdict(Given(kind=Kind.SPEED, **speeds, device="an H100"), fast, accelerator=True) is Verdict.HOLDS
    slow = Given(kind=Kind.SPEED, device="an H100", a=1.0, b=2.0)
    assert verdict(slow, fast, accelerator=True) is Verdict.CONTRADICTED
    assert verdict(Given(), accelerator=True) is Verdict.ACCELERATOR
    assert verdict(SURE, within(X, "few", least=0.8), accelerator=True) is Verdict.ACCELERATOR
    assert verdict(SURE, accelerator=True) is Verdict.HOLDS


def test_what_a_configuration_tells_needs_no_seeds():
    sizes = Given("toy", kind=Kind.CONFIGURATION, a=576)
    assert verdict(sizes, within(X, "a", most=1000)) is Verdict.HOLDS
    assert verdict(sizes, within(X, "a", most=500)) is Verdict.CONTRADICTED
    assert judge(Claim("1", "x", (within(X, "a", most=500),)), sizes).p is None
    assert verdict(sizes, within(X, "b", most=500)) is Verdict.UNMEASURED
    assert judge(Claim("1", "x", why="mathematics")).verdict is Verdict.UNCHECKED


def test_the_papers_own_numbers_meet_criteria_or_not():
    assert judge(Claim("1", "x", (HIGH,))).printed is True
    assert judge(Claim("1", "x", (within(X, "b", least=0.8),))).printed is False
    assert judge(Claim("1", "x", (HIGH, within(X, "few", least=0.8)))).printed is None


def page_of(rng, *, claims_of, differing, noise=0.05):
    """A page of claims about rows, of which some differ by something; the truth of each claim."""
    rows = 12
    means = np.where(rng.uniform(size=rows) < differing, rng.normal(0.0, 0.1, rows), 0.0)
    seeds = 20 * np.exp(means[:, None] + rng.normal(0.0, noise, (rows, 8)) + rng.normal(0.0, noise, 8))
    measured = Given(kind=Kind.PERPLEXITY, **{str(k): values for k, values in enumerate(seeds)})
    page, truth = [], []
    for _ in range(claims_of):
        one, *others = rng.permutation(rows)[: 2 + rng.integers(2)]
        page.append(Claim("1", "x", (better(X, str(one), tuple(map(str, others)), lower=True),)))
        truth.append(all(means[one] < means[other] for other in others))
    return [each.verdict for each in claims.judge({"P": page}, measured, measured)["P"]], np.array(truth)


def false_share(verdicts, truth):
    held = np.array([verdict is Verdict.HOLDS for verdict in verdicts])
    refuted = np.array([verdict is Verdict.CONTRADICTED for verdict in verdicts])
    return ((held & ~truth) | (refuted & truth)).sum() / max((held | refuted).sum(), 1), (held | refuted).sum()


@pytest.mark.parametrize("differing", [0.0, 0.6])
def test_few_verdicts_of_a_page_are_false(differing):
    rng = np.random.default_rng(0)
    shares, told = zip(*(false_share(*page_of(rng, claims_of=20, differing=differing)) for _ in range(20)), strict=True)
    assert np.mean(shares) <= claims.FALSE_DISCOVERIES
    assert np.mean(told) > 3 or not differing


@pytest.mark.full
@pytest.mark.parametrize("differing", [0.0, 0.3, 0.6, 0.9])
def test_the_share_of_false_verdicts_in_numbers(differing):
    rng = np.random.default_rng(1)
    shares = [false_share(*page_of(rng, claims_of=60, differing=differing))[0] for _ in range(300)]
    assert np.mean(shares) <= claims.FALSE_DISCOVERIES


def test_claims_share_the_false_discoveries_of_their_page():
    """A p-value that tells alone may not do so among many that tell nothing."""
    alone = Claim("1", "x", (within(X, "a", least=0.88),))
    nothing = [Claim("1", "x", (better(X, "a", ("same",)),))] * 30
    assert judge(alone).verdict is Verdict.HOLDS
    assert claims.judge({"P": [alone], "Q": nothing}, SURE, PAPER)["P"][0].verdict is Verdict.UNTOLD


def test_seeds_that_were_fixed_before_are_waited_for():
    """A page that is made while they are trained tempts nobody to stop."""
    claim = Claim("1", "x", (HIGH,))
    more = Given(a=0.9 + NOISE, nine=0.9 + np.append(NOISE, 0.0))
    needing = Claim("1", "x", (within(X, "nine", least=0.8),), needs=within(X, "a", least=0.5))
    for said, remark in ((claim, "8 of 9 seeds; "), (needing, "8 of 9 seeds of its condition")):
        assert claims.judge({"P": [said]}, more, PAPER, 8)["P"][0].verdict is Verdict.HOLDS
        found = claims.judge({"P": [said]}, more, PAPER, 9)
        assert found["P"][0].verdict is Verdict.UNMEASURED and found["P"][0].remark.startswith(remark)
    page = claims_page.verdicts_section(claims.ClaimsFile({"P": [claim]}, (), seeds=9), found)
    words = claims_page.procedure(claims.ClaimsFile({"P": [claim]}, (), seeds=9), found)
    assert "no verdict on fewer than 9 seeds" in " ".join(words.split())
    assert page.table.rows[0][2] == "fewer than 9 seeds, or cells that are missing."


def test_the_page_says_what_was_found_and_by_which_criterion():
    said = [
        Claim("1", "all keys", (HIGH,), "a remark"),
        Claim("2", "the best", (better(X, "a", ("b", "same")),)),
        Claim("3", "proven", why="mathematics"),
    ]
    found = claims.judge({"P": said}, SURE, PAPER)
    listed, table = claims_page.claims_sections(found)
    assert listed.text == "3 claims: holds 1, not told apart 1, not checked 1."
    assert listed.items == [
        "**holds** (by the paper's own numbers: holds) · 1: all keys — a at x ≥ 0.8: 0.9 [0.883, 0.917], 8 seeds, of which 8 "
        "meet it by themselves. Criterion: a ≥ 0.8 at x. A remark.",
        "**not told apart** · 2: the best — more than 1,000 seeds would tell. a minus same at x > 0: 0 [-0.02, 0.02], 8 "
        "seeds, of which 4 meet it by themselves, the least certain of 2 criteria. Criterion: a above each of b, same at x.",
        "**not checked** · 3: proven — mathematics.",
    ]
    assert table.folded and [row[0] for row in table.table.rows] == [
        "1: all keys",
        " a at x ≥ 0.8",
        "2: the best",
        " a minus b at x > 0",
        " a minus same at x > 0",
    ]
    assert table.table.rows[1][1:4] == ["0.9 [0.883, 0.917]", "8", "8, 1.00 [0.63, 1.00]"]
    counts = claims_page.verdicts_section(claims.ClaimsFile({"P": said}, (), "abc1234"), found)
    words = claims_page.procedure(claims.ClaimsFile({"P": said}, (), "abc1234"), found)
    assert "2 claims are tested here, and told by a two-sided p of at most 0.025. A claim whose" in words
    assert "frozen in commit `abc1234`" in words
    assert [row[:2] for row in counts.table.rows] == [["holds", "1"], ["not told apart", "1"], ["not checked", "1"]]
    assert "not frozen yet" in claims_page.procedure(claims.ClaimsFile({"P": said}, (), ""), found)


def test_findings_of_several_tables_name_them():
    other = dataclasses.replace(X, title="c")
    claim = Claim("1", "x", (HIGH, within(other, "a", least=0.7)))
    assert claims_page.claim_item(judge(claim)).endswith("Criterion: a ≥ 0.8 at x (b); a ≥ 0.7 at x (c).")


def test_a_cell_that_there_is_not_is_named(tmp_path):
    measured = Measured(tmp_path, "toy", ROOT / "experiments")
    with pytest.raises(UserError, match="no cell 'BAM', '3K'"):
        measured.seed_values("bam_figure2_passkey", "Figure 2", "BAM", "3K")
    with pytest.raises(UserError, match="0 tables whose titles begin with 'Figure 3'"):
        measured.seed_values("bam_figure2_passkey", "Figure 3", "BAM", "1K")
