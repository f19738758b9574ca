"""Passkey retrieval, measured on models that are known to find the key, or not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.attention import EMPTY
from bam_jax.config import Config, DataConfig, ModelConfig
from bam_jax.data.tokenizers import ByteTokenizer, CharTokenizer
from bam_jax.evals import passkey
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.plan import SampleRange, Trained
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

CHAR = CharTokenizer()
STREAM = CHAR.encode("a tale of some length, told again and again. " * 20)


class Stub(nnx.Module):
    """What an evaluation needs of a model; `wrong` digits of each answer are one too high."""

    def __init__(self, wrong=()):
        self.config = ModelConfig()
        self.wrong = tuple(wrong)
        self.head = nnx.Param(jnp.zeros(3))

    def check_length(self, length):
        pass

    def __call__(self, tokens, *, position, read):
        """Copies what stands behind the first KEY, of the tokens that are there."""
        shown = jnp.where(position < EMPTY, tokens, -1)
        start = jnp.argmax(shown == CHAR.key, axis=1)[:, None]
        copied = jnp.take_along_axis(shown, start + 1 + jnp.arange(read), axis=1)
        copied = copied + jnp.isin(jnp.arange(read), jnp.array(self.wrong, int))
        return jax.nn.one_hot(copied, CHAR.size), None


def measure(decoder, cells, *, seed=0, memory=2.0**30):
    prompts = passkey.toy(STREAM, CHAR, seed)
    return dict(passkey.measure(decoder, cells, prompts, memory=memory))


CELLS = [SampleRange(length, depth, 0, 3) for length in (40, 16) for depth in (0.0, 0.5, 1.0)]


def test_who_copies_the_key_finds_it_at_every_depth():
    found = measure(Stub(), CELLS)
    assert list(found) == sorted(CELLS)
    assert {result["value"] for result in found.values()} == {1.0}
    assert {result["digits"] for result in found.values()} == {1.0}
    assert [result["tokens"] for result in found.values()] == [16] * 3 + [40] * 3


def test_a_key_counts_only_whole_and_digits_count_each():
    found = measure(Stub(wrong=[1, 4]), [SampleRange(40, 0.5, 0, 5)])
    (result,) = found.values()
    assert result["value"] == 0.0 and result["digits"] == pytest.approx(0.6)


def test_little_memory_gives_the_same_in_more_batches(monkeypatch):
    calls = []
    inner = passkey.correct
    monkeypatch.setattr(passkey, "correct", lambda *a, **k: calls.append(len(a[1])) or inner(*a, **k))
    assert {r["value"] for r in measure(Stub(), CELLS).values()} == {1.0}
    assert calls == [9, 9]
    calls.clear()
    assert {r["value"] for r in measure(Stub(), CELLS, memory=4 * 44 * 896 * 4).values()} == {1.0}
    assert calls == [4, 4, 1] * 2


def test_prompts_differ_by_every_argument_and_are_the_same_again():
    def key(seed, *where):
        tokens, answer = passkey.toy(STREAM, CHAR, seed)(*where)
        return tokens.tobytes(), answer.tobytes()

    places = [(0, 32, 0.5, 0), (1, 32, 0.5, 0), (0, 33, 0.5, 0), (0, 32, 0.501, 0), (0, 32, 0.5, 1)]
    assert len({key(*place)[1] for place in places}) == 5
    text = {tokens[:8] for tokens, _ in (key(*place) for place in places)}
    assert len(text) == 5
    assert [key(*place) for place in places] == [key(*place) for place in places]


@pytest.mark.full
def test_padding_batching_and_reading_in_pieces_change_no_answer(monkeypatch):
    config = Config(encoding="sinusoidal", ssmax="on", model=ModelConfig(layers=1, width=32, heads=2, hidden=32))
    decoder = nnx.jit(lambda: transformer.build(config, vocab=CHAR.size, rngs=nnx.Rngs(0)))()
    best = nnx.jit(lambda decoder, tokens: jnp.argmax(decoder(tokens)[0], axis=-1)[:, -5:])
    forced = lambda samples: np.stack([np.concatenate([prompt, answer[:4]]) for prompt, answer in samples])
    samples = [passkey.toy(STREAM, CHAR, 0)(40, depth, 0) for depth in np.linspace(0, 1, 6)]
    # An untrained model finds no key: answers that are in part its own choice tell whether these are counted.
    mine = np.asarray(best(decoder, forced(samples)))
    half = lambda answer, own: np.where(np.arange(5) % 2, own, answer)
    samples = [(prompt, half(answer, own)) for (prompt, answer), own in zip(samples, mine, strict=True)]
    expected = np.asarray(best(decoder, forced(samples))) == np.stack([answer for _, answer in samples])
    assert expected.any() and not expected.all()
    np.testing.assert_array_equal(passkey.correct(decoder, samples, slots=64, rows=9), expected)
    monkeypatch.setattr(passkey, "CHUNK", 20)
    np.testing.assert_array_equal(np.concatenate(list(passkey._one_by_one(decoder, samples, 64))), expected)


def test_long_prompts_are_read_one_by_one_and_the_deepest_key_first(monkeypatch):
    monkeypatch.setattr(passkey, "CHUNK", 20)
    asked = []
    one_by_one = lambda decoder, samples, slots: (
        asked.append(len(p)) or np.full((1, 5), n < 2) for n, (p, _) in enumerate(samples)
    )
    monkeypatch.setattr(passkey, "_one_by_one", one_by_one)
    found = measure(Stub(), [SampleRange(length, depth, 0, 2) for length in (16, 40) for depth in (0.0, 0.5, 1.0)])
    places = [(16, 0.0), (16, 0.5), (16, 1.0), (40, 1.0), (40, 0.5), (40, 0.0)]
    assert [(cell.length, cell.depth) for cell in found] == places
    assert [result["value"] for result in found.values()] == [1, 1, 1, 1, 0, 0]
    assert asked == [40] * 6 and all(result["peak_bytes"] > 2**20 for result in found.values())


def test_what_the_papers_prompts_have_in_common_is_read_once(monkeypatch):
    read = []

    class TextReader:
        def __init__(self, decoder, length, *, chunk, read):
            pass

        def __call__(self, tokens):
            read.append(tokens)
            return jnp.zeros((5, 256))

    monkeypatch.setattr(passkey.generate, "TextReader", TextReader)
    monkeypatch.setattr(passkey, "CHUNK", 600)
    cells = [SampleRange(900, depth, 0, 1) for depth in (0.0, 0.5, 1.0)]
    list(passkey.measure(Stub(), cells, passkey.paper(ByteTokenizer(), 0), memory=1))
    common = [int((a != b).argmax()) for a, b in itertools.pairwise(read)]
    assert (
        common[0] > 400 > common[1] > 150
    )  # up to the key of the next prompt, after half of the text and after a line


def test_a_first_digit_that_is_given_stands_before_the_five_that_are_asked_for():
    config = Config(data=DataConfig(tokenizer="byte"))
    trained = Trained(Stub(), ByteTokenizer(), config, lambda: STREAM, 2.0**30)
    asked = {prompt: Passkey((700,), depths=2, prompt=prompt) for prompt in ("paper", "first_digit")}
    found = {prompt: each.plans(trained)[0].identity for prompt, each in asked.items()}
    assert found == {prompt: {"prompt": prompt, "seed": 0} for prompt in asked}
    record = {"eval": "passkey", "overrides": {}, **found["first_digit"]}
    assert asked["first_digit"].asks(record, config, {}) and not asked["paper"].asks(record, config, {})
    for given in (0, 1):
        tokens, answer = passkey.paper(ByteTokenizer(), 0, given=given)(700, 0.5, 0)
        text, five = bytes(tokens.tolist()).decode(), bytes(answer.tolist()).decode()
        first = text[len(text) - given :]
        assert 600 < len(text) <= 700 and len(five) == 5 and f"The pass key is {first}{five}. Remember it." in text
        assert text.endswith(f"What is the pass key? The pass key is {first}")


def test_shapes_are_shared_where_padding_is_cheaper_than_compiling():
    assert passkey.padding({64: 20, 4096: 20}, 90_000) == {4096: 4096, 64: 4096}
    assert passkey.padding({64: 20, 4096: 20}, 10**9) == {4096: 4096, 64: 64}


@pytest.mark.parametrize(("length", "message"), [(7, "shorter than the passkey prompt"), (61, "65 tokens are more")])
def test_lengths_that_cannot_be_are_refused_before_anything_is_measured(length, message):
    config = Config(encoding="learned", context=64, model=ModelConfig(width=16, heads=2, hidden=16))
    decoder = nnx.eval_shape(lambda: transformer.build(config, vocab=CHAR.size, rngs=nnx.Rngs(0)))
    cells = [SampleRange(n, 0.5, 0, 1) for n in (16, length)]
    with pytest.raises(UserError, match=message):
        next(passkey.measure(decoder, cells, passkey.toy(STREAM, CHAR, 0), memory=2**20))


def test_the_toy_prompt_needs_its_tokenizer():
    with pytest.raises(UserError, match="--prompt=paper"):
        passkey.toy(STREAM, ByteTokenizer(), 0)


def prompts_of(evaluation, config):
    """Prompts of an evaluation's plan, as those who are asked see them."""
    seen = []

    class Watched(Stub):
        def __call__(self, tokens, *, position, read):
            jax.debug.callback(lambda ids: seen.append(np.asarray(ids)), tokens)
            return super().__call__(tokens, position=position, read=read)

    trained = Trained(Watched(), CHAR, config, lambda: STREAM, 2.0**30)
    (plan,) = evaluation.plans(trained)
    list(plan.measure([SampleRange(*at, 0, n) for at, n in plan.wanted.items()]))
    jax.effects_barrier()
    return plan.identity["seed"], np.concatenate(seen).tobytes()


def test_methods_of_a_training_seed_are_asked_the_same_prompts_and_other_seeds_others():
    ask = lambda encoding, training, **options: prompts_of(
        Passkey((40,), depths=3, **options), Config(encoding=encoding, seed=training)
    )
    bam, alibi, other = ask("bam", 4), ask("alibi", 4), ask("bam", 5)
    assert bam == alibi and bam[0] == 4 and other[0] == 5 and other[1] != bam[1]
    assert ask("bam", 5, seed=4) == bam
