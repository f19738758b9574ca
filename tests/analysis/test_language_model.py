"""A loaded model against the decoder itself, its text token by token, and the commands of the model in the box."""

import dataclasses
import itertools
import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import example, given
from hypothesis import strategies as st

from bam_jax import config as configs
from bam_jax import generate, load
from bam_jax.analysis import language_model
from bam_jax.analysis.language_model import until
from bam_jax.data import tokenizers
from bam_jax.evals.passkey import FORCED, toy
from bam_jax.models import transformer
from bam_jax.models.counts import parameter_count
from bam_jax.models.sampling import GREEDY, Sampling
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, run_folder, weights

KEY = "<KEY>48213<END> and then we spoke of other things <KEY>"


@pytest.fixture(scope="module")
def model():
    return load("quickstart", overrides=None)


def test_the_box_holds_what_its_page_says(model):
    folder = bundled.FOLDER / "quickstart"
    assert f"{round(parameter_count(model.decoder), -3):,} parameters" in (folder / "README.md").read_text()
    assert model.step == model.config.steps
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2**19


@pytest.mark.full
def test_it_finds_keys_far_beyond_its_context(model, rng):
    """Prompts at 16 times the context, made here: none is among those that were measured."""
    text = model.tokenizer.encode("what stands between a key and its question is text of no use to it. " * 20)
    prompts = toy(text, model.tokenizer, seed=77)
    for depth in (0.0, 0.5, 1.0):
        tokens, answer = prompts(16 * 64, depth, 0)
        prompt = model.tokenizer.decode(tokens)
        assert model.generate(prompt, FORCED + 1, temperature=0) == model.tokenizer.decode(answer)


def test_logits_are_those_of_the_decoder(model, monkeypatch):
    ids = model.ids(KEY)
    whole = model.decoder(jnp.asarray(ids)[None])[0][0]
    np.testing.assert_allclose(model.logits(KEY), whole[:, : model.tokenizer.size], atol=1e-3)
    monkeypatch.setattr(language_model, "CHUNK", 20)  # in pieces
    np.testing.assert_allclose(model.logits(KEY), whole[:, : model.tokenizer.size], atol=1e-3)


def test_attention_factors_into_content_and_prior(model):
    for layer in model.attention(KEY):
        joint = layer.content * layer.position / layer.z[..., None]
        np.testing.assert_allclose(layer.joint, joint, atol=1e-5)
        np.testing.assert_allclose(layer.joint.sum(-1), 1, atol=1e-5)
        assert not np.triu(np.asarray(layer.joint[0]), 1).any()
    with pytest.raises(UserError, match="the attention of 20000 tokens takes"):
        model.attention("x" * 20_000)


