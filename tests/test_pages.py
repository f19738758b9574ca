"""Commands of the README and the pages: each is one that its module's arguments read."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from bam_jax import config as configs
from bam_jax.data import prepare
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.system import errors
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


FOUND = [(page.stem, *command) for page in PAGES for command in commands(page.read_text())]


def read_arguments(monkeypatch, module, arguments):
    """Calls a command until its arguments are read."""

    def stopping(function):
        def read(*given):
            function(*given)
            raise Read

        return read

    monkeypatch.setattr(configs, "parse", stopping(configs.parse))
    monkeypatch.setattr(errors.Parser, "parse_args", stopping(errors.Parser.parse_args))
    name = f"{module}.__main__" if importlib.util.find_spec(module).submodule_search_locations else module
    with pytest.raises(Read):
        importlib.import_module(name).main(arguments)


@pytest.mark.parametrize(("page", "module", "arguments"), FOUND, ids=[f"{page}-{module}" for page, module, _ in FOUND])
def test_a_pages_command_is_one_that_can_be_typed(page, module, arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    read_arguments(monkeypatch, module, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_training_that_needs_an_accelerator_says_so_beside_it(page):
    large = [path.name for path in (ROOT / "configs").glob("*.py") if "accelerator" in path.read_text()]
    assert 5 < len(large) < len([*(ROOT / "configs").glob("*.py")])
    parts = page.read_text().split("\n\n")
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        for name in re.findall(r"^    .*bam_jax\.train (?:.|\\\n)*?--config=configs/(\w+\.py)", part, re.MULTILINE):
            assert name not in large or re.search("accelerator|GPU|TPU|tpu", before + part + after), part


def test_the_blocks_of_python_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(block)
    config = configs.load(tmp_path / "mine.py")
    assert (config.encoding, config.model.layers, config.model.width, config.steps) == ("cable", 4, 128, 500)

    (tmp_path / "lines.jsonl").write_text("".join(f'{{"text": "document {n}"}}\n' for n in range(14)))
    prepare.main(["--source=lines.jsonl", "--tokenizer=byte", "--out=data/mine"])
    (block,) = re.findall(
        r"(?:^    .*\n)*^    from bam_jax.*\n(?:^    .*\n)*", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE
    )
    *lines, last = block.replace("\n    ", "\n").strip().split("\n")
    names: dict = {}
    exec("\n".join(lines), names)
    texts = [bytes(ids[:-1].tolist()).decode() for ids in eval(last, names)]
    assert texts == ["document 12", "document 7"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_that_a_page_names_are_there(page):
    named = re.findall(r"python3? ((?:experiments|tests|docs)/[\w/*-]+\.py)", page.read_text())
    assert all(any(ROOT.glob(name)) for name in named), named


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "made by" not in page.read_text()], ids=lambda page: page.stem
)
def test_numbers_have_their_leading_zero(page):
    prose = re.sub(r"```.*?```|^    .*?$|`[^`]*`|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"(?<![\w.\])])\.\d+", prose) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_makes_is_a_target(page):
    targets = set(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    named = re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    assert {*named} <= known, {*named} - known


def test_most_commands_of_the_pages_are_among_them():
    assert len(FOUND) > 60 and {"bam_jax.train", "bam_jax.evaluate", "bam_jax.sweep"} <= {name for _, name, _ in FOUND}


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


@pytest.mark.parametrize("wrong", ["--cofnig=x", "--config.model.layer=2"])
def test_an_option_that_is_none_would_be_seen(wrong, monkeypatch):
    with pytest.raises(UserError, match="unknown argument|unknown config key"):
        read_arguments(monkeypatch, "bam_jax.train", ["--config=x", "--workdir=y", wrong])
