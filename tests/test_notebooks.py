"""The notebooks run, and show what they showed."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def kinds(path):
    """The kinds of outputs that each cell has."""
    cells = json.loads(path.read_text())["cells"]
    return [[output["output_type"] for output in cell.get("outputs", [])] for cell in cells]


def texts(path):
    """The text of each output of each cell."""
    outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
    return ["".join(output["text"] if "text" in output else output["data"]["text/plain"]) for output in outputs]


def agree(found, expected):
    """Compares two texts; fractions may differ by 1% or 0.01, as machines round."""
    fraction = r"\d+\.\d*(?:e[+-]?\d+)?"
    pairs = zip(re.findall(fraction, found), re.findall(fraction, expected), strict=False)
    alike = re.sub(fraction, "#", found).split() == re.sub(fraction, "#", expected).split()
    return alike and all(math.isclose(float(a), float(b), rel_tol=0.01, abs_tol=0.01) for a, b in pairs)


def test_texts_agree_but_for_rounding():
    assert agree("200 0.484", "200 0.489")
    for found, expected in (("(3193, '48213')", "(3193, '48214')"), ("200 0.484", "200 0.514"), ("1.0", "1.0 1.0")):
        assert not agree(found, expected)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_small_and_begin_with_what_they_need(path):
    assert path.stat().st_size < 100_000
    first = next(cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")
    assert first["metadata"]["tags"] == ["install"] and "".join(first["source"]).startswith("%pip install")
    assert sum(map(len, kinds(path))) > 5 and not any("error" in each for each in kinds(path))


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path, tmp_path):
    copied = Path(shutil.copy(path, tmp_path))
    before, said = kinds(copied), texts(copied)
    ran = subprocess.run([sys.executable, FOLDER / "run.py", copied], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert kinds(copied) == before
    assert [pair for pair in zip(texts(copied), said, strict=True) if not agree(*pair)] == []
