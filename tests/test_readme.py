"""The README's own lines run as they stand, and the pages name only what exists."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bam_jax import config as configs
from bam_jax import tables, train
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_a_bias_of_your_own(tmp_path, monkeypatch):
    (block,) = [block for block in BLOCKS if "class Cauchy" in block]
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    (tmp_path / "cauchy.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    config = ROOT / "configs" / "quickstart.py"
    small = ["--config.steps=3", "--config.batch=2", "--config.log_every=1", "--config.optimizer.warmup=1"]
    train.main([f"--config={config}", "--config.encoding=cauchy:CauchyPrior", *small, f"--workdir={tmp_path / 'run'}"])
    monkeypatch.delitem(sys.modules, "cauchy")  # as in another process
    with pytest.raises(UserError, match="add --allow=cauchy"):
        checkpoint.restore_model(tmp_path / "run")
    configs.allowed(["cauchy"])
    import cauchy

    _, _, model = checkpoint.restore_model(tmp_path / "run")
    width = model.layers.attention.encoding.width[...]
    assert isinstance(model.layers.attention.encoding, cauchy.CauchyPrior)
    assert width.shape == (2, 4)
    assert (width != 16.0).all(), "the prior's parameter did not train"


def test_the_parts_in_your_own_model():
    (block,) = [block for block in BLOCKS if "attend(q, k, v" in block]
    names: dict = {}
    exec(block, names)
    assert names["out"].shape == (2, 128, 4, 32)


def test_the_full_products_are_tested_as_users_run_them():
    command = ["make", "--dry-run", f"--directory={ROOT}", "test-all"]
    recipe = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search("JAX_DISABLE_MOST_OPTIMIZATIONS=0 .* -m 'full", recipe)


@pytest.mark.full
def test_its_table_and_figure_are_what_the_records_give(tmp_path, capsys):
    asked = [f"{ROOT / 'experiments' / 'headline.py'}", "--scale=small", f"--runs={tmp_path}"]
    tables.main([*asked, "--format=markdown"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 7 and {*table} <= {*(ROOT / "docs" / "quickstart.md").read_text().splitlines()}
    said = re.findall(r"(\w+ SSMax)(?: has a passkey accuracy of)? (\d\.\d\d \[[^]]*\])", " ".join(README.split()))
    at_64 = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[4] for row in table[2:]}
    assert len(said) == 3 and said == [(label, at_64[label]) for label, _ in said]
    tables.main([*asked, "--format=figures", f"--out={tmp_path}"])
    (drawn,) = tmp_path.iterdir()
    assert drawn.read_bytes() == (ROOT / "docs" / "figures" / drawn.name).read_bytes(), "draw it again"


def test_its_verdicts_are_those_of_the_page():
    page = (ROOT / "docs" / "claims.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    counts = {verdict: int(bam) + int(cable) for verdict, bam, cable in rows}
    holds, contradicted, untold = (counts.pop(name) for name in ("supported", "contradicted", "inconclusive"))
    rest = sum(counts.values())
    total = holds + contradicted + untold + rest
    assert re.search(rf"{total} claims, {holds} .* {contradicted} .* {untold} .* {rest} ", " ".join(README.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_and_modules_exist(page):
    text = page.read_text().replace("configs/CONFIG.py", "")  # a placeholder
    for name in re.findall(r"\b\w+/[\w/]+\.py\b", text):
        assert (ROOT / name).exists() or (ROOT / "bam_jax" / name).exists(), name
    for name in re.findall(r"python -m (bam_jax[\w.]*\w)", text):
        assert importlib.util.find_spec(name), name
    for module, names in re.findall(r"^[ >]*from (bam_jax[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, part = target.partition("#")
        named = page.parent / path if path else page
        assert named.exists(), target
        assert not part or part in headings(named.read_text()), target


def headings(text):
    """The names that links have for the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
