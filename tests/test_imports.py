"""Imports run one way, and those who want biases or attention alone get nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bam_jax"

# What each part may import of the package, besides itself.
ALLOWED = {
    "errors": set(),
    "strict_json": {"errors"},
    "biases": set(),
    "encodings": {"biases", "errors"},
    "attention": {"biases", "platform"},
    "attention/axes": set(),
    "attention/scoring": {"biases"},
    "attention/reference": {"biases", "attention/scoring", "attention/tiles"},
    "attention/rows": {"attention/axes", "attention/scoring", "attention/tiles", "attention/reference"},
    "attention/tiles": {"biases", "attention/scoring"},
    "attention/heads": {"attention/axes", "biases", "attention/scoring"},
    "attention/tile": {"biases", "attention/scoring"},
    "attention/toeplitz": {"biases", "attention/scoring"},
    "attention/chunked": {
        "attention/axes",
        "biases",
        "attention/scoring",
        "attention/tile",
        "attention/tiles",
        "attention/toeplitz",
        "attention/heads",
        "attention/kinds",
    },
    "attention/kinds": {"attention/scoring", "attention/tiles"},
    "attention/cache": {"biases", "attention/scoring"},
    "attention/merge": {"attention/scoring"},
    "attention/strips": {"biases", "attention/scoring", "attention/toeplitz"},
    "attention/grid": {
        "attention/axes",
        "biases",
        "attention/scoring",
        "attention/tile",
        "attention/tiles",
        "attention/strips",
    },
    "attention/pallas_tpu": {
        "biases",
        "attention/scoring",
        "attention/tile",
        "attention/tiles",
        "attention/strips",
        "attention/grid",
        "attention/merge",
        "attention/chunked",
    },
    "attention/hopper": {
        "attention/axes",
        "platform",
        "biases",
        "attention/scoring",
        "attention/tile",
        "attention/tiles",
    },
    "attention/pallas_gpu": {
        "biases",
        "attention/scoring",
        "attention/tile",
        "attention/tiles",
        "attention/hopper",
        "attention/merge",
    },
    "attention/op": {
        "attention/axes",
        "platform",
        "biases",
        "attention/scoring",
        "attention/tiles",
        "attention/reference",
        "attention/rows",
        "attention/chunked",
    },
    "attention/ring": {
        "biases",
        "attention/scoring",
        "attention/tiles",
        "attention/merge",
        "attention/op",
    },
    "config": {"errors", "strict_json"},
    "platform": set(),
    "processes": {"errors", "log"},
    "layers": {"platform"},
    "sharding": {"biases", "config", "encodings", "errors"},
    "sharded": {"attention", "biases", "encodings", "errors", "losses", "sharding"},
    "model": {"attention", "biases", "config", "encodings", "errors", "layers", "platform", "sharded", "sharding"},
    "generate": {"attention", "errors", "model"},
    "adapters": {"attention", "biases", "encodings"},
    "theory": {"biases", "attention/scoring"},
    "losses": set(),
    "optimizer": {"config"},
}


def imported(path):
    """Modules of the package that a file imports, as paths."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if is_module(name)}
            names |= modules | ({node.module} if modules < inner else set())
    return {as_path(name) for name in names if name.startswith("bam_jax.") and is_module(name)}


def as_path(name):
    return name.removeprefix("bam_jax.").replace(".", "/")


def is_module(name):
    path = PACKAGE / as_path(name)
    return path.with_suffix(".py").exists() or path.is_dir()


def files(part):
    return [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else sorted((PACKAGE / part).glob("*.py"))


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_run_one_way(part):
    for path in files(part):
        for name in imported(path):
            fits = any(name == other or name.startswith(f"{other}/") for other in {part, *ALLOWED[part]})
            assert fits, f"{path.relative_to(ROOT)} imports {name}"


def test_only_the_edges_import_the_config():
    inner = ("biases", "encodings", "attention", "losses", "generate", "errors")
    assert not [path for part in inner for path in files(part) if "config" in imported(path)]


def test_no_cycles():
    graph = {
        path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__"): imported(path)
        for path in PACKAGE.rglob("*.py")
    }
    done = set()

    def visit(name, above):
        assert name not in above, f"imports go round: {' -> '.join([*above, name])}"
        if name not in done:
            for other in graph[name] - {name}:
                if not name.startswith(f"{other}/") and not other.startswith(f"{name}/"):
                    visit(other, [*above, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_biases_and_attention_load_nothing_of_training():
    """Nor the compilers of kernels, which take longer than all the rest."""
    script = (
        "import sys, bam_jax.attention, bam_jax.biases\n"
        "heavy = {'optax', 'grain', 'orbax', 'ml_collections', 'flax', 'tqdm', 'matplotlib', 'jax.experimental.pallas'}\n"
        "heavy &= set(sys.modules)\n"
        "edges = tuple(f'bam_jax.{name}' for name in ('encodings', 'config', 'model', 'adapters'))\n"
        "ours = [name for name in sys.modules if name.startswith(edges)]\n"
        "assert not heavy and not ours, (heavy, ours)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_adapters_load_nothing_of_training():
    script = (
        "import sys, bam_jax.adapters\n"
        "names = {'grain', 'ml_collections', 'tqdm', 'matplotlib', 'bam_jax.config', 'bam_jax.models', 'bam_jax.data'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_preparing_data_loads_nothing_of_training():
    """Its worker processes start again and again; what parquet and other formats need is imported where they are read."""
    script = (
        "import sys, bam_jax.data.prepare\n"
        "names = {'jax', 'grain', 'pyarrow', 'fsspec', 'array_record', 'tensorflow_datasets', 'bam_jax.config'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_only_those_who_draw_need_matplotlib():
    """Tables and results know the figures' modules, so none of them imports it as it is loaded itself."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "matplotlib" for name in names), path
