import errno
import functools
import itertools
import os
import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from bam_jax import config as configs
from bam_jax.convert import __main__ as convert
from bam_jax.data import tokenizers
from bam_jax.evals import measuring
from bam_jax.evals.passkey import Passkey
from bam_jax.models import transformer
from bam_jax.system import files
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, checkpoint, loop, run_folder, weights

SIZES = {"layers": 2, "width": 16, "heads": 2, "hidden": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of weights of a new model at step 3 of 4, and its arrays."""
    folder = tmp_path_factory.mktemp("weights") / "model"
    tree = {"encoding": "bam", "ssmax": "on", "context": 16, "batch": 2, "steps": 4, "model": SIZES}
    config = configs.from_dict(tree)
    tokenizer = tokenizers.tokenizer("char")
    model = nnx.jit(lambda: transformer.build(config, vocab=tokenizer.size, rngs=nnx.Rngs(3)))()
    tree = transformer.split(model)[1]
    weights.write(folder, config, tokenizer, tree, 3)
    return folder, config, tree


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "model")


def test_the_arrays_are_the_models(made):
    folder, config, tree = made
    found, tokenizer, model = checkpoint.restore_model(folder)
    assert (found, tokenizer.name, run_folder.trained_step(folder)) == (config, "char", 3)
    like = jax.tree.map(jax.numpy.zeros_like, tree)
    for made in (transformer.split(model)[1], checkpoint.restore_parameters(folder, like)):
        jax.tree.map(np.testing.assert_array_equal, made, tree)


def test_a_run_is_exported_with_its_measurements(made, tmp_path, capsys):
    folder, config, tree = made
    run = tmp_path / "run"
    checkpoint.write_model(run, config, tokenizers.tokenizer("char"), tree)
    (run / "results.jsonl").write_text("{}\n")
    convert.main([f"--run={run}", f"--export={tmp_path / 'out'}"])
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for name, array in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(exported[name], array)
    assert (tmp_path / "out" / "results.jsonl").read_text() == "{}\n"
    with pytest.raises(UserError, match=r"^\S+ holds a run; give a new or an empty folder|is there"):
        convert.main([f"--run={run}", f"--export={run}"])
    (run / "results.jsonl").rename(tmp_path / "secret")
    (run / "results.jsonl").symlink_to(tmp_path / "secret")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="results.jsonl is a link"):
        weights.copy_records(run, tmp_path / "empty")
    assert not any((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(("layout", "there"), [([], True), (["--layout=bam"], False)])
def test_a_full_disk_leaves_nothing_that_opens_as_a_run(made, tmp_path, monkeypatch, request, layout, there):
    out, written = tmp_path / "out", []
    (tmp_path / "run").symlink_to(made[0])
    command = [f"--run={tmp_path / 'run'}", f"--export={out}", *layout]
    if there:
        out.mkdir()
    write = files.write_atomically

    def fill_up(path, contents):
        written.append(path)
        if len(written) == most:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, contents)

    monkeypatch.setattr(files, "write_atomically", fill_up)
    request.addfinalizer(functools.partial(os.umask, os.umask(0o022)))
    for most in itertools.count(1):
        assert most < 50
        written.clear()
        try:
            convert.main(command)
            break
        except OSError:
            assert not any(out.iterdir()) if there else not out.exists()
    assert len(written) == most - 1 > 1 and not list(out.glob(".*"))
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()}
    assert modes == {0o644}, "others may read it"


@pytest.mark.full
def test_a_run_starts_from_weights_and_none_goes_on_in_them(made, folder, tmp_path):
    config = configs.override(made[1], {"start": str(folder), "steps": 1})
    assert loop.fit(config, tmp_path / "run", progress=False)[-1]["step"] == 1
    with pytest.raises(UserError, match=r"holds weights without the state .* --config.start="):
        loop.fit(made[1], folder, progress=False)
    assert not (folder / "checkpoints").exists()


def test_what_is_damaged_is_one_line(folder):
    path = folder / "model.safetensors"
    whole, arrays = path.read_bytes(), load_file(path)

    def refused(says):
        with pytest.raises(UserError, match=says):
            checkpoint.restore_model(folder)

    for contents in (whole[: len(whole) // 2], b"", b"\xff" * 64):
        path.write_bytes(contents)
        refused("not a whole safetensors file")
    flipped = bytearray(whole)
    flipped[-100] ^= 0x40  # a number's exponent
    path.write_bytes(flipped)
    refused("does not hold what was exported")
    for step, says in (({}, "does not say the step"), ({"step": "-1"}, "'-1'"), ({"step": "9" * 5000}, "'99999")):
        save_file(arrays, path, metadata=step)
        refused(says)
    save_file(arrays | {"params.more": np.zeros(2, np.float32)}, path, metadata={"step": "3"})
    refused(r"params.more is \(2,\) there and nothing here")
    save_file({name: array for name, array in arrays.items() if "norm" not in name}, path, metadata={"step": "3"})
    refused(r"norm.* is nothing there and \(")


def test_a_model_of_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bundled.find("quickstart") == bundled.FOLDER / "quickstart"
    with pytest.raises(UserError, match="the model of that name that comes with bam_jax lies in .*quickstart$"):
        run_folder.read_config("quickstart")
    with pytest.raises(UserError, match=r"comes with bam_jax, .* python -m bam_jax.convert --run=quickstart --export="):
        measuring.evaluate("quickstart", Passkey((64,)))
    (tmp_path / "quickstart").mkdir()  # a folder of one's own comes first
    assert str(bundled.find("quickstart")) == "quickstart"
    assert str(bundled.find("runs/quickstart")) == "runs/quickstart"
