"""What imports load and need; `lint-imports` checks their directions (pyproject.toml)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bam_jax"
FILES = list(PACKAGE.rglob("*.py"))


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def python(*words):
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)


def test_commands_are_listed_with_a_line_each():
    lines = [
        line.partition("bam-jax ")[2] for line in python("-m", "bam_jax").stdout.splitlines() if line.startswith("  ")
    ]
    words = [line.partition("  ") for line in lines]
    said = {f"bam_jax.{name.replace(' ', '.')}" for name, _, sentence in words if sentence.strip()}
    commands = {module_of(path) for path in FILES if "    errors.run(main" in path.read_text()}
    commands = {name.removesuffix(".__main__") for name in commands - {"bam_jax.__main__"}}  # the list itself
    assert len(commands) > 15 and commands <= said


HEAVY = {"optax", "grain", "orbax", "ml_collections", "flax", "tqdm", "matplotlib", "jax.experimental.pallas"}


@pytest.mark.parametrize(
    ("imports", "unneeded"),
    [  # compilers of kernels take longer than all the rest
        ("bam_jax.attention, bam_jax.biases", HEAVY | {"bam_jax.encodings", "bam_jax.config", "bam_jax.models"}),
        ("bam_jax.adapters", HEAVY - {"flax", "optax", "orbax"} | {"bam_jax.config", "bam_jax.models", "bam_jax.data"}),
        # Its worker processes start again and again.
        ("bam_jax.data.prepare", {"jax", "grain", "pyarrow", "fsspec", "array_record", "bam_jax.config"}),
    ],
)
def test_what_is_imported_loads_nothing_of_training(imports, unneeded):
    assert not unneeded & {*python("-c", f"import sys, {imports}\nprint(*sys.modules)").stdout.split()}


def test_only_those_who_draw_need_matplotlib():
    """Tables and results know the figures' modules, so none of them imports it as it is loaded itself."""
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "matplotlib" for name in names), path


EXTRAS = "grain ml_collections safetensors tqdm matplotlib tokenizers tiktoken sentencepiece pyarrow".split()
"""Modules that the core does not install, or does not promise; flax brings optax and orbax."""


def without_extras(code):
    return python("-c", f"import sys\nsys.modules |= dict.fromkeys({EXTRAS!r})\n{code}")


@pytest.mark.full
def test_every_command_starts_without_extras():
    # Two are of an extra themselves.
    names = {*map(module_of, FILES)} - {
        "bam_jax.evals.lm_eval_adapter",
        "bam_jax.convert.exported.modeling_bam_jax",
    }
    done = without_extras(f"import importlib\nfor name in {sorted(names)!r}: importlib.import_module(name)")
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("call", ["train.main(['--config=configs/quickstart.py'])", "load('quickstart')"])
def test_what_needs_an_extra_says_how_to_install_it(call):
    imports = "from bam_jax import load, train\nfrom bam_jax.system import errors"
    done = without_extras(f"{imports}\nerrors.run(lambda argv: {call})")
    assert done.returncode == 2 and done.stderr.endswith(": pip install '.[train]' in a clone of bam_jax\n")
    assert done.stderr.count("\n") == 1


def test_no_name_of_a_package_hides_one_of_its_modules():
    """After `import a.b.c` the name `a.b.c` is the module, whatever `a.b` takes from it."""
    modules = {module_of(path) for path in FILES}
    for path in PACKAGE.rglob("__init__.py"):
        package, bound = module_of(path), set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module != package:
                bound |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound |= {target.id for target in targets if isinstance(target, ast.Name)}
        assert not {f"{package}.{name}" for name in bound} & modules
