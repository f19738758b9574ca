"""The verdicts on the papers' claims: of the papers' own numbers, of none, and of some that were made up."""

import runpy
from pathlib import Path

import pytest

from bam_jax.experiments import checks
from bam_jax.experiments.checks import Cells, Finding, above_chance, better, ratio, reaches_further, steadier, within
from bam_jax.experiments.claims import Claim, Verdict, conclude
from bam_jax.report import claims_page
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[2]
CLAIMS = runpy.run_path(str(ROOT / "experiments" / "claims.py"))["get_claims"]()


class Given(checks.Measured):
    """Numbers by row and column."""

    def __init__(self, numbers: dict[tuple[str, str], float]) -> None:
        self.numbers = numbers

    def cell(self, name: str, title: str, row: str, column: str, scale: str = "") -> float | None:
        return self.numbers[row, column] if (row, column) in self.numbers else None


def verdicts(measured: checks.Measured) -> dict[tuple[str, str], str]:
    return {
        (claim.place, claim.says): conclude([check(measured) for check in claim.checks]).value
        for said in CLAIMS.values()
        for claim in said
    }


PRINTED_OTHERWISE = {
    "D.1, Table 2",  # Wikipedia: RoPE 18.36, ALiBi SSMax .19 ahead
    "F.1, Table 4",  # Single 2 at 4K: RoPE SSMax .52, BAM SSMax .24
    "F.2, Table 5",  # MultiKey 3
    "H.7, Table 8",  # SSMax: nothing at 120M, a tenth at 1.1B
    "5.1",  # CABLE_NW and ALiBi on WikiText-103
    "Table 4, GPT-2 Tiny on FineWeb-Edu",  # ALiBi at 8192
}
"""Where the papers' tables do not bear out all that their text says."""


def test_what_the_papers_print_bears_out_what_they_say(tmp_path):
    found = verdicts(checks.Printed(tmp_path, "paper", ROOT / "experiments"))
    assert set(found.values()) >= {"holds", "not measured", "not checked"}
    contradicted = {place for (place, _), word in found.items() if word in ("does not hold", "in part")}
    assert contradicted <= PRINTED_OTHERWISE, contradicted
    assert sum(word == "holds" for word in found.values()) >= 20


def test_nothing_holds_of_nothing(tmp_path):
    found = verdicts(checks.Measured(tmp_path, "toy", ROOT / "experiments"))
    assert [says for (_, says), word in found.items() if word == "holds"] == [
        "fewer than 1,000 parameters more (here: at 120M)"
    ]
    assert set(found.values()) == {"holds", "not measured", "not checked"}


CELLS = Cells("a", "b", ("x", "y"))
SOME = Given({("a", "x"): 1.0, ("a", "y"): 0.5, ("b", "x"): 0.4, ("b", "y"): 0.6, ("c", "x"): 1.0})


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (within(CELLS, "a", least=0.5, most=1.0), True),
        (within(CELLS, "a", least=0.6), False),
        (within(CELLS, "a", most=0.9), False),
        (within(CELLS, "a", above=0.4), True),
        (within(CELLS, "a", above=0.5), False),
        (within(CELLS, "c", least=0.6), None),
        (better(CELLS, "a", ("b",)), True),
        (better(CELLS, "a", ("b",), each=True), False),
        (better(CELLS, "a", ("b",), lower=True), False),
        (better(CELLS, "b", ("a",), lower=True), True),
        (better(CELLS, "a", ("b",), margin=0.3), False),
        (better(CELLS, "b", ("a",), margin=-0.3), True),
        (better(CELLS, "a", ("c",)), None),
        (ratio((CELLS, "a"), (CELLS, "b"), least=1.4, most=1.6), True),
        (ratio((CELLS, "a"), (CELLS, "b"), most=1.4), False),
        (ratio((CELLS, "a"), (CELLS, "c")), None),
        (reaches_further(CELLS, "a", ("b",), columns=1, least=0.5), True),
        (reaches_further(CELLS, "a", ("b",), columns=3, least=0.5), False),
        (reaches_further(CELLS, "a", ("b",), columns=1, least=0.6), True),
        (reaches_further(CELLS, "b", ("a",), columns=1), False),
        (reaches_further(CELLS, "a", ("c",), columns=1), None),
        (steadier(CELLS, "y", "x", "a", "b"), True),
        (steadier(CELLS, "y", "x", "b", "a"), False),
        (steadier(CELLS, "y", "x", "a", "c"), None),
        (above_chance([CELLS], ("a", "b"), 0.7), True),
        (above_chance([CELLS], ("a", "b"), 0.75), False),
        (above_chance([CELLS], ("a", "c"), 0.0), None),
    ],
)
def test_a_check(check, holds):
    assert check(SOME).holds is holds


def test_a_claim_that_holds_in_part_is_said_to():
    assert conclude([Finding(True, ""), Finding(False, "")]) is Verdict.IN_PART
    assert conclude([Finding(False, ""), Finding(None, "")]) is Verdict.UNMEASURED
    (section,) = claims_page.claims_sections(
        {"P": [Claim("1", "x", (within(CELLS, "a", least=0.9),))]}, SOME, Given({("a", "x"): 1.0, ("a", "y"): 1.0})
    )
    assert section.items == ["**does not hold** (by the paper's own numbers: holds) · 1: x — a at x to y: 0.5 to 1."]
    assert section.text == "1 claims: does not hold 1."


def test_where_no_model_can_do_the_task_nothing_is_decided():
    def word(above):
        claim = Claim("1", "x", (within(CELLS, "a", least=0.9),), needs=above_chance([CELLS], ("a",), above))
        (section,) = claims_page.claims_sections({"P": [claim]}, SOME, SOME)
        return section.items[0]

    assert word(0.8).startswith("**undecided** (by the paper's own numbers: does not hold)")
    assert word(0.8).endswith("the best mean is 0.75, not above 0.8.")
    assert word(0.7).startswith("**does not hold**")


def test_findings_of_several_tables_name_them():
    other = Cells("a", "c", ("x",))
    checks = (within(CELLS, "a", least=0.9), within(other, "a", least=0.9))
    (section,) = claims_page.claims_sections({"P": [Claim("1", "x", checks)]}, SOME, SOME)
    assert section.items[0].endswith(" b: a at x to y: 0.5 to 1. c: a at x: 1.")


def test_a_cell_that_there_is_not_is_named(tmp_path):
    measured = checks.Measured(tmp_path, "toy", ROOT / "experiments")
    with pytest.raises(UserError, match="no cell 'BAM', '3K'"):
        measured.cell("bam_figure2_passkey", "Figure 2", "BAM", "3K")
    with pytest.raises(UserError, match="0 tables whose titles begin with 'Figure 3'"):
        measured.cell("bam_figure2_passkey", "Figure 3", "BAM", "1K")
