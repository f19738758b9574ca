"""The notebooks run, and show what they showed."""

import json
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
    before = kinds(copied)
    ran = subprocess.run([sys.executable, FOLDER / "run.py", copied], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert kinds(copied) == before
