"""Perplexity of masked tokens against the definition, and by the command."""

import math

import numpy as np
import pytest
from flax import nnx

from bam_jax.config import Config, DataConfig, ModelConfig
from bam_jax.data import loader
from bam_jax.data.tokenizers import tokenizer
from bam_jax.evals import measuring
from bam_jax.evals.masked_perplexity import MaskedPerplexity
from bam_jax.evals.plan import SampleRange, Trained
from bam_jax.experiments import results
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

BYTE = tokenizer("byte")
TEXT = np.frombuffer(b"a tale of some length, told again and again. " * 20, np.uint8).astype(np.int32)


@pytest.fixture(scope="module")
def trained():
    sizes = ModelConfig(family="bert", causal=False, layers=1, width=32, heads=2, hidden=32)
    config = Config(encoding="cable", context=24, model=sizes, data=DataConfig(tokenizer="byte", task="masked"))
    decoder = nnx.jit(lambda: transformer.build(config, vocab=BYTE.size, rngs=nnx.Rngs(0)))()
    return Trained(decoder, BYTE, config, lambda: TEXT, memory=2**20)


def measured(trained, cells):
    return dict(MaskedPerplexity.measure(trained, cells, TEXT))


def direct(trained, length, count):
    """The mean of -log softmax(logits)[token] over the masked tokens, of sequences that are a row each."""
    texts = TEXT[: length * count].reshape(count, length)
    rows = loader.mask_texts(texts, 0, trained.config.data, BYTE)
    np.testing.assert_array_equal(rows["targets"], texts)
    logits = np.asarray(
        nnx.jit(lambda decoder, tokens: decoder(tokens)[0])(trained.decoder, rows["tokens"]), np.float64
    )
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, texts[..., None], 2)[..., 0]
    return (nll * rows["weights"]).sum() / rows["weights"].sum(), int(rows["weights"].sum())


def test_value_is_exp_of_the_mean_loss_of_masked_tokens(trained):
    cells = [SampleRange(30, None, 0, 7), SampleRange(9, None, 0, 11)]
    found = measured(trained, cells)
    assert [cell.length for cell in found] == [9, 30]
    for cell, result in found.items():
        loss, masked = direct(trained, cell.length, cell.n)
        assert result["value"] == pytest.approx(math.exp(loss), rel=1e-4) and result["masked"] == masked


def test_what_is_masked_does_not_depend_on_the_cell(trained):
    texts = TEXT[:300].reshape(10, 30)
    whole, late = (loader.mask_texts(texts[n:], n, trained.config.data, BYTE) for n in (0, 4))
    for name, values in late.items():
        np.testing.assert_array_equal(values, whole[name][4:])
    assert (whole["tokens"] == BYTE.mask).any()


def test_two_records_are_together_what_one_is(trained):
    parts = [SampleRange(30, None, 0, 1), SampleRange(30, None, 1, 7)]
    cells = [{"eval": "masked_perplexity", "n": each.n, **result} for each, result in measured(trained, parts).items()]
    ((_, whole),) = measured(trained, [SampleRange(30, None, 0, 7)]).items()
    assert cells[0]["masked"] * cells[1]["n"] != cells[1]["masked"] * cells[0]["n"]
    assert results.mean(cells) == pytest.approx(whole["value"], rel=1e-5)
    asked = MaskedPerplexity((30,))
    (line,) = measuring.summarise("run", asked, [{"length": 30, **cell} for cell in cells])
    assert line.endswith(f"at 30 tokens: {whole['value']:.3f} (7 sequences)")


def test_samples_without_a_masked_token_are_refused(trained):
    with pytest.raises(UserError, match="none of the 1 tokens in 1 sequences of length 1 is masked"):
        next(MaskedPerplexity.measure(trained, [SampleRange(1, None, 0, 1)], TEXT))


def test_an_encoders_run_is_evaluated(encoder_run, tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT.astype(np.uint8).tobytes() * 3)
    asked = MaskedPerplexity((16,), tokens=64, overrides={"data.source": str(tmp_path / "text.txt")})
    (record,) = measuring.evaluate(encoder_run, asked, progress=False)
    assert (record["eval"], record["n"], record["unit"]) == ("masked_perplexity", 4, "perplexity per masked token")
    assert 1 < record["value"] < 1000
    (encoder_run / "results.jsonl").unlink()