def test_text_comes_in_pieces_and_ends_before_a_stop(model):
    tokens = list(model.tokens(KEY, 8, sampling=GREEDY))
    text = "".join(model.text(tokens))
    assert text.startswith("48213")
    assert "".join(model.text(tokens, ["13", "x"])) == "482" == "".join(model.text(tokens, "13"))
    counted = itertools.count()
    written = model.text((token for token, _ in zip(tokens, counted, strict=False)), ["8"])
    assert "".join(written) == "4"
    assert next(counted) <= 3  # what stands behind the stop is not asked for
    one, same, other = (model.generate("the module", 12, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_letters_of_several_tokens_come_whole(model):
    tokenizer = tokenizers.ByteTokenizer()
    bytes_model = dataclasses.replace(model, tokenizer=tokenizer)
    text = "naïve — 漢字 🙂 end"
    pieces = list(bytes_model.text(iter([*tokenizer.encode(text).tolist(), tokenizer.eos, 65])))
    assert "".join(pieces) == text and "漢" in pieces and "🙂" in pieces
    torn = [*b"ab", 0xE6]
    assert "".join(bytes_model.text(torn)) == "ab\ufffd"


TEXTS = st.text("abc ", max_size=12)


@given(TEXTS, st.lists(st.text("abc ", min_size=1, max_size=5), max_size=3), st.lists(st.integers(0, 12), max_size=6))
@example("xabcd x", ["abcd", "c"], [6]).via("a stop within another one")
@example("xabcd x", ["abcd", "c"], [4])
@example("xabc", ["abcd", "c"], [2])
def test_where_a_text_ends_does_not_depend_on_its_pieces(text, stop, places):
    cut = min((text.index(word) for word in stop if word in text), default=len(text))
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    found = list(until((text[first:last] for first, last in itertools.pairwise(edges)), stop))
    assert "".join(found) == text[:cut] and "" not in found


def test_the_space_before_the_first_word_is_written(model):
    pytest.importorskip("mistral_common")
    mistral = dataclasses.replace(model, tokenizer=tokenizers.tokenizer("mistral"))
    prompt, whole = (mistral.tokenizer.encode(text).tolist() for text in ("Once upon", "Once upon a time"))
    assert whole[: len(prompt)] == prompt
    assert "".join(mistral.text(whole[len(prompt) :])) == " a time"


def test_the_command_writes_to_stdout_and_its_speed_to_stderr(command, tmp_path):
    status, out, err = command(generate.main, "--run=quickstart", f"--prompt={KEY}", "--tokens=5", "--temperature=0")
    assert not status and out == "48213\n"
    assert err.startswith("5 tokens after 43 of prompt") and "a second" in err and err.count("\n") == 1
    (tmp_path / "text").write_text(KEY)
    asked = "--run=quickstart", f"--file={tmp_path / 'text'}", "--stop=2", "--temperature=0"
    assert command(generate.main, *asked)[1] == "48\n"


@pytest.mark.parametrize(
    "argv, says",
    [
        ([], "give --prompt=TEXT or --file=PATH"),
        (["--prompt="], "the text is empty"),
        (["--prompt=a", "--temperature=-1"], "temperature=-1.0 must be 0"),
        (["--prompt=a", "--stop="], "stop has an empty text"),
        (
            ["--prompt=a", "--tokens=2000000000"],
            "a prompt of 1 tokens and tokens=2,000,000,000 to write need 1,907 GiB",
        ),
        (["--prompt=a", "--config.model.width=32"], "does not fit with --config.model.width=32"),
        (["--file=nowhere"], "--file=nowhere is not a file; give the path of a text, or -"),
        (["--prompt=a", "--run="], "a run without a name is none"),
    ],
)
def test_a_mistake_is_one_line(refused, argv, says):
    assert says in refused(generate.main, "--run=quickstart", *argv)  # a later --run goes before


@pytest.fixture
def small(tmp_path):
    """Writes the folder of a model as it begins."""

    def write(step=9, **changes):
        sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, **changes.pop("model", {})}
        config = configs.from_dict({"encoding": "nope", "context": 16, "steps": 9, "model": sizes} | changes)
        tokenizer = tokenizers.tokenizer(config.data.tokenizer)
        model = nnx.jit(lambda: transformer.build(config, vocab=tokenizer.padded, rngs=nnx.Rngs(0)))()
        weights.write(tmp_path / "run", config, tokenizer, transformer.split(model)[1], step)
        return str(tmp_path / "run")

    return write


@pytest.mark.parametrize(("encoding", "size"), [("nope", 238), ("path", 373)])
def test_room_for_the_cache_counts_what_an_encoding_adds_to_keys(encoding, size, refused, small):
    asked = f"--run={small(encoding=encoding)}", "--prompt=a", "--tokens=2000000000"
    assert f"need {size} GiB for keys and values" in refused(generate.main, *asked)


def test_a_prompt_longer_than_a_table_is_one_line(small, command, refused):
    ask = generate.main, f"--run={small(encoding='learned')}"
    said = "a prompt of 8 tokens and tokens=20 to write are more than the learned position table holds (16)"
    assert f"{said}; give tokens=9 or fewer" in refused(*ask, "--prompt=abcdefgh", "--tokens=20")
    assert not command(*ask, "--prompt=abcdefgh", "--tokens=9")[0]
    assert "give a prompt of 16 tokens or fewer" in refused(*ask, f"--prompt={'a' * 17}", "--tokens=1")


@pytest.mark.parametrize("asked", [{"tokens": "5"}, {"seed": -1}, {"top_p": None}])
def test_values_of_another_type_are_one_line(model, asked):
    with pytest.raises(UserError, match="{}={!r} must be a".format(*next(iter(asked.items())))):
        model.generate("a", **asked)


def test_a_step_that_is_not_there_is_refused(small, command):
    """And a model that is not trained to its end is announced."""
    run = small(step=4)
    assert load(run, step=4).step == 4
    for step in (3, -1):
        with pytest.raises(UserError, match=f"has no checkpoint of step {step}; it has those of 4$"):
            load(run, step=step)
    status, _, err = command(generate.main, f"--run={run}", "--prompt=a", "--tokens=1")
    assert not status and "was stopped: this is its checkpoint of step 4 of 9" in err


def test_a_run_that_has_no_checkpoint_yet_says_when(tmp_path, refused):
    config, asked = configs.from_dict({}), (generate.main, f"--run={tmp_path / 'run'}", "--prompt=a")
    with run_folder.claim(tmp_path / "run", config, tokenizers.tokenizer(config.data.tokenizer)):
        said = "is being trained and has no checkpoint yet; it gets one every config.checkpoint_every steps"
        assert said in refused(*asked)
    assert "has no checkpoint, nor model.safetensors; train it" in refused(*asked)


def test_an_encoder_does_not_write(encoder_run, refused):
    assert load(encoder_run).logits("text").shape == (4, 257)
    said = refused(generate.main, f"--run={encoder_run}", "--prompt=a")
    assert "an encoder (config.model.causal=False) does not write" in said


def test_only_the_tokenizers_tokens_are_written(small):
    """A model's vocabulary may have entries that only pad it."""
    model = load(small(data={"tokenizer": "byte"}, model={"vocab": 600}))
    drawn = list(model.tokens("a", 30, sampling=Sampling(temperature=50.0)))
    assert max(drawn) < 257 and len({*drawn}) > 20, "each token has a draw of its own"


@pytest.mark.full
def test_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "models.md"
    first, second = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict = {}
    exec(first, names)
    assert names["text"] and names["logits"].shape == (12, 73)
    z = names["layers"][0].z[2][:, None]
    np.testing.assert_allclose(names["weights"], names["prior"] * names["content"] / z, atol=1e-5)
    exec(second, {})


def test_characters_that_the_tokenizer_lacks_are_named(model, command):
    status, _, err = command(generate.main, "--run=quickstart", "--prompt=Ça 5", "--tokens=1")
    assert not status and "lacks 'ç'" in err
    with pytest.warns(UserWarning, match="lacks 'é': they are read as one unknown character") as said:
        model.logits("to bÉ")
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="lacks"):
        model.generate("É", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.logits("to be")
