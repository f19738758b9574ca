"""The site: the pages of this folder, the README and CONTRIBUTING beside them, and the docstrings of what is public.

    make docs    # writes site/

Sphinx with MyST, as jax and flax have it: warnings are errors, and signatures of jaxtyping stand as they are written.
"""

import importlib
import pkgutil
import re
import shutil
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sphinx.util import logging  # noqa: E402

import bam_jax.models  # noqa: E402

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

project, author, version = "bam_jax", "bam_jax contributors", bam_jax.__version__
release = version
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["launch"]
nb_execution_mode = "off"  # docs/notebooks/run.py has run them
html_theme = "furo"
html_title = f"bam_jax {version}"
html_static_path, html_css_files, html_js_files = ["_static"], ["wide.css"], ["claims.js"]
html_show_copyright = False
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
# `make docs` fetches MathJax where npm is there, so that the site needs no network; else its pages load it from a CDN.
MATHJAX = ROOT / ".venv" / "mathjax" / "node_modules" / "mathjax" / "es5" / "tex-svg.js"
mathjax3_config = {"svg": {"displayAlign": "left"}}
if MATHJAX.exists():
    mathjax_path = "mathjax.js"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
napoleon_use_rtype = False
# A heading of GitHub's pages is made by the browser.
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]
linkcheck_timeout, linkcheck_retries = 30, 3
# Indented blocks are commands as often as sessions of Python, which say so by their prompt.
highlight_language = "text"

napoleon_custom_sections = [("Options", "params_style"), ("Class attributes", "params_style")]

_BESIDE = {"index": "README.md", "contributing": "CONTRIBUTING.md"}
"""Pages that begin with a file of the repository's root."""
ROOMS = ("bam_jax", *(f"bam_jax.{room}" for room in ("adapters", "attention", "biases", "encodings", "theory")))
"""Packages that list their public names, all of which the API has."""
MODULES = (
    "bam_jax.attention.ring",
    *(found.name for found in pkgutil.iter_modules(bam_jax.models.__path__, "bam_jax.models.")),
)
"""Modules whose public functions and classes the API has."""
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Options|Class attributes):$")


def join(app: Any, name: str, source: list[str]) -> None:
    """Begin a page with the root's file that belongs to it, and lead links to what is no page into the repository."""
    text = source[0]
    if name in _BESIDE:
        beside = (ROOT / _BESIDE[name]).read_text()
        text = re.sub(r"\]\((?!docs/|https:|#)", "](../", beside).replace("](docs/", "](") + text
    text = text.replace("](../CONTRIBUTING.md)", "](contributing.md)")
    if "/" not in name:
        source[0] = re.sub(r"\]\(\.\./", f"]({REPOSITORY}/blob/main/", text)


def to_rst(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring, whose equations are indented and whose names stand in single backticks, one that Sphinx reads."""
    lines[:] = _rst(lines)


def _rst(lines: list[str]) -> Iterator[str]:
    section = session = literal = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line[0].isspace():
            section, literal = bool(_SECTION.match(line)), False
        session = line.lstrip().startswith(">>>") or (session and bool(line.strip()))
        if line.startswith("    ") and not before.strip() and not (section or session or literal):
            literal = True
            yield from ("::", "")
        yield line if session or literal else _inline(line)


def _inline(line: str) -> str:
    """A line of prose whose signs mean themselves."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") and len(part) > 1 else re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", part)
        for part in parts
    )


def find_missing(app: Any, env: Any) -> None:
    """Warn of public names that no page of the API has."""
    described = [name for name, found in env.get_domain("py").objects.items() if found.objtype != "module"]
    for name in missing(described):
        logging.getLogger(__name__).warning("no page of the API has %s", name)


def missing(described: Collection[str]) -> Iterator[str]:
    """The public names of `ROOMS` and `MODULES` that are not described; a constant may be where it comes from."""
    last = {name.rpartition(".")[2] for name in described}
    packages = {room: importlib.import_module(room) for room in ROOMS}
    for room, package in packages.items():
        for name in {*package.__all__} - {"__version__"}:
            value = getattr(package, name)
            same = {f"{other}.{name}" for other in ROOMS if getattr(packages[other], name, None) is value}
            if same.isdisjoint(described) and (callable(value) or name not in last):
                yield f"{room}.{name}"
    for module in MODULES:
        for name, value in vars(importlib.import_module(module)).items():
            own = callable(value) and getattr(value, "__module__", None) == module and not name.startswith("_")
            if own and f"{module}.{name}" not in described:
                yield f"{module}.{name}"


def copy_mathjax(app: Any, error: Exception | None) -> None:
    """Put MathJax beside the pages."""
    if MATHJAX.exists() and error is None and app.builder.format == "html":
        shutil.copy(MATHJAX, Path(app.outdir) / "_static" / mathjax_path)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", copy_mathjax)
    app.connect("env-check-consistency", find_missing)
    app.connect("source-read", join)
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # before napoleon, which reads sections
