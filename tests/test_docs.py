"""The README, the pages and the notebooks say what is: their code and commands run, and what they name is there."""

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from endurance.commands import main_of

import bam_jax
from bam_jax import config as configs
from bam_jax import tables, train
from bam_jax.data import prepare
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.system import errors
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page, *words):
    """The blocks of Python on a page that have these words."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [block for block in found if all(word in block for word in words)]


EXAMPLES = [
    module.name
    for module in pkgutil.walk_packages(bam_jax.__path__, "bam_jax.")
    if ">>>" in Path(module.module_finder.find_spec(module.name).origin).read_text()
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert not found.failed


# Blocks of Python.


def test_a_bias_of_your_own(tmp_path, monkeypatch):
    (block,) = blocks("README.md", "class Cauchy")
    (tmp_path / "cauchy.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    small = ["--config.steps=3", "--config.batch=2", "--config.log_every=1", "--config.optimizer.warmup=1"]
    own = [f"--config={ROOT / 'configs' / 'quickstart.py'}", "--config.encoding=cauchy:CauchyPrior"]
    train.main([*own, *small, f"--workdir={tmp_path / 'run'}"])
    monkeypatch.delitem(sys.modules, "cauchy")  # as in another process
    with pytest.raises(UserError, match="add --allow=cauchy"):
        checkpoint.restore_model(tmp_path / "run")
    configs.allowed(["cauchy"])
    import cauchy

    _, _, model = checkpoint.restore_model(tmp_path / "run")
    width = model.layers.attention.encoding.width[...]
    assert isinstance(model.layers.attention.encoding, cauchy.CauchyPrior)
    assert width.shape == (2, 4) and (width != 16.0).all(), "the prior's parameter did not train"


def test_a_prior_that_a_rotation_gets_begins_at_the_trained_model(tmp_path, monkeypatch):
    (block,) = blocks("docs/recipes.md", "class RoPEBAM")
    (tmp_path / "turned.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    small = "--config.steps=1", "--config.batch=2", "--config.optimizer.rate=1e-12"
    train.main(["--config=configs/quickstart.py", "--config.encoding=rope", *small, f"--workdir={tmp_path / 'rope'}"])
    (arguments,) = [
        words for _, words in commands((ROOT / "docs" / "recipes.md").read_text()) if "turned" in f"{words}"
    ]
    own = f"--config.start={tmp_path / 'rope'}", f"--workdir={tmp_path / 'both'}", *small
    train.main([*(each for each in arguments if each.split("=")[0] not in {name.split("=")[0] for name in own}), *own])
    rope, both = (checkpoint.restore_model(tmp_path / name)[2] for name in ("rope", "both"))
    assert both.layers.attention.encoding.prior.shape[...].shape == (2, 4)
    tokens = np.arange(2, 42)[None] % 30
    np.testing.assert_allclose(both(tokens)[0], rope(tokens)[0], atol=1e-4)
    monkeypatch.delitem(sys.modules, "turned")


def test_the_other_blocks_of_python_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(*blocks("README.md", "attend(q, k, v"), names)
    assert names["out"].shape == (2, 128, 4, 32)

    (block,) = blocks("docs/configuration.md")
    (tmp_path / "mine.py").write_text(block)
    config = configs.load(tmp_path / "mine.py")
    assert (config.encoding, config.model.layers, config.model.width, config.steps) == ("cable", 4, 128, 500)

    (tmp_path / "lines.jsonl").write_text("".join(f'{{"text": "document {n}"}}\n' for n in range(14)))
    prepare.main(["--source=lines.jsonl", "--tokenizer=byte", "--out=data/mine"])
    indented = r"(?:^    .*\n)*^    from bam_jax.*\n(?:^    .*\n)*"
    (block,) = re.findall(indented, (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)
    *lines, last = block.replace("\n    ", "\n").strip().split("\n")
    exec("\n".join(lines), names)
    assert [bytes(ids[:-1].tolist()).decode() for ids in eval(last, names)] == ["document 12", "document 7"]


# Commands.

COMMAND = re.compile(r"^    (?:\S+=\S+ )*python -m (bam_jax[\w.]*)(.*)$", re.MULTILINE)
IN_A_SENTENCE = re.compile(r"`python -m (bam_jax[\w.]*)( [^`]*--(?!help)[^`]*)`")
"""A command with options; without them it may be the name of one alone."""


class Read(Exception):
    """The arguments were read, and the command goes no further."""


def commands(text):
    """The module and the arguments of each command, without what the shell fills in."""
    joined = text.replace("\\\n", " ")
    for module, rest in [*COMMAND.findall(joined), *IN_A_SENTENCE.findall(joined.replace("\n", " "))]:
        words = shlex.split(rest, comments=True)
        for end in (">", "|", "&&"):
            words = words[: words.index(end)] if end in words else words
        yield module, [word for word in words if not word.startswith("$")]


def read_arguments(monkeypatch, module, arguments):
    """Calls a command until its arguments are read."""

    def stopping(function):
        def read(*given):
            function(*given)
            raise Read

        return read

    monkeypatch.setattr(configs, "parse", stopping(configs.parse))
    monkeypatch.setattr(errors.Parser, "parse_args", stopping(errors.Parser.parse_args))
    with pytest.raises(Read):
        main_of(module)(arguments)


FOUND = [(page.stem, *command) for page in PAGES for command in commands(page.read_text())]


@pytest.mark.parametrize(("page", "module", "arguments"), FOUND, ids=[f"{page}-{module}" for page, module, _ in FOUND])
def test_a_pages_command_is_one_that_can_be_typed(page, module, arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    read_arguments(monkeypatch, module, arguments)


def test_most_commands_are_found_and_a_wrong_option_would_be_seen(monkeypatch):
    assert len(FOUND) > 60 and {"bam_jax.train", "bam_jax.evaluate", "bam_jax.sweep"} <= {name for _, name, _ in FOUND}
    with pytest.raises(UserError, match="unknown argument|unknown config key"):
        read_arguments(monkeypatch, "bam_jax.train", ["--config=x", "--workdir=y", "--cofnig=x"])


@each_page
def test_a_training_that_needs_an_accelerator_says_so_beside_it(page):
    large = [path.name for path in (ROOT / "configs").glob("*.py") if "accelerator" in path.read_text()]
    assert 5 < len(large) < len([*(ROOT / "configs").glob("*.py")])
    parts = page.read_text().split("\n\n")
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        for name in re.findall(r"^    .*bam_jax\.train (?:.|\\\n)*?--config=configs/(\w+\.py)", part, re.MULTILINE):
            assert name not in large or re.search("accelerator|GPU|TPU|tpu", before + part + after), part


@pytest.mark.parametrize("name", EVALUATIONS)
def test_the_page_of_evaluations_has_each_with_its_options_and_a_command(name):
    page = (ROOT / "docs" / "evaluate.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \|(.*)$", page, re.MULTILINE)
    options = {field.name: field.default for field in EVALUATIONS[name].options()}
    assert sorted(re.findall(r"`--([a-z]+)`", row)) == sorted(options)
    for option, default in options.items():
        if isinstance(default, int):
            assert re.search(rf"`--{option}`[^;|]*\({default:,}\b", row), f"--{option} is {default} by default"
    assert any(f"--eval={name}" in arguments for _, arguments in commands(page))


# Names, links, numbers and pictures.


@each_page
def test_what_a_page_names_is_there(page):
    text = page.read_text().replace("configs/CONFIG.py", "")  # a placeholder
    for name in re.findall(r"\b\w+/[\w/]+\.py\b", text):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "bam_jax", page.parent)), name
    for name in re.findall(r"python3? ((?:experiments|tests|docs)/[\w/*-]+\.py)", text):
        assert any(ROOT.glob(name)), name
    for name in re.findall(r"python -m (bam_jax[\w.]*\w)", text):
        assert importlib.util.find_spec(name), name
    for module, names in re.findall(r"^[ >]*from (bam_jax[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}"), name
    targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {*re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)}
    assert named <= {name for line in targets for name in line.split()}


@each_page
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


@each_page
def test_pictures_are_described_in_words(page):
    assert all(len(words.split()) > 3 for words in re.findall(r"!\[([^\]]*)\]\(", page.read_text()))
    assert all(re.search(r'\balt="[^"]*\s', tag) for tag in re.findall(r"<img[^>]*>", page.read_text()))


def test_every_figure_of_a_notebook_is_described_in_words():
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        drawn = [each for each in cells if any("image/png" in out.get("data", {}) for out in each.get("outputs", []))]
        assert drawn and all(len(cell["metadata"]["mystnb"]["image"]["alt"].split()) > 8 for cell in drawn)


def test_a_public_name_that_no_page_has_is_missed():
    missing = runpy.run_path(str(ROOT / "docs" / "conf.py"))["missing"]
    everything = [*missing([])]
    assert len(everything) == len({*everything}) > 100 and [*missing(everything)] == []
    for name in ("bam_jax.models.counts.parameters", "bam_jax.attention.ring.zigzag", "bam_jax.load"):
        assert [*missing([each for each in everything if each != name])] == [name]


# Results.


@pytest.mark.full
def test_the_table_and_figure_of_the_readme_are_what_the_records_give(tmp_path, capsys):
    asked = [f"{ROOT / 'experiments' / 'headline.py'}", "--scale=small", f"--runs={tmp_path}"]
    tables.main([*asked, "--format=markdown"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 9 and {*table} <= {*(ROOT / "docs" / "quickstart.md").read_text().splitlines()}
    cells = lambda line: [re.sub(r" n=\d+$", "", cell.strip()) for cell in line.strip("|").split("|")]
    (said,) = re.findall(r"^\| passkey accuracy(?:.*\n)((?:\|.*\n)+)", README, re.MULTILINE)
    short = [cells(line) for line in said.splitlines()[1:]]
    assert len(short) == 5
    assert {*map(tuple, short)} <= {tuple(row[n] for n in (0, 1, 3, 4, 6)) for row in map(cells, table[2:])}
    tables.main([*asked, "--format=figures", f"--out={tmp_path}"])
    (drawn,) = tmp_path.iterdir()
    assert drawn.read_bytes() == (ROOT / "docs" / "figures" / drawn.name).read_bytes(), "draw it again"


def test_the_verdicts_of_the_readme_are_those_of_the_page():
    page = (ROOT / "docs" / "claims.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    counts = {verdict: int(bam) + int(cable) for verdict, bam, cable in rows}
    total = sum(counts.values())
    holds, contradicted, untold = (counts.pop(name) for name in ("supported", "contradicted", "inconclusive"))
    counted = rf"{total} claims, {holds} .* {contradicted} .* {untold} .* {sum(counts.values())} "
    assert re.search(counted, " ".join(README.split()))


def test_the_full_products_are_tested_as_users_run_them():
    command = ["make", "--dry-run", f"--directory={ROOT}", "test-all"]
    recipe = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search("JAX_DISABLE_MOST_OPTIMIZATIONS=0 .* -m 'full", recipe)
