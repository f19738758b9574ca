"""Heads left out, against models whose values are zero there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import heads as heads_command
from bam_jax.analysis import ablation
from bam_jax.config import Config, ModelConfig
from bam_jax.models import transformer

LAYERS, HEADS, WIDTH = 4, 2, 8


@pytest.mark.parametrize("encoding", ["alibi", pytest.param("bam/bam/rope:window=8/bam", marks=pytest.mark.full)])
def test_a_head_left_out_is_one_whose_values_are_zero(encoding):
    config = Config(encoding=encoding, model=ModelConfig(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=16))
    decoder = transformer.build(config, vocab=11, rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 9), 0, 11)
    whole = decoder(tokens)[0]
    places, width = [*decoder.order()], WIDTH // HEADS
    for left_out in ([(0, 1)], [(2, 0)], [(3, 1)], [(layer, 0) for layer in range(LAYERS)]):
        wanted = nnx.clone(decoder)
        for layer, head in left_out:
            place, at = places[layer]
            value = wanted.stacks()[wanted.stack_of[place]].attention.value.kernel
            value[...] = value[...].at[at, :, head * width : (head + 1) * width].set(0)
        with ablation.without(decoder, left_out):
            found = decoder(tokens)[0]
        np.testing.assert_allclose(found, wanted(tokens)[0], atol=1e-6)
        assert jnp.abs(found - whole).max() > 1e-4
    with pytest.raises(ZeroDivisionError), ablation.without(decoder, [(1, 0)]):
        _ = 1 / 0
    np.testing.assert_array_equal(decoder(tokens)[0], whole)  # also after an error


@pytest.mark.full
def test_the_model_in_the_box_loses_most_without_its_near_heads(capsys):
    records = ablation.measure("quickstart", [64, 16], tokens=1024, progress=False)
    assert [(record["layer"], record["length"]) for record in records[:2]] == [(0, 16), (0, 64)]
    worth = {(record["layer"], record["head"], record["length"]): record["worth"] for record in records}
    assert len(worth) == len(records) == (2 + 1) * 4 * 2
    assert min(worth[None, head, 64] for head in (1, 2)) > 2 * worth[None, 0, 64] > 0
    assert len({record["loss"] for record in records if record["length"] == 64}) == 1
    heads_command.main(["--run=quickstart", "--ablate=16,64", "--tokens=1024", "--no-progress"])
    head, *rows, explained, _ = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "layer, head 16 tokens 64 tokens" and explained.startswith("nats a token")
    assert rows[0] == f"0, 0 {worth[0, 0, 16]:+.4f} {worth[0, 0, 64]:+.4f}"
    assert rows[-2].startswith("every, 3 +")
    assert rows[-1] == f"whole model {records[0]['loss']:.4f} {records[1]['loss']:.4f}"
