"""Text that comes with every Python: its help topics and the docstrings of its modules, about 1.9M characters."""

import ast
import gc
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_UNREAD = {*"__pycache__ dist-packages idlelib lib2to3 pydoc_data site-packages test tests".split()}


def passages() -> Iterator[str]:
    """Python's help topics and each module's docstrings, without repeats: no paragraph is both trained on and held out."""
    seen: set[str] = set()
    for passage in _repeating_passages():
        new = []
        for paragraph in re.split(r"\n\s*\n", passage):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                new.append(paragraph.strip("\n"))
        yield "\n\n".join([*new, ""])


def _repeating_passages() -> Iterator[str]:
    # Imported here, so that processes that prepare other corpora do not load a megabyte of topics.
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not _UNREAD.intersection(path.relative_to(root).parts))
    collecting = gc.isenabled()
    gc.disable()  # syntax trees are many objects without cycles; collection would take two thirds of the time
    try:
        for path in paths:
            yield "\n\n".join(_docstrings(ast.parse(path.read_bytes())))
    finally:
        if collecting:
            gc.enable()


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler):
            yield from _docstrings(child)
