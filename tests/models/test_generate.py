import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax.attention import EMPTY, Tiling
from bam_jax.attention.cpu import repeated
from bam_jax.config import Config, ModelConfig
from bam_jax.models import generate, transformer
from bam_jax.system.errors import UserError
from tests.marks import longest

VOCAB, T = 11, 13


def build(encoding, **options):
    sizes = ModelConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=16, scan=False, dtype="float32")
    config = Config(encoding=encoding, ssmax="on", encoding_options=options, context=16, model=sizes)
    made = transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    if encoding == "bam":
        made.layers.attention.encoding.shape[...] = jnp.array([[-1.0, 0, 0.5, 1], [0.3, -0.3, 1.5, 0]])
    return made


@pytest.fixture
def tokens(rng):
    return jnp.asarray(rng.integers(0, VOCAB, (2, T)), jnp.int32)


@pytest.mark.parametrize("encoding", ["bam", "cable"])
def test_every_piece_gives_its_last_rows(encoding, tokens):
    made = build(encoding)
    whole = made(tokens)[0]
    logits = [np.asarray(x) for x, _ in generate.read_in_chunks(made, tokens, chunk=5, read=5)]
    np.testing.assert_allclose(np.concatenate(logits, 1)[:, -T:], whole, atol=1e-4)
    logits, _ = generate.prefill(made, tokens, chunk=4, read=T - 1)  # more than a chunk
    np.testing.assert_allclose(logits, whole[:, 1:], atol=1e-4)


def test_greedy_takes_the_most_likely_token_again_and_again(tokens):
    made, steps = build("bam"), 4
    text = jnp.pad(tokens, ((0, 0), (0, steps)))  # what stands behind a row does not change it
    for n in range(T, T + steps):
        text = text.at[:, n].set(made(text)[0][:, n - 1].argmax(-1))
    written = generate.greedy(made, tokens, steps, chunk=3)
    np.testing.assert_array_equal(written, text[:, T:])


def test_a_step_reads_the_weights_of_each_layer_and_not_those_of_all(tokens):
    """Of stacked weights XLA's CPU backend copies a layer's before each product, which is most of a step's time."""
    made = build("bam")
    graph, state = nnx.split(made)
    _, caches = generate.prefill(made, tokens)
    step = generate._write.lower(
        *(graph, state, made.layer_states(), tokens[:, 0], jnp.full((1, 1), T), caches, jax.random.key(0)),
        *(generate.GREEDY, None),
    )
    program = step.compile().as_text()
    assert "f32[16,16]" in program and "f32[2,16,16]" not in program
    assert "f32[16,2,16]" not in program  # nor are the maps of an MLP stacked, as for many tokens


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["cable", *map(longest, ("bam", "rope", "sinusoidal"))])
def test_texts_of_different_lengths_are_written_on_as_if_alone(encoding, tokens):
    made, lengths = build(encoding), np.array([T, 4])
    together = generate.greedy(made, tokens, 5, lengths=lengths, chunk=3)
    for row, length in enumerate(lengths):
        alone = generate.greedy(made, tokens[row : row + 1, T - length :], 5, chunk=3)
        np.testing.assert_array_equal(together[row : row + 1], alone)
    logits, _ = generate.prefill(made, tokens, lengths=lengths, chunk=3)
    np.testing.assert_allclose(logits[1, -1], made(tokens[1:, -4:])[0][0, -1], atol=1e-4)


def test_a_table_must_hold_what_is_read_and_written(tokens):
    made = build("learned")
    assert generate.greedy(made, tokens, 4).shape == (2, 4)  # the last token written is not read: 16 positions
    with pytest.raises(UserError, match=r"17 tokens are more than the learned position table holds \(16\)"):
        generate.greedy(made, tokens, 5)
    for call, says in (
        (lambda: generate.prefill(made, jnp.tile(tokens, 2)), "26 tokens"),
        (lambda: generate.prefill(made, tokens, read=T + 1), f"read={T + 1} must be from 0 to the {T} tokens"),
        (lambda: generate.greedy(made, tokens[:, :0], 1), "the 0 tokens of the text"),
    ):
        with pytest.raises(UserError, match=says):
            call()


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["bam", "selective_rope", *map(longest, ("cable", "rope", "sinusoidal"))])
def test_texts_read_one_after_another_are_each_read_as_if_alone(encoding, tokens, monkeypatch):
    made, reader_read = build(encoding), generate._read
    read = []
    monkeypatch.setattr(generate, "_read", lambda *x: read.append(int(x[3][0, 0])) or reader_read(*x))
    reader = generate.TextReader(made, T, chunk=4, read=3)
    first = np.asarray(tokens[0])
    late, early, short = first.copy(), first.copy(), first[2:]
    late[9] += 1
    early[2] += 1
    for text, starts in (
        (first, [EMPTY, 1, 5, 9]),  # 16 slots, of which 3 are before the text
        (late, [9]),
        (first, [9]),
        (first, [9]),
        (early, [1, 5, 9]),
        (short, [EMPTY, EMPTY, 3, 7]),
        (first, [EMPTY, 1, 5, 9]),
    ):
        read.clear()
        np.testing.assert_allclose(reader(text % VOCAB), made(jnp.asarray(text % VOCAB)[None])[0][0, -3:], atol=1e-4)
        assert read == starts


