"""A run of a pattern through the commands: trained, evaluated with other windows, measured head by head, drawn, not laid out."""

import json
import sys

import jax
import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import evaluate
from bam_jax.analysis import figures, heads
from bam_jax.convert import runs as converted
from bam_jax.convert.bam import BAM
from bam_jax.encodings import RoPE
from bam_jax.models import head_parameters, transformer
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop

OWN = """
import jax
from bam_jax.biases import Relative, bias
from bam_jax.encodings import Encoding
import jax.numpy as jnp
from flax import nnx

@bias
class Cauchy(Relative):
    width: jax.Array

    def __call__(self, i, j):
        return -jnp.log(1 + ((i - j) / self.width) ** 2)

class Own(Encoding):
    def __init__(self, dims, *, width: float = 16.0, rngs):
        self.width = nnx.Param(jnp.full(dims.heads, width))

    def bias(self):
        return Cauchy(self.width[...])
"""


@pytest.fixture
def fit(tmp_path, write_tiny):
    def fit(encoding, **more):
        model = {"layers": 4, "width": 16, "heads": 2, "hidden": 16, **more}
        write_tiny(tmp_path, encoding=encoding, steps=2, log_every=1, batch=2, context=16, model=model)
        loop.fit(configs.load(tmp_path / "tiny.py"), tmp_path / "run")
        return tmp_path / "run"

    return fit


def losses(run, *overrides):
    (run / "results.jsonl").unlink(missing_ok=True)
    evaluate.main([f"--run={run}", "--eval=perplexity", "--lengths=16,32", *overrides])
    return [json.loads(line)["value"] for line in (run / "results.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_places_that_differ_in_numbers_may_be_others_at_evaluation(fit, tmp_path):
    run = fit("rope:window=4/nope:log_temperature=0.5", qk_norm=True, gate=True, sinks=True)
    own = losses(run)
    same = losses(run, "--config.encoding=rope:window=4/nope:log_temperature=0.5,log_temperature_start=16")
    narrow = losses(run, "--config.encoding=rope:window=2/nope:log_temperature=0.5")
    calm = losses(run, "--config.encoding=rope:window=4/nope")
    assert own == same and own != narrow
    assert own[0] == calm[0] and own[1] != calm[1]  # the temperature begins at the training context
    with pytest.raises(UserError, match="layers"):
        losses(run, "--config.encoding=bam:window=2/nope")
    with pytest.raises(UserError, match="no place for .* of the encoding 'rope:window=4/nope"):
        converted.export(BAM, run, tmp_path / "theirs")


@pytest.mark.full
def test_heads_of_layers_with_and_without_a_prior(fit):
    run = fit("rope:window=4/bam:init=spread,ssmax=on")
    records = heads.measure(run, keys=[16], progress=False)
    assert [record["encoding"] for record in records] == ["rope"] * 2 + ["bam"] * 2 + ["rope"] * 2 + ["bam"] * 2
    assert ["shape" in record for record in records] == ["scale" in record for record in records]
    _, _, decoder = checkpoint.restore_model(run)
    found = head_parameters.head_parameters(decoder)
    names = ("shape", "log_scale", "loc", "ssmax")
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(names, (2, 2))
    shapes = [record["shape"] for record in records if "shape" in record]
    np.testing.assert_allclose(shapes, found["shape"].ravel(), atol=1e-6)
    assert max(record["reach"]["16"][-1] for record in records if record["encoding"] == "rope") <= 4
    text = heads.to_text(records).splitlines()
    assert len({len(line) for line in text[:9]}) == 1 and text[9].startswith("class, by the shape")
    assert any(line.startswith("scale: ") for line in text[9:])
    figures.draw("scales", {"run": run})
    figures.draw("attention", {"run": run}, 8)
    with pytest.raises(UserError, match="has no BAM priors"):
        figures.draw("priors", {"run": run})


@pytest.mark.full
def test_an_encoding_of_ones_own_has_options_and_a_place(fit, tmp_path, monkeypatch):
    (tmp_path / "cauchy_place.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run = fit("cauchy_place:Own:width=8,window=6/rope:window=4")
    _, _, decoder = checkpoint.restore_model(run)
    first, second, *_ = decoder.blocks()
    assert first.attention.mask.window == 6 and np.abs(np.asarray(first.attention.encoding.width[...]) - 8).max() < 0.1
    assert isinstance(second.attention.encoding, RoPE) and second.attention.mask.window == 4
    _, tree = transformer.split(decoder)
    assert jax.tree.leaves(tree["params"]["layers"]["1"]["attention"])[0].shape[0] == 2
    monkeypatch.delitem(sys.modules, "cauchy_place")
    with pytest.raises(UserError, match="'cauchy_place:Own' is code.*--allow=cauchy_place"):
        checkpoint.restore_model(run)
