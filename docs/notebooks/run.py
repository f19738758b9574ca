"""Runs the notebooks of this folder and writes their outputs into them; `make docs` shows them and runs nothing.

Command:  python docs/notebooks/run.py [NOTEBOOK ...]
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def run(path: Path) -> nbformat.NotebookNode:
    """A notebook with fresh outputs; the cell that installs packages stays as it is.

    Args:
        path: of a notebook.

    Raises:
        CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])]
    run_cells = nbformat.from_dict(notebook | {"cells": cells})
    # What a cell prints comes in pieces as time has it: they are one output.
    NotebookClient(run_cells, timeout=600, kernel_name="python3", record_timing=False, coalesce_streams=True).execute()
    fresh = {cell.id: cell for cell in run_cells.cells}
    notebook.cells = [fresh[cell.id] if cell.id in fresh else cell for cell in notebook.cells]
    for cell in notebook.cells:
        # Counts differ from one way of running to another.
        for counted in [cell, *cell.get("outputs", [])]:
            if "execution_count" in counted:
                counted.execution_count = None
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(HERE.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(f"ran {path}")
