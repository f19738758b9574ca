"""What all tests share."""

import contextlib
import functools
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")  # of one processor, for meshes
# Small programs run a few times: compiling costs more than running. (Set it to 0 to test what users run.)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import fsspec
import hypothesis
import jax
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # of `endurance`, as its run.py has it

import buckets

# The same examples in every run, and no time limit on one: the first compiles.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")
# BAM_FUZZ=10000 pytest -n 0 tests/test_fuzz.py --hypothesis-seed=1: as many, others with each seed
if "BAM_FUZZ" in os.environ:
    hypothesis.settings.register_profile("long", deadline=None, max_examples=int(os.environ["BAM_FUZZ"]), database=None)
    hypothesis.settings.load_profile("long")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=("cpu", "gpu", "tpu"),
        help="compare attention on this device with the reference; no other tests",
    )

    parser.addoption("--outcomes", type=Path, help="append the outcome of each test to this file, a line of JSON each")


class Outcomes:
    """Writes each outcome as soon as it is known, so that a kill loses none."""

    def __init__(self, path):
        self.path = path

    def pytest_runtest_logreport(self, report):
        if report.when in ("setup", "teardown") and report.passed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else crash.message if crash else report.longrepr
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
        with self.path.open("a") as file:
            file.write(json.dumps(line | {"reason": str(said).partition("\n")[0][:160] if said else ""}) + "\n")


def pytest_configure(config):
    if config.getoption("--outcomes") and not hasattr(config, "workerinput"):  # workers of xdist send theirs here
        config.pluginmanager.register(Outcomes(config.getoption("--outcomes")))
    keep_programs(config)
    device = config.getoption("--device")
    if device is not None:
        config.option.markexpr = f"on_{device}"
        config.addinivalue_line("filterwarnings", "default")  # a driver's warning is no failure of attention
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}[device])


def keep_programs(config):
    """Compiled programs are kept for the next run, which takes half the time; `pytest --cache-clear` drops them."""
    if not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("home"))  # of the commands that tests start
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")  # JAX does not guard a folder that several processes write
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir(f"compiled-{worker}")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # of a process that was killed as it wrote: the program is compiled again
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")


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


@pytest.fixture(autouse=True, scope="module")
def programs_of_one_module():
    """Clears JAX's caches after each module: among thousands of live programs, tests took twice as long."""
    yield
    jax.clear_caches()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def write_tiny():
    """Writes tiny.py, the configuration of a small model, and text.txt, random words that it trains on, into a folder."""

    def write(folder, **changes):
        words = np.random.default_rng(0).integers(100, 999, 3000)
        (folder / "text.txt").write_text(" ".join(np.base_repr(word, 30).lower() for word in words))
        sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
        tree = {"encoding": "bam", "model": sizes, "data": {"source": str(folder / "text.txt")}, **changes}
        code = f"import ml_collections\n\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n"
        (folder / "tiny.py").write_text(code)
        return folder

    return write


@pytest.fixture(scope="session")
def servers():
    """Variables of a server of buckets, by its kind; started when they are asked for."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(buckets.served(kind)))


@pytest.fixture(params=["gs", "s3"])
def folder_in_bucket(request, monkeypatch, servers):
    """The address of an empty folder in a bucket of each kind."""
    kind = request.param
    for name, value in servers(kind).items():
        monkeypatch.setenv(name, value)
    if kind == "gs":
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    fsspec.get_filesystem_class(kind).clear_instance_cache()  # those made for another server
    yield f"{kind}://{buckets.NAME}/{secrets.token_hex(4)}"
    fsspec.get_filesystem_class(kind).clear_instance_cache()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def title_of(tmp_path):
    """Opens the text of a page in Chromium, and gives the title that its script has left there."""
    found = [name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)]
    if not found:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH; `apt-get install chromium` gives one")

    def open_page(text: str) -> str:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--allow-file-access-from-files"]
        command = [found[0], *options, f"--user-data-dir={tmp_path}/profile", f"file://{tmp_path}/page.html"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        return re.findall("<title>(.*?)</title>", said)[0]

    return open_page


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


@pytest.fixture(scope="session")
def write_initial():
    """Writes the run of a small model whose only checkpoint, of its last step, is the model as it begins."""
    from flax import nnx

    from bam_jax import config as configs
    from bam_jax.data import tokenizers
    from bam_jax.models import transformer
    from bam_jax.training import checkpoint

    def write(folder, **fields):
        sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16} | fields.pop("model", {})
        config = configs.from_dict({"context": 16, "steps": 1, "model": sizes} | fields)
        tokenizer = tokenizers.tokenizer(config.data.tokenizer)
        model = nnx.jit(lambda: transformer.build(config, vocab=tokenizer.padded, rngs=nnx.Rngs(0)))()
        checkpoint.write_model(folder, config, tokenizer, transformer.split(model)[1])
        return folder

    return write


@pytest.fixture(scope="session")
def encoder_run(tmp_path_factory, write_initial):
    """An encoder as it begins, over bytes, with a context of 16."""
    model, data = {"causal": False, "scan": True}, {"tokenizer": "byte", "task": "masked"}
    return write_initial(tmp_path_factory.mktemp("encoder") / "run", encoding="alibi", model=model, data=data)


@pytest.fixture(scope="session")
def take_steps():
    """Trains on one batch again and again: each step's metrics and the states before, between and after, in NumPy."""
    from bam_jax.parallel import sharding
    from bam_jax.training.step import define_training, initial_state, make_step, state_shardings

    def take(config, batch, *, vocab, steps=1, dtype=np.float32, first=None):
        mesh = sharding.make_mesh(config.mesh)
        sharding.check(config, mesh)
        whole = lambda state: jax.tree.map(np.array, state)
        with jax.set_mesh(mesh):
            graph, init, tx = define_training(config, vocab)
            wide = lambda: jax.tree.map(lambda x: x.astype(dtype) if x.dtype == np.float32 else x, init())
            cut = state_shardings(jax.eval_shape(wide), tx, mesh)
            state = initial_state(wide, shardings=cut) if first is None else jax.device_put(first, cut)
            update = make_step(config, graph, tx, cut)
            metrics, states = [], [whole(state)]
            for _ in range(steps):
                state, found = update(state, sharding.shard_batch(batch, mesh))
                metrics.append(np.asarray(found))
                states.append(whole(state))
            assert jax.tree.map(lambda x: x.sharding, state) == cut
        return np.stack(metrics), states

    return take


@pytest.fixture
def command(capsys):
    """Runs a command's `main` in this process as a shell would: its exit status, what it printed, and its errors."""
    from bam_jax.system import errors

    def run(main, *arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            errors.run(main, [*map(str, arguments)])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def refused(command):
    """Runs a command that must end in one line of error, which it returns."""

    def run(main, *arguments):
        status, _, said = command(main, *arguments)
        assert status == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        return said

    return run


@pytest.fixture
def retrieval_files(tmp_path):
    """Ten documents of other words each, one of them empty, and queries that are the beginnings of three; in MLDR's columns."""
    words = "one two three four five six seven eight nine ten".split()
    texts = {f"d{n}": " ".join(words[n:] + words[:n]) for n in range(9)} | {"d9": ""}
    queries = [
        {"query_id": f"q{n}", "query": texts[f"d{n}"][:14], "positive_passages": [{"docid": f"d{n}"}]}
        for n in (0, 5, 7)
    ]
    corpus = [{"docid": name, "text": text} for name, text in texts.items()]
    for name, records in (("corpus", corpus), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
