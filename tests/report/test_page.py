"""A page for those who listen, who have no mouse, and who see no colours: its tables, its figures, what scrolls."""

import re
import xml.etree.ElementTree as xml

import pytest

from bam_jax import render
from bam_jax.report import page
from bam_jax.report.page import Estimated, Link, Section, Table

LENGTHS = Table(
    ["", Estimated("1×", "64"), "a column with a rather long name & more"],
    [
        ["RoPE", "0.9", "a cell of so many words that they are broken into lines"],
        [Link("BAM", "bam.html"), "10", "–"],
        ["ALiBi", "–", "b"],
    ],
)
PARTS = Table(["criterion", "p"], [["all", "0.1"], [" one of them", "0.2"], ["more", "0.3"]])
FACTS = Table(["", ""], [["seed", "0"], ["steps", "10"], ["data", "text"]])


FIGURE = render.passkey({"a": render.Curve({0: {64: 1.0, 128: 0.5}}, {})}, 64)
SECTIONS = [
    Section("Accuracy & length", "Whole\nkeys.", figure=FIGURE, name="one", table=LENGTHS, shows="so <it> is"),
    Section("Alone", "The text\n  says it.", figure=FIGURE, name="two", commands=["x"]),
    Section("Criteria", table=PARTS, folded=True),
    Section("Facts", table=FACTS, commands=["python -m x", "y"]),
]


@pytest.fixture(scope="module")
def parts():
    """The elements of each section, by its title."""
    text = page.to_html("A page", SECTIONS).partition("<body>")[2].partition("<script>")[0].partition("</body>")[0]
    body = xml.fromstring(f"<body>{text}</body>")
    found = {words(each.find(".//h2")): each for each in body if each.tag != "h1"}
    assert [*found] == [section.title for section in SECTIONS]
    ids = [each.attrib["id"] for each in body.iter() if "id" in each.attrib]
    assert len({*ids}) == len(ids)
    return found


def words(element):
    return " ".join("".join(element.itertext()).split())


def test_a_table_has_its_sections_title_and_names_its_rows_and_columns(parts):
    for title, given in {"Accuracy & length": LENGTHS, "Criteria": PARTS, "Facts": FACTS}.items():
        table = parts[title].find(".//table")
        assert words(table.find("caption")) == title
        rows = table.findall("tbody/tr")
        for row, cells in zip(rows, given.rows, strict=True):
            assert (row.get("class") == "part") == str(cells[0]).startswith(" ")
            assert [cell.tag for cell in row] == ["th"] + ["td"] * (len(cells) - 1) and row[0].attrib["scope"] == "row"
        heads = table.findall("thead/tr/*")
        assert all(head.tag == "th" and head.attrib["scope"] == "col" and words(head) for head in heads)
        assert len(heads) == (len(given.head) if any(given.head) else 0)


def test_what_may_be_wider_than_the_page_is_reached_by_keys_and_has_a_name_of_its_own(parts):
    names = []
    for title, part in parts.items():
        wide = [each for each in part.iter() if each.tag in ("figure", "pre") or each.get("class") == "scroll"]
        assert len(wide) == (1 if title == "Criteria" else 2)
        assert all(each.attrib["tabindex"] == "0" and (each.tag == "figure" or each.get("role")) for each in wide)
        names += [each.attrib["aria-label"] for each in wide]
        assert all(name.startswith(title) for name in names[-len(wide) :])
        assert not any(each.tag == "table" and each.get("tabindex") for each in part.iter())
    assert len({*names}) == len(names)


def test_a_figure_says_what_it_shows_and_where_its_numbers_stand(parts):
    first, second = (parts[title].find(".//figure").attrib for title in ("Accuracy & length", "Alone"))
    assert first["role"] == second["role"] == "img"
    assert first["aria-label"] == "Accuracy & length: so <it> is" and second["aria-label"] == "Alone: The text says it."
    assert first["aria-details"] == parts["Accuracy & length"].find(".//table").attrib["id"]
    assert "aria-details" not in second


def test_only_heads_that_sort_are_buttons_and_only_by_a_script():
    assert "<button" not in page.to_html("t", SECTIONS)
    assert "<script" not in page.to_html("t", SECTIONS[2:])  # parts stay below what they are of, facts have no heads


def test_a_strangers_text_adds_no_element():
    bad = """"'><script>x</script>`<b>` **<i>** {{ 1 }} {% raw %}"""
    link, value = Link(bad, bad), Estimated(bad, bad)
    figure = render.passkey({bad: render.Curve({0: {64: 1.0}}, {})}, 64)
    sections = [
        Section(bad, bad, [bad, link], figure, bad, "one", Table([bad, value], [[bad, link], [link, value]]), [bad]),
        Section(bad, folded=True),
    ]
    text = page.to_html(bad, sections, [link])
    assert not re.search("<(script|b|i)>", text) and "{{ 1 }}" in text and "<code>&lt;b&gt;</code>" in text
    assert not re.search("""(aria-label|href)="[^"]*[<>]""", text)


@pytest.mark.full
def test_a_head_sorts_down_and_up_and_as_it_was_and_says_so(title_of):
    script = """<script>
      const table = document.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
      const state = () => [heads.map(each => each.ariaSort), getComputedStyle(button, "::before").content.slice(1, 2),
        [...table.tBodies[0].rows].map(row => row.cells[0].innerText)].flat(2);
      const button = heads[1].querySelector("button"), said = [state()];
      for (let n = 0; n < 4; n++) { button.click(); said.push(state()); }
      heads[2].querySelector("button").click(); said.push(state());
      button.focus();
      said.push([document.activeElement === button, document.querySelectorAll("button").length]);
      document.title = said.map(each => each.join(" ")).join("; ");
    </script></body>"""
    said = title_of(page.to_html("t", SECTIONS).replace("</body>", script)).split("; ")
    assert said == [
        "none none none ⇅ RoPE BAM ALiBi",
        "none descending none ↓ BAM RoPE ALiBi",  # 10 before 0.9, and what is no number last
        "none ascending none ↑ RoPE BAM ALiBi",
        "none none none ⇅ RoPE BAM ALiBi",
        "none descending none ↓ BAM RoPE ALiBi",
        "none none descending ⇅ ALiBi RoPE BAM",
        "true 3",
    ]
