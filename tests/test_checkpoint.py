import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from bam_jax import checkpoint, train
from bam_jax import config as configs
from bam_jax.config import Config, DataConfig
from bam_jax.data import tokenizer
from bam_jax.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("a tale of some length, told again and again. " * 200)
    config = configs.from_dict(
        {
            "encoding": "bam",
            "ssmax": "on",
            "steps": 4,
            "checkpoint_every": 2,
            "log_every": 1,
            "batch": 2,
            "context": 16,
            "model": {"width": 16, "heads": 2, "hidden": 16},
            "data": {"source": str(folder / "text.txt")},
        }
    )
    train.fit(config, folder / "run")
    return config, folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[1], tmp_path / "run")


def claim(run, config):
    with checkpoint.claim(run, config, tokenizer(config.data.tokenizer)):
        pass


def test_claim_writes_the_configuration_once(tmp_path):
    run = tmp_path / "a" / "run"
    claim(run, Config(seed=3))
    assert checkpoint.read_config(run) == Config(seed=3)
    before = (run / "config.json").stat()
    claim(run, Config(seed=3))
    assert (run / "config.json").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("changed", [Config(seed=4), Config(encoding_options={"init": "spread"})])
def test_claim_refuses_another_configuration(tmp_path, changed):
    claim(tmp_path / "run", Config(seed=3))
    with pytest.raises(UserError, match=r"config\.(seed=3, not 4|encoding_options)"):
        claim(tmp_path / "run", changed)
    assert checkpoint.read_config(tmp_path / "run") == Config(seed=3)


def test_claim_refuses_what_is_not_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not a run"):
        claim(tmp_path, Config())
    with pytest.raises(UserError, match="not a run"):
        claim(tmp_path / "thesis.tex", Config())
    with pytest.raises(UserError, match="thesis.tex/run cannot be written"):
        claim(tmp_path / "thesis.tex" / "run", Config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_is_claimed_by_one_process_until_that_is_killed(tmp_path):
    run = tmp_path / "run"
    code = """if True:
        import sys, time
        from bam_jax import checkpoint, config
        from bam_jax.data import tokenizer
        with checkpoint.claim(sys.argv[1], config.Config(), tokenizer("char")):
            print("claimed", flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(UserError, match="run is in use by another training"):
            claim(run, Config(seed=3))
        assert checkpoint.read_config(run) == Config()
        other.kill()  # SIGKILL
    claim(run, Config())


def test_a_run_does_not_lie_among_its_data(tmp_path, monkeypatch):
    texts = tmp_path / "texts"
    texts.mkdir()
    (tmp_path / "link").symlink_to(texts)
    for source in (texts, tmp_path / "link"):
        for run in (texts, texts / "runs" / "x"):
            with pytest.raises(UserError, match="would be read as data"):
                claim(run, Config(data=DataConfig(source=str(source))))
            with pytest.raises(UserError, match="would be read as data"):
                claim(run, Config(data=DataConfig(mixture={"x": {"weight": 1, "held_out_source": str(source)}})))
    assert not list(texts.iterdir())
    claim(tmp_path / "texts2", Config(data=DataConfig(source=str(texts))))
    monkeypatch.chdir(tmp_path)
    claim("stdlib/run", Config(data=DataConfig(source="stdlib")))  # no folder's name


def test_restored_model_is_the_trained_one(trained):
    config, run = trained
    assert checkpoint.latest(run) == 4
    loaded, made, decoder = checkpoint.restore_model(run)
    assert loaded == config and made.name == "char"
    logits, _ = decoder(np.zeros((1, 8), np.int32))
    assert logits.shape == (1, 8, made.size)
    _, tree = checkpoint.split(decoder)
    fresh = train.parts(config, made.size)[1]()["model"]
    assert not np.array_equal(tree["params"]["head"]["kernel"], fresh["params"]["head"]["kernel"])
    np.testing.assert_array_equal(*(t["frozen"]["layers"]["attention"]["encoding"]["loc"] for t in (tree, fresh)))


def test_overrides_apply_and_must_fit(trained):
    config, *_ = checkpoint.restore_model(trained[1], overrides=["--config.context=32"])
    assert config.context == 32
    with pytest.raises(UserError, match="--config.model.width=32"):
        checkpoint.restore_model(trained[1], overrides=["--config.model.width=32"])
    with pytest.raises(UserError, match="did you mean 'context'"):
        checkpoint.restore_model(trained[1], overrides=["--config.contest=32"])


def test_missing_run_or_checkpoint(tmp_path, run):
    with pytest.raises(UserError, match="not a run"):
        checkpoint.restore_model(tmp_path / "none")
    assert not (tmp_path / "none").exists() and checkpoint.latest(tmp_path / "none") == 0
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.restore_model(run)
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        checkpoint.restore_model(run)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax leaves its coroutines behind
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("part", ["model/_METADATA", "model/ocdbt.process_0/d/*", "model"])
def test_a_corrupt_checkpoint_is_named(run, part, sealed):
    (path,) = (run / "checkpoints" / "4").glob(part)
    if not sealed:
        (run / "checkpoints" / "4" / "sums.json").unlink()
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="checkpoints/4 cannot be read"):
        checkpoint.restore_model(run)


@pytest.mark.parametrize("part", ["model/ocdbt.process_0/d/*", "sums.json"])
def test_a_flipped_byte_is_noticed(run, part):
    (path,) = (run / "checkpoints" / "4").glob(part)
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 255
    path.write_bytes(contents)
    with pytest.raises(UserError, match="checkpoints/4 cannot be read"):
        checkpoint.restore_model(run)


def test_the_state_may_be_donated_while_it_is_saved(tmp_path):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = {"model": {"x": jax.numpy.zeros(2**20)}, "optimizer": {"n": jax.numpy.zeros(3)}}

    class Data:
        """Stands still."""

        async def save(self, directory):
            async def write():
                (await directory.await_creation() / "state").write_text(json.dumps(0))

            return write()

        async def load(self, directory):
            async def read():
                assert (directory / "state").read_text() == "0"

            return read()

    abstract = jax.eval_shape(lambda: state)
    with checkpoint.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, Data())
        for _ in range(20):
            state["model"]["x"] = step(state["model"]["x"])
    with checkpoint.Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.load(abstract, Data())
    assert restored.keys() == state.keys()
    assert (np.asarray(restored["model"]["x"]) == 0).all()
