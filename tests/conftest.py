"""What all tests share."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")  # of one processor, for meshes
# Small programs run a few times: compiling costs more than running. (Set it to 0 to test what users run.)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis
import jax
import numpy as np
import pytest

# The same examples in every run, and no time limit on one: the first compiles.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")
if (
    "BAM_FUZZ" in os.environ
):  # BAM_FUZZ=10000 pytest -n 0 tests/test_fuzz.py --hypothesis-seed=1: as many, others with each seed
    hypothesis.settings.register_profile("long", deadline=None, max_examples=int(os.environ["BAM_FUZZ"]), database=None)
    hypothesis.settings.load_profile("long")


@pytest.fixture(autouse=True)
def attention_as_it_is(request):
    """What a test replaces inside attention is neither overlooked by it nor met by the next: none has the other's programs."""
    op = sys.modules.get("bam_jax.attention.op")
    if "monkeypatch" not in request.fixturenames or op is None:
        yield
        return
    op._compiled.clear_cache()
    yield
    op._compiled.clear_cache()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def contributed(tmp_path_factory):
    """Makes a module of the example in CONTRIBUTING.md that has a text in it."""

    def load(text: str):
        page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
        (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if text in block]
        path = tmp_path_factory.mktemp("contributed") / "example.py"
        path.write_text(block)
        spec = importlib.util.spec_from_file_location(f"contributed_{len(block)}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where types of fields are looked up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def triplets(tmp_path_factory):
    """A prepared folder of 96 triplets in bytes, and 12 held out: a query and its positive have a word in common."""
    from bam_jax.data import prepare

    folder = tmp_path_factory.mktemp("triplets")
    words = [f"{first}{last}" for first in ("bo", "ka", "li", "mu", "re", "ti") for last in ("da", "fe", "go")]
    rng, lines = np.random.default_rng(0), []
    for number in range(108):
        right, wrong = rng.choice(words, 2, replace=False)
        lines.append({"query": f"{right}?", "positive": f"{number} {right}", "negative": f"{wrong} {number}"})
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = "--tokenizer=byte", "--text-field=query,positive,negative", "--holdout-records=12", "--workers=0"
    prepare.main([f"--source={folder}/lines.jsonl", f"--out={folder}/prepared", *options])
    return str(folder / "prepared")
