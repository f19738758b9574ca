import json

import numpy as np
import pytest

from bam_jax import config as configs
from bam_jax import evaluate
from bam_jax.analysis import figures, heads
from bam_jax.convert import runs as converted
from bam_jax.convert.bam import BAM
from bam_jax.models import head_parameters
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint, loop


@pytest.fixture
def make(tmp_path, write_tiny):
    """The run of a pattern after two steps."""

    def fit(encoding, **more):
        model = {"layers": 4, "width": 16, "heads": 2, "hidden": 16, **more}
        write_tiny(tmp_path, encoding=encoding, steps=2, batch=2, context=16, model=model)
        loop.fit(configs.load(tmp_path / "tiny.py"), tmp_path / "run", progress=False)
        return tmp_path / "run"

    return fit


def losses(run, *overrides):
    (run / "results.jsonl").unlink(missing_ok=True)
    evaluate.main([f"--run={run}", "--eval=perplexity", "--lengths=16,32", *overrides])
    return [json.loads(line)["value"] for line in (run / "results.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_places_that_differ_in_numbers_may_be_others_at_evaluation(make, tmp_path):
    run = make("rope:window=4/nope:log_temperature=0.5", qk_norm=True, gate=True, sinks=True)
    changed = lambda pattern: losses(run, f"--config.encoding={pattern}")
    own, same = losses(run), changed("rope:window=4/nope:log_temperature=0.5,log_temperature_start=16")
    narrow, calm = changed("rope:window=2/nope:log_temperature=0.5"), changed("rope:window=4/nope")
    assert own == same and own != narrow
    assert own[0] == calm[0] and own[1] != calm[1]  # the temperature begins at the training context
    with pytest.raises(UserError, match="layers"):
        changed("bam:window=2/nope")
    with pytest.raises(UserError, match="no place for .* of the encoding 'rope:window=4/nope"):
        converted.export(BAM, run, tmp_path / "theirs")


@pytest.mark.full
def test_heads_of_layers_with_and_without_a_prior(make):
    run = make("rope:window=4/bam:init=spread,ssmax=on")
    records = heads.measure(run, keys=[16], progress=False)
    assert [record["encoding"] for record in records] == ["rope"] * 2 + ["bam"] * 2 + ["rope"] * 2 + ["bam"] * 2
    assert ["shape" in record for record in records] == ["scale" in record for record in records]
    found = head_parameters.head_parameters(checkpoint.restore_model(run)[2])
    assert found.keys() == {"shape", "log_scale", "loc", "ssmax"} and {x.shape for x in found.values()} == {(2, 2)}
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
