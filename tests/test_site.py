"""The site's pages describe every public name and every picture."""

import json
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def conf():
    return runpy.run_path(str(DOCS / "conf.py"))


@pytest.mark.parametrize(
    "name",
    ["bam_jax.models.counts.parameters", "bam_jax.attention.ring.zigzag", "bam_jax.load", "bam_jax.biases.ALiBi"],
)
def test_a_public_name_that_no_page_has_is_missed(name, conf):
    everything = [*conf["missing"]([])]
    assert name in everything and len(everything) == len({*everything}) > 100
    assert [*conf["missing"]([each for each in everything if each != name])] == [name]
    assert [*conf["missing"](everything)] == []


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_figure_of_a_notebook_is_described_in_words(path):
    cells = json.loads(path.read_text())["cells"]
    drawn = [cell for cell in cells if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))]
    assert drawn and all(len(cell["metadata"]["mystnb"]["image"]["alt"].split()) > 8 for cell in drawn)


PAGES = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_picture_of_a_page_is_described_in_words(path):
    text = path.read_text()
    assert all(len(words.split()) > 3 for words in re.findall(r"!\[([^\]]*)\]\(", text))
    assert all(re.search(r'\balt="[^"]*\s', tag) for tag in re.findall(r"<img[^>]*>", text))
