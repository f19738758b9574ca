"""The command measures what runs here, says why the rest does not, and writes both down."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bam_jax.attention import attention
from bam_jax.system.errors import UserError
from benchmarks import attention_speed, contenders
from benchmarks.attention_shapes import BIASES, AttentionShape
from benchmarks.contenders import PASSES, Operands
from tests.marks import longest

TINY = ["--heads=2", "--width=8", "--repetitions=1"]


@pytest.mark.full
def test_the_table_and_the_records(tmp_path, capsys):
    file = tmp_path / "speed.json"
    options = [*TINY, "--lengths=24", "--decode=40", f"--out={file}"]
    attention_speed.main(options)
    found = json.loads(file.read_text())
    assert found["command"].endswith(" ".join(["attention_speed", *options]))
    assert found["machine"]["platform"] == jax.default_backend()
    assert found["machine"]["versions"]["jax"] == jax.__version__
    records = found["records"]
    kinds = [(x["queries"], x["length"], x["pass"]) for x in records]
    assert list(dict.fromkeys(kinds)) == [(24, 24, PASSES[0]), (24, 24, PASSES[1]), (1, 40, PASSES[0])]
    names = {x["contender"] for x in records}
    ours = {f"ours chunked, {way}" for way in ("exact", "exact, cache", "off")}
    assert names >= {*ours, "dense", "jax.nn", "jax.nn + bias", "FlexAttention"} and len(kinds) == 3 * len(names)
    for record in records:
        if record["contender"].endswith("cache") and record["queries"] > 1:
            assert record["reason"] == "a step of decoding has one query"
        elif record["contender"].startswith(("ours", "dense", "jax.nn")):
            assert record["reason"] is None and record["seconds"] > 0 and record["ratio"] > 0
            assert record["temporary_bytes"] >= 0
        elif record["reason"] is not None:
            assert "seconds" not in record
    assert {x["reason"] for x in records if x["contender"] == "FlexAttention"} == {"it needs torch and a GPU"}
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(records)


def test_what_takes_too_much_memory_says_so(capsys):
    options = ["--lengths=2048", "--decode=", "--only=ours,dense", "--passes=forward", "--memory=0.03"]
    attention_speed.main([*TINY, *options])
    by_name = {line.split("forward")[1][11:35].strip(): line for line in capsys.readouterr().out.splitlines()[2:]}
    assert by_name["dense"].endswith("GiB of temporaries, more than --memory=0.03")
    assert "GiB" not in by_name["ours chunked, exact"]


def test_a_step_of_decoding_gives_what_attention_gives():
    shape = AttentionShape(12, 1, heads=2, width=8, bias="cable")
    operands = Operands.draw(shape)
    expected = attention(operands.q, operands.k, operands.v, operands.scoring(operands.learned), backend="reference")
    for name in ("ours chunked, exact, cache", "dense, cache"):
        run = contenders.preparers(["exact"])[name](shape, PASSES[0])
        for _ in range(3):  # each writes the last token again
            np.testing.assert_allclose(run.call(), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "queries"),
    [("ggd", 12), ("ggd", 1)] + [longest(x, n) for x in BIASES if x != "ggd" for n in (12, 1)],
)
def test_contenders_compute_the_same(name, queries):
    operands = Operands.draw(AttentionShape(12, queries, heads=2, width=8, bias=name))
    scoring = operands.scoring(operands.learned)
    q, k, v = operands.q, operands.k, operands.v
    expected = attention(q, k, v, scoring, backend="reference")
    library = contenders._library(jax.nn.dot_product_attention, True)
    for attend in (contenders._ours("chunked", "exact"), contenders.dense, library):
        np.testing.assert_allclose(attend(q, k, v, scoring), expected, atol=2e-6)
    plain = contenders._library(jax.nn.dot_product_attention, False)(q, k, v, scoring)
    assert (jnp.abs(plain - expected).max() > 1e-3) == (name != "nope")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--bias=ggf", "no bias 'ggf' here: did you mean 'ggd'"),
        ("--slope=0.1", "--slope=0.1 is ALiBi's"),
        ("--lengths=1k", "--lengths=1k must be numbers of tokens"),
        ("--heads=0", "--heads=0 must be above 0"),
        ("--skip=2", "--skip=2: "),
        ("--passes=back", "no pass 'back'"),
        ("--only=densely", "no contender starts with 'densely'"),
        ("--out=/nowhere/speed.json", "there is no folder /nowhere"),
    ],
)
def test_bad_options_are_said_in_one_line(option, message):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        attention_speed.main([option])
