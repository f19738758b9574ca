"""What imports load and need; `lint-imports` checks their directions (pyproject.toml)."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bam_jax"


@cache
def is_module(name):
    if not name.startswith("bam_jax.") or not name.replace(".", "").isidentifier():
        return False
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or path.is_dir()


def test_commands_are_listed_with_a_line_each():
    script = [sys.executable, "-m", "bam_jax"]
    lines = subprocess.run(script, check=True, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    said = {line.split()[2] for line in lines if "python -m" in line and line.split(maxsplit=3)[3]}
    commands = [path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if "    errors.run(main" in path.read_text()]
    commands.remove(Path("bam_jax/__main__.py"))  # the list itself
    assert len(commands) > 15
    assert {".".join(path.with_suffix("").parts).removesuffix(".__main__") for path in commands} <= said


def loaded_by(imports):
    script = f"import sys, {imports}\nprint(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True, text=True
        ).stdout.split()
    )


def test_biases_and_attention_load_nothing_of_training():
    """Nor the compilers of kernels, which take longer than all the rest."""
    found = loaded_by("bam_jax.attention, bam_jax.biases")
    assert not found & {
        "optax",
        "grain",
        "orbax",
        "ml_collections",
        "flax",
        "tqdm",
        "matplotlib",
        "jax.experimental.pallas",
    }
    assert not {name for name in found if name.startswith(("bam_jax.encodings", "bam_jax.config", "bam_jax.models"))}


def test_adapters_load_nothing_of_training():
    found = loaded_by("bam_jax.adapters")
    assert not found & {
        "grain",
        "ml_collections",
        "tqdm",
        "matplotlib",
        "bam_jax.config",
        "bam_jax.models",
        "bam_jax.data",
    }


def test_preparing_data_loads_nothing_of_training():
    """Its worker processes start again and again; what parquet and other formats need is imported where they are read."""
    found = loaded_by("bam_jax.data.prepare")
    assert not found & {"jax", "grain", "pyarrow", "fsspec", "array_record", "tensorflow_datasets", "bam_jax.config"}


def test_only_those_who_draw_need_matplotlib():
    """Tables and results know the figures' modules, so none of them imports it as it is loaded itself."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "matplotlib" for name in names), path


EXTRAS = "grain ml_collections safetensors tqdm matplotlib tokenizers tiktoken sentencepiece pyarrow".split()
"""Modules that the core does not install, or does not promise; flax brings optax and orbax."""


def without_extras(code):
    """A process in which the modules of extras cannot be imported runs some code."""
    script = f"import sys\nsys.modules |= dict.fromkeys({EXTRAS!r})\n{code}"
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.full
def test_every_command_starts_without_extras():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
    names = [name for name in names if name != "bam_jax.evals.lm_eval_adapter"]  # which is itself of an extra
    done = without_extras(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("call", ["train.main(['--config=configs/quickstart.py'])", "load('quickstart')"])
def test_what_needs_an_extra_says_how_to_install_it(call):
    imports = "from bam_jax import load, train\nfrom bam_jax.system import errors"
    done = without_extras(f"{imports}\nerrors.run(lambda argv: {call})")
    assert done.returncode == 2 and done.stderr.endswith(": pip install '.[train]' in a clone of bam_jax\n")
    assert done.stderr.count("\n") == 1


def test_no_name_of_a_package_hides_one_of_its_modules():
    """After `import a.b.c` the name `a.b.c` is the module, whatever `a.b` takes from it."""
    for path in PACKAGE.rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        bound = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module != package:
                bound |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound |= {target.id for target in targets if isinstance(target, ast.Name)}
        hidden = {name for name in bound if is_module(f"{package}.{name}")}
        assert not hidden, f"{package} hides its modules {hidden}"
