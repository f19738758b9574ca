"""What is measured of a model's heads, against the definitions."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax import heads as heads_command
from bam_jax import theory
from bam_jax.analysis import ablation, heads, retrieval_heads
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

T = 24
FILES = heads.FILE, retrieval_heads.FILE, ablation.FILE
FIELDS = {"context": T, "model": {"layers": 2, "width": 16, "heads": 4, "hidden": 16}}


def described(encoding="bam", ssmax="on", **options):
    return configs.from_dict({"encoding": encoding, "ssmax": ssmax, "encoding_options": options, **FIELDS})


def first_layer(config):
    """The first layer's attention, and its queries, keys and scoring of a text."""
    config = configs.override(config, {"model.layers": 1})
    decoder = nnx.jit(lambda: transformer.build(config, vocab=24, rngs=nnx.Rngs(0)))()
    return decoder.blocks()[0].attention, *heads.score_text(decoder, np.arange(T))[0]


@pytest.mark.parametrize(
    ("encoding", "ssmax"),
    [
        ("bam", "inside"),
        ("cable", "inside"),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (("bam", "outside"), ("rope", "inside"), ("dape_kerple", "off"))
        ),
    ],
)
def test_the_last_prior_is_the_last_row_of_the_texts_prior(encoding, ssmax):
    options = {"init": "spread"} if encoding == "bam" else {"window": 7} if encoding == "rope" else {}
    attention, q, k, scoring = first_layer(described(encoding, ssmax, **options))
    assert (scoring.temperature is None) == (ssmax != "inside")
    for keys in (1, 5, T):
        _, position, seen = theory.logits(q, k, scoring)
        row = np.asarray(jax.nn.softmax(position, axis=-1, where=seen))[0, :, keys - 1, :keys]
        found = heads.last_prior(attention, q, k, scoring, keys)
        np.testing.assert_allclose(found, row[..., ::-1], atol=1e-6)
    far = heads.last_prior(attention, q, k, scoring, 10 * T)
    assert far is None if encoding in ("cable", "dape_kerple") else far.shape[1] == 10 * T


def test_an_encoders_last_prior_is_that_of_its_last_token():
    config = configs.override(described("cable", "off"), {"model.causal": False})
    attention, q, k, scoring = first_layer(config)
    assert heads.last_prior(attention, q, k, scoring, 5) is None  # the fifth token sees the others, too
    found = heads.last_prior(attention, q, k, scoring, T)
    np.testing.assert_allclose(found, theory.prior(scoring)[0, :, -1, ::-1], atol=1e-6)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)


def test_keys_beyond_the_text_are_refused_where_the_prior_depends_on_it(run, monkeypatch):
    monkeypatch.setattr(heads, "last_prior", lambda *layer: None)
    assert heads.measure(run, tokens=8)[0]["reach"] == {}
    with pytest.raises(UserError, match=r"--keys=9: the prior of 'bam' depends on the text, .* give --tokens=9"):
        heads.measure(run, keys=[9], tokens=8)


def test_couplings_in_blocks_are_those_of_the_whole(monkeypatch):
    """A record has their means over windows of the text."""
    attention, q, k, scoring = first_layer(described("cable", "inside"))
    whole = theory.coupling(*heads.logits(q, k, scoring))
    monkeypatch.setattr(heads, "BLOCK", 5 * 4 * T)  # five rows, and four at the end
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), heads.coupling(q, k, scoring), whole)
    monkeypatch.setattr(heads, "WINDOWS", 3)
    record = heads._layer(attention, q, k, scoring, keys=[4])[0]
    assert record["positions"] == [8, 16, 24]
    np.testing.assert_allclose(record["kl_prior"], whole.kl_prior[0].reshape(3, 8).mean(1), atol=1e-5)


@pytest.fixture
def run(runs):
    return runs["bam"]


def test_the_command_writes_a_record_and_prints_a_line_for_each_head(run, command):
    status, said, _ = command(heads_command.main, f"--run={run}", "--keys=8,6000", "--tokens=40")
    assert not status
    records = [json.loads(line, parse_constant=pytest.fail) for line in (run / heads.FILE).read_text().splitlines()]
    assert [(r["layer"], r["head"]) for r in records] == [(layer, head) for layer in range(2) for head in range(4)]
    assert [r["class"] for r in records[:4]] == ["retrieval", "retrieval", "long-tail", "local"]
    for record in records:
        shape = record["shape"]
        for keys in (8, 6000):
            weights = np.exp(-np.log(keys) * (np.arange(keys) + 1e-5) ** shape)
            mass = np.cumsum(weights / weights.sum())
            expected = [int(np.argmax(mass >= share)) for share in heads.SHARES]
            np.testing.assert_allclose(record["reach"][str(keys)], expected, atol=1)
        assert record["positions"][-1] == 40 and len(record["kl_prior"]) == len(record["positions"])
        assert record["scale"] == 1 and record["tokens"] == 40
    rows, legend = said.split("class, by the shape", 1)
    assert rows.count("retrieval") == 4 and "99% of 6,000 keys" in rows
    assert "the s of Scalable Softmax" in legend and "docs/theory.md" in legend and "KL ‖ prior" in legend


MISTAKES = [
    ("--keys=0", "--keys=0"),
    ("--tokens=99999999", "not 99999999; ask for a shorter text"),
    ("--prompts=2", "--prompts=2 are those of --passkey; give --passkey=LENGTHS as well"),
    ("--passkey=64 --prompts=0", "--prompts=0 must be 1 or more"),
    ("--passkey=5", "length 5 is shorter than the passkey prompt; give 8 or more"),
    ("--passkey=64 --keys=64", "give one of the two"),
    ("--ablate=64 --passkey=64", "give one of the two"),
    ("--ablate=64 --keys=64", "--ablate has lengths of its own"),
    ("--ablate=64 --tokens=63", "--tokens=63 must be as many as the longest length has, 64, or more"),
    ("--ablate=64,0", "--ablate=0,64 counts tokens: give 1 or more"),
    ("--config.mesh.tensor=2", "--config.mesh.tensor=2: an analysis runs on one device; leave it out"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(run, refused, arguments, message):
    for name in FILES:
        (run / name).unlink(missing_ok=True)
    assert message in refused(heads_command.main, f"--run={run}", *arguments.split())
    assert not {*FILES} & {path.name for path in run.iterdir()}


@pytest.mark.parametrize(("module", "option"), [(retrieval_heads, "--passkey=64"), (ablation, "--ablate=64")])
def test_other_measurements_have_files_of_their_own_and_refuse_encoders(
    module, option, tmp_path, monkeypatch, encoder_run, refused
):
    said = refused(heads_command.main, f"--run={encoder_run}", option)
    assert "is an encoder, which" in said and "give the run of a decoder" in said
    kept = [{"layer": 0, "head": 0, "length": 64, "keys": 64, "tokens": 64, "prompts": 5}]
    kept[0] |= {"weight": 0.5, "lead": 4.1, "loss": 1.3, "worth": 0.5}
    monkeypatch.setattr(module, "measure", lambda *_, **__: kept)
    heads_command.main([f"--run={tmp_path}", option])
    assert [json.loads(line) for line in (tmp_path / module.FILE).read_text().splitlines()] == kept