def test_all_chunks_of_all_texts_are_read_by_one_program(tokens):
    made = build("bam")
    nnx.update(made, jax.device_put(nnx.state(made), jax.devices()[0]))  # committed, as what a checkpoint gives
    reader = generate.TextReader(made, T, chunk=4, read=2)
    before = generate._read._cache_size()
    for text in (tokens[0], tokens[1], tokens[0]):
        reader(np.asarray(text))
    assert generate._read._cache_size() == before + 1


def test_chunks_of_a_reader_are_as_equal_as_blocks_allow():
    made = build("nope")
    # Of 1030 tokens three chunks of 344, in whole blocks of 256.
    for length, chunk, sizes in ((100, 64, (64, 128)), (1030, 512, (512, 1536)), (3, 2, (5, 5))):
        reader = generate.TextReader(made, length, chunk=chunk, read=5)
        assert (reader.chunk, reader.slots) == sizes


@pytest.mark.full
def test_tokens_counted_by_their_ids_give_the_logits_of_all(rng, monkeypatch):
    made, inner, walked = build("bam"), repeated.counted, []
    made.layers.attention.encoding.shape[...] = jnp.array([[-5.0, -9.0, 2.0, -5.0], [0.3, -0.3, 1.5, 0]])
    text = jnp.asarray(rng.integers(0, VOCAB, (1, 200)), jnp.int32)
    made.layers.attention.tiling = Tiling(skip="off")
    whole = made(text)[0]
    made.layers.attention.tiling = Tiling(skip=1e-6, block_q=16, block_k=16)

    def counted(*arguments):
        found = inner(*arguments)
        walked.append(found)
        return found

    monkeypatch.setattr(repeated, "counted", counted)
    logits, _ = generate.prefill(made, text, chunk=64, read=64)
    np.testing.assert_allclose(logits, whole[:, -64:], atol=2e-4)
    assert len(walked) == 1  # in the first layer of two, in the one program for all pieces
    kinds = lambda model: [cache.tokens.kinds and cache.tokens.kinds.count for cache in model.caches(1, 8)]
    # Keys that know their positions are not counted.
    assert kinds(made) == [VOCAB, None] and kinds(build("rope")) == kinds(build("learned")) == [None, None]


def pruned(encoding="nape", sharp=1.0, **options):
    """A model of one layer and two key heads; NAPE here has slopes of 1, 1/2, 1/4 and 1/8."""
    options = options or ({"alibi_heads": 4, "slopes": "exponential"} if encoding == "nape" else {})
    sizes = ModelConfig(layers=1, width=16, heads=4, kv_heads=2, hidden=16, scan=False, dtype="float32")
    config = Config(encoding=encoding, encoding_options=options, context=16, model=sizes)
    made = transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0))
    made.layers.attention.query.kernel[...] *= sharp
    return made


def kept_tokens(made, slots):
    """The slots of each group of heads."""
    return [kept for groups in generate.Kept(made, slots).groups for _, kept in groups]


