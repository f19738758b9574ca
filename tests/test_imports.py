"""Rooms: which part of the package may import which, and that all imports run downwards."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bam_jax"

FLOORS = [
    {
        "biases": "",
        "data/corpora": "",
        "system": "",
    },
    {
        "attention/logits": "biases",
        "config": "system",
        "data/sources": "data/corpora system",
        "data/tokenizers": "system",
        "encodings": "biases system",
        "render": "system",
    },
    {
        "attention/cpu": "attention/logits biases system",
        "attention/pallas": "attention/logits biases system",
        "data/prepared": "config data/sources data/tokenizers system",
        "data/tasks": "data/sources data/tokenizers system",
        "parallel": "biases config encodings system",
        "theory": "attention/logits biases",
    },
    {
        "attention": "attention/cpu attention/logits attention/pallas biases system",
        "data/packing": "config data/prepared data/tasks data/tokenizers system",
    },
    {
        "adapters": "attention biases encodings",
        "data": "config data/packing data/prepared data/sources data/tokenizers system",
        "models": "attention biases config data/tokenizers encodings parallel system",
    },
    {
        "retrieval": "data/tokenizers models system",
        "training": "config data data/sources data/tokenizers models parallel system",
    },
    {
        "convert": "config data/tokenizers models system training",
        "evals": "attention config data data/sources data/tasks data/tokenizers models retrieval system training",
        "preflight": "config models parallel system training",
    },
    {
        "analysis": "attention biases config data data/tokenizers encodings evals models render system theory training",
        "experiments": "config data/sources evals models system training",
    },
    {
        "report": "analysis config evals experiments render system training",
    },
]
"""Every room, floor by floor from the ground, and the rooms that it imports; a room is a folder that holds modules."""

ROOMS = {room: set(imports.split()) for floor in FLOORS for room, imports in floor.items()}
COMMANDS = {
    "train",
    "evaluate",
    "sweep",
    "tables",
    "claims",
    "report",
    "heads",
    "figures",
    "generate",
    "convert",
    "preflight",
}
COMMANDS |= {"methods", "retrieve", "data.prepare", "data.inspect", "data.train_tokenizer", "data.make_retrieval"}
PUBLIC = ("biases", "encodings", "attention", "theory", "adapters")
"""The packages that people import: these names stay."""


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not is_command(path)]


@cache
def is_command(path):
    """Commands are run and not imported: they stand on the roof."""
    name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    return path.parent == PACKAGE or path.stem == "__main__" or name in COMMANDS


@cache
def imported(path):
    """Modules of the package that a file names in an import, wherever it stands, or in a string for `import_module`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found = {name for name in inner if is_module(name)}
            names |= found | ({node.module} if found < inner else set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value):
            names |= {node.value} - {f"bam_jax.{command}" for command in COMMANDS}  # which a new process runs
    return {name for name in names if is_module(name)}


@cache
def is_module(name):
    if not name.startswith("bam_jax.") or not name.replace(".", "").isidentifier():
        return False
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or path.is_dir()


def room(path):
    return path.parent.relative_to(PACKAGE).as_posix()


def room_of(name):
    path = ROOT / name.replace(".", "/")
    return (path if path.is_dir() else path.parent).relative_to(PACKAGE).as_posix()


@cache
def arrows():
    """The rooms that each room imports."""
    found = {room(path): set() for path in modules()}
    for path in modules():
        found[room(path)] |= {room_of(name) for name in imported(path)} - {room(path)}
    return found


def test_every_room_imports_what_is_listed():
    assert arrows() == ROOMS


def test_imports_run_downwards():
    below = set()
    for floor in FLOORS:
        for name in floor:
            assert ROOMS[name] <= below, f"{name} imports {ROOMS[name] - below}, which stand no lower"
        below |= set(floor)


def test_the_house_is_small():
    assert len(ROOMS) <= 32
    assert sum(map(len, ROOMS.values())) <= 125
    assert len(FLOORS) <= 9


def test_nothing_imports_a_command():
    for path in PACKAGE.rglob("*.py"):
        for name in imported(path):
            file = (ROOT / name.replace(".", "/")).with_suffix(".py")
            assert not (file.exists() and is_command(file)), f"{path.relative_to(ROOT)} imports the command {name}"


CLONE = {"benchmarks", "experiments", "tests", *(path.stem for path in ROOT.glob("experiments/*.py"))}


def test_the_package_imports_nothing_that_only_a_clone_has():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            beside = {name.partition(".")[0] for name in names} & CLONE
            assert not beside, f"{path.relative_to(ROOT)} imports {beside}"


def test_no_module_imports_itself_through_others():
    graph = {".".join(path.relative_to(ROOT).with_suffix("").parts): imported(path) for path in modules()}
    graph = {name.removesuffix(".__init__"): found for name, found in graph.items()}
    done = set()

    def visit(name, above):
        assert name not in above, f"imports go round: {' -> '.join([*above, name])}"
        if name in graph and name not in done:
            for other in graph[name] - {name}:
                if not name.startswith(f"{other}.") and not other.startswith(f"{name}."):
                    visit(other, [*above, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_commands_stand_at_the_top():
    found = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert found == {name for name in COMMANDS if (PACKAGE / f"{name}.py").exists()}
    for name in COMMANDS:
        assert is_command(next(file for file in files(name) if file.exists())), name


def files(name):
    path = PACKAGE / name.replace(".", "/")
    return path.with_suffix(".py"), path / "__main__.py"


def test_commands_are_listed_with_a_line_each():
    script = [sys.executable, "-m", "bam_jax"]
    lines = subprocess.run(script, check=True, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    said = {line.split()[2]: line.split(maxsplit=3)[3] for line in lines if "python -m" in line}
    assert {f"bam_jax.{name}" for name in COMMANDS} <= said.keys()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_imports_stay(name):
    module = importlib.import_module(f"bam_jax.{name}")
    for each in module.__all__:
        assert hasattr(module, each)


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