@pytest.mark.parametrize("sharp", [1.0, pytest.param(300.0, marks=pytest.mark.full)])
def test_a_pruned_cache_writes_the_same_text(sharp, rng, monkeypatch):
    """With sharp queries content outweighs the prior, and the text is read again by heads that keep more."""
    made = pruned(sharp=sharp)
    text, lengths = jnp.asarray(rng.integers(0, VOCAB, (2, 400)), jnp.int32), np.array([400, 300])
    expected = generate.greedy(made, text, 20, lengths=lengths, chunk=128)
    made.prune_cache = "exact"
    assert kept_tokens(made, 512) == [128, 384]
    empty, begun = generate._empty, []
    monkeypatch.setattr(generate, "_empty", lambda *x: begun.append(x) or empty(*x))
    np.testing.assert_array_equal(generate.greedy(made, text, 20, lengths=lengths, chunk=128), expected)
    assert (len(begun) == 1) == (sharp == 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("encoding", "options"), [("bam", {"init": "ladder"}), longest("cable", {}), longest("nope", {"window": 60})]
)
def test_a_pruned_cache_gives_the_logits_of_a_whole_one(encoding, options, rng):
    made = pruned(encoding, **options)
    text = jnp.asarray(rng.integers(0, VOCAB, (1, 1700)), jnp.int32)
    expected = generate.prefill(made, text, chunk=200, read=50)[0]
    made.prune_cache = "exact"
    kept = generate.Kept(made, 1800)
    logits, caches = generate.prefill(made, text, chunk=200, read=50, kept=kept)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    kept_bytes = sum(cache.k.nbytes for layer in caches for cache in getattr(layer, "parts", [layer]))
    assert kept_bytes <= kept.share() * 1800 * 8 * 4 * 1.1  # whole caches are padded to blocks
    if encoding == "bam":  # the head that sees far still counts equal keys of the first layer
        assert caches[0].parts[-1].tokens.kinds is not None
    assert kept.share() < 1 or encoding == "cable"  # whose first weights are too small for 1,800 tokens


@pytest.mark.full
@pytest.mark.parametrize("sharp", [longest(1.0), 300.0])
def test_texts_are_read_one_after_another_through_a_pruned_cache(sharp, rng):
    made = pruned(sharp=sharp)
    first = rng.integers(0, VOCAB, 600).astype(np.int32)
    late, early = first.copy(), first.copy()
    late[500:] = 3
    early[100:200] = 4
    expected = [made(jnp.asarray(text)[None])[0][0, -3:] for text in (first, late, early, first)]
    made.prune_cache = "exact"
    reader = generate.TextReader(made, 600, chunk=128, read=3)
    for text, logits in zip((first, late, early, first), expected, strict=True):
        np.testing.assert_allclose(reader(text), logits, atol=1e-4)


def test_a_share_that_is_none_is_refused():
    made = pruned()
    made.prune_cache = 2
    with pytest.raises(UserError, match="prune_cache=2 must be"):
        generate.Kept(made, 512)
    for text in ("1.5", "0", "all", "nan", ""):
        with pytest.raises(UserError, match=f"prune_cache={text} must be exact"):
            generate.tolerance(text)
    assert [generate.tolerance(text) for text in ("off", "exact", "1e-4")] == ["off", "exact", 1e-4]


def test_a_growing_buffer_never_shrinks():
    """A group's buffer may be longer than what one of its heads asked for: that is what doubles."""
    made = pruned("alibi")
    made.prune_cache = "exact"
    kept = generate.Kept(made, 100_000)
    kept._reach = [np.array([700, 800])]
    assert kept.groups == ((((0, 1), 896),),)
    caches = generate._empty(*nnx.split(made), 1, 100_000, True, kept.groups)
    missed = dataclasses.replace(caches[0], missed=jnp.array([True, False]))
    assert not kept.grow(caches) and kept.grow((missed,))
    assert kept.groups == ((((1,), 896), ((0,), 1792)),)
    assert abs(kept.share() - (896 + 1792) / 200_000) < 1e-6
    for _ in range(12):
        kept.grow((missed,))
    assert kept.groups == ((),) and kept.share() == 1  # the whole layer, after a few


def test_a_reader_copies_no_buffer_that_is_longer_than_a_chunk():
    made = pruned()
    made.prune_cache = "exact"
    (short, _), (whole, kept) = generate.TextReader(made, 600, chunk=256, read=3).kept.groups[0]
    assert (short, whole, kept) == ((0,), (1,), 0)  # of 384 tokens elsewhere


@pytest.mark.parametrize(
    ("encoding", "options", "reach"),
    [
        ("inkling", {}, [10_112] * 2),
        ("bam_contextual", {"init": "ladder"}, [10_112, 128]),
        ("cable", {}, [1024] * 2),
        ("rope", {"window": 200}, [256] * 2),
        ("cope", {"window": 200}, [10_112] * 2),
    ],
)
def test_heads_keep_what_their_prior_reaches(encoding, options, reach):
    made = pruned(encoding, **options)
    made.prune_cache = "exact"
    found = generate.Kept(made, 10_112)._reach[0]
    np.testing.assert_array_equal(found, reach)
