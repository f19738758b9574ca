"""Runs exported for Hugging Face's transformers: its logits are ours, and a folder that is imported again is the same run.

The tests of transformers itself need it and torch, which nothing here installs:

    pip install torch transformers && python -m pytest -n 0 -m full tests/convert/test_transformers.py
"""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bam_jax import biases, encodings
from bam_jax import config as configs
from bam_jax.convert import __main__ as convert
from bam_jax.convert import own, tokenizer_files
from bam_jax.data.tokenizers import tokenizer
from bam_jax.data.tokenizers.training import train_bpe
from bam_jax.models import transformer
from bam_jax.system import files
from bam_jax.training import checkpoint, run_folder

SIZES = {"layers": 3, "width": 24, "heads": 4, "hidden": 40}
CONTEXT = 32


def load_biases():
    """The module beside the modeling file, which needs no torch."""
    path = own.__file__.replace("own.py", "exported/biases_bam_jax.py")
    found = importlib.util.spec_from_file_location("biases_bam_jax", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def perturbed(tree, seed=1):
    """Parameters moved off their initial values, so that none can be mistaken for another."""
    leaves, structure = jax.tree.flatten(tree)
    draw = np.random.default_rng(seed).normal
    moved = [np.asarray(leaf + draw(0, 0.2 if leaf.ndim < 3 else 0.02, leaf.shape), np.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, moved)


def write_run(folder, changes, kind="byte"):
    """A run of random parameters."""
    sizes = {f"model.{name}": value for name, value in SIZES.items()}
    config = configs.override({"context": CONTEXT, "steps": 1}, sizes | {"data.tokenizer": kind} | changes)
    made = tokenizer(kind)
    vocab = run_folder.vocabulary_size(config, made)
    _, tree = transformer.split(jax.jit(lambda: transformer.build(config, vocab=vocab, rngs=nnx.Rngs(0)))())
    checkpoint.write_model(folder, config, made, perturbed(tree))
    return folder


def export(run, folder, *options):
    convert.main([f"--run={run}", f"--export={folder}", "--layout=transformers", *options])
    return folder


@pytest.mark.parametrize("name", sorted(encodings.ENCODINGS.keys() - {*own.WITHOUT}))
def test_the_formulas_of_the_modeling_file_are_ours(name, rng):
    given, options = load_biases(), {"gate": "softplus", "step_bias": True} if name == "cable" else {}
    dims = encodings.Dims(4, 24, CONTEXT)
    config = configs.override({"context": CONTEXT}, {"encoding": name, "encoding_options": options, "model.width": 24})
    encoding = encodings.spec(name, options).build(dims, nnx.Rngs(0))
    graph, state = nnx.split(encoding)
    encoding = nnx.merge(graph, perturbed(state))
    place = own._place(encodings.spec(name, options), name, config)
    p = {key: np.asarray(x, np.float32) if isinstance(x, list) else x for key, x in place["constants"].items()}
    for path, x in nnx.to_flat_state(nnx.state(encoding)):
        p["_".join(path)] = np.asarray(x[...])
    assert place["parameters"].keys() == p.keys() - place["constants"].keys()

    x, length = rng.normal(size=(2, 50, 24)).astype(np.float32), 50
    i, j = encoding.coordinate(jnp.asarray(x), jnp.ones((1, length), bool), None)
    position = jnp.arange(length, dtype=jnp.float32)[None, None]
    ours = biases.table(encoding.bias(), position if i is None else i, position if j is None else j)
    at, step = np.float32(position), given.steps(np, name, p, x)
    assert (step is None) == (i is None)
    if step is not None:
        at = np.float64(step).cumsum(1).swapaxes(1, 2)
    if "weight_kernel" in p:
        p["query_weight"] = given.softplus(np, given.linear(p, "weight", x)).swapaxes(1, 2)[..., None]
    theirs = given.BIASES[name](np, p, at[..., None], at[..., None, :]) if name in given.BIASES else np.zeros((1,) * 4)
    seen = np.tri(length, dtype=bool)
    theirs, ours = (np.broadcast_to(table, (2, 4, length, length))[..., seen] for table in (theirs, ours))
    np.testing.assert_allclose(theirs, ours, rtol=2e-5, atol=2e-5)
    assert name not in given.BIASES or len(np.unique(ours)) > length / 2

    if encoding.bias().by_offset() is not None:
        count, known = np.array([[1.0, 2, 64, 65, 100, 5000, 10**6]], np.float32), np.float32(given.counts())
        theirs = given.log_effective_keys(np, name, p, count, known)
        ours = biases.log_effective_keys(encoding.bias(), jnp.asarray(count, jnp.int32))
        np.testing.assert_allclose(*np.broadcast_arrays(theirs, ours), rtol=1e-4, atol=1e-4)


SHARED = {"encoding": "bam:train_loc=true/bam:train_loc=true/cable:ssmax=on", "shared_encoding": True}


def test_a_folder_has_what_transformers_reads_and_comes_back_bitwise(tmp_path):
    run = write_run(tmp_path / "run", SHARED, "char")
    lines = [{"eval": "passkey", "length": 64, "depth": 0.5, "n": 8, "value": 0.75, "digits": 0.9, "first": 0}]
    lines += [
        {"eval": "perplexity", "length": 32, "n": 4, "value": 12.34, "windows": [12.34], "window": 32, "first": 0}
    ]
    shared = {"step": 1, "overrides": {}, "seed": 0, "prompt": "toy", "data_hash": "a", "essays_hash": "a"}
    units = {"passkey": "accuracy", "perplexity": "perplexity per token"}
    lines = [line | shared | {"unit": units[line["eval"]]} for line in lines]
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = export(run, tmp_path / "out", "--licence=cc-by-4.0")
    described = json.loads((folder / "config.json").read_text())
    for module in {name.partition(".")[0] for name in described["auto_map"].values()}:
        compile((folder / f"{module}.py").read_text(), module, "exec")
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\n") and "trust_remote_code=True" in card
    assert "| passkey, toy | 64 | 2 | 0.75 | accuracy | 0.349 to 0.968 | 8 |" in card
    assert "| perplexity" in card and "| 12.34 |" in card
    assert str(tmp_path) not in "".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    )

    convert.main([f"--source={folder}", f"--run={tmp_path / 'again'}"])
    (config, _, model), (before, made, expected) = map(checkpoint.restore_model, (tmp_path / "again", run))
    assert [getattr(config, name) for name in own.FIELDS if name != "model"] == [
        getattr(before, name) for name in own.FIELDS if name != "model"
    ]
    assert config.data.tokenizer == made.spec == "char"
    jax.tree.map(np.testing.assert_array_equal, transformer.split(model)[1], transformer.split(expected)[1])
    tokens = jnp.arange(20)[None]
    np.testing.assert_array_equal(model(tokens)[0], expected(tokens)[0])


def test_classes_of_transformers_are_preferred_and_their_folders_come_back(tmp_path, command):
    run = write_run(tmp_path / "run", {"encoding": "rope", "model.kv_heads": 2, "model.qkv_bias": True})
    folder = export(run, tmp_path / "out")
    described = json.loads((folder / "config.json").read_text())
    assert described["architectures"] == ["Qwen2ForCausalLM"] and described["eos_token_id"] == 256
    assert json.loads((folder / "generation_config.json").read_text())["use_cache"]
    assert not [*folder.glob("*.py")] and "license: unknown" in (folder / "README.md").read_text()
    assert not command(convert.main, f"--source={folder}", f"--run={tmp_path / 'again'}")[0]
    (_, made, model), (_, _, expected) = map(checkpoint.restore_model, (tmp_path / "again", run))
    assert made.name == "byte"
    jax.tree.map(np.testing.assert_array_equal, transformer.split(model)[1], transformer.split(expected)[1])


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(tmp_path, refused, monkeypatch):
    out = tmp_path / "out"
    ask = lambda run, *more: refused(convert.main, f"--run={run}", f"--export={out}", "--layout=transformers", *more)
    assert "no encoding 'dape_kerple'" in ask(write_run(tmp_path / "dape", {"encoding": "dape_kerple"}))
    assert "no config.ssmax=asentmax" in ask(write_run(tmp_path / "sparse", {"ssmax": "asentmax"}))
    masked = {"encoding": "bam", "model.causal": False, "data.task": "masked"}
    assert "causal=False and embedding_norm=False" in ask(write_run(tmp_path / "encoder", masked))
    run = write_run(tmp_path / "run", {"encoding": "bam"})
    (run / "results.jsonl").write_text("[]\n")
    assert "results.jsonl, line 1" in ask(run)
    (run / "results.jsonl").unlink()
    assert "--licence is that of a model card" in refused(
        convert.main, f"--run={run}", f"--export={out}", "--licence=mit"
    )
    assert not out.exists()
    write = files.write_atomically
    for number in (0, 5, 9):
        written = []

        def full(path, contents, number=number, written=written):
            if len(written) == number:
                raise OSError(28, "No space left on device", str(path))
            written.append(path)
            write(path, contents)

        monkeypatch.setattr(files, "write_atomically", full)
        ask(run)
        assert not out.exists()
    monkeypatch.setattr(files, "write_atomically", write)
    export(run, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "give a new or an empty folder" in ask(run)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


TEXTS = [
    "the module defines 42 things, isn't it?\n",
    "  two  spaces (and) caf\u00e9 \u6771\u4eac ",
    "a",
    "On 5 May\ttab",
]


@pytest.mark.parametrize("kind", ["byte", "char", "mistral", "bpe", "gpt2"])
def test_the_exported_tokenizer_gives_the_same_ids(kind, tmp_path):
    library = pytest.importorskip("tokenizers")
    if kind == "bpe":
        (tmp_path / "tokenizer.json").write_text(train_bpe([" ".join(TEXTS)] * 3, 300))
    if kind == "gpt2":
        write_gpt2(tmp_path)
    made = tokenizer(kind if kind in ("byte", "char", "mistral") else f"{kind}:{tmp_path}")
    text = tokenizer_files.tokenizer_files(made, None)
    theirs = library.Tokenizer.from_str(text["tokenizer.json"])
    for each in TEXTS:
        ids = made.encode_prompt(each)
        assert theirs.encode(each, add_special_tokens=False).ids == ids.tolist(), each
        assert theirs.decode(ids.tolist()) == made.decode(ids)
    said = json.loads(text["tokenizer_config.json"])
    assert made.eos is None or theirs.token_to_id(said["eos_token"]) == made.eos
    if kind == "char":
        prompt = "<KEY>12345<END>"
        assert theirs.encode(prompt).ids == made.encode_prompt(prompt).tolist()


def write_gpt2(folder):
    """A small vocabulary in GPT-2's two files: all bytes, and two merges."""
    from bam_jax.data.tokenizers.gpt2 import byte_alphabet

    symbols = sorted(byte_alphabet(), key=byte_alphabet().get)
    merges = [("t", "h"), ("th", "e")]
    pieces = [*symbols, *("".join(pair) for pair in merges), "<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (folder / "vocab.bpe").write_text("#version\n" + "".join(f"{a} {b}\n" for a, b in merges))


GPT2 = {"model.family": "gpt2"}
NATIVE = ("rope", "rope_pi", "rope_llama3", "nope")
"""Encodings for which transformers has a class."""
KINDS = {
    "LlamaForCausalLM": [
        {"encoding": "rope", "model.kv_heads": 2},
        {"encoding": "rope", "model.tied": True},
        {"encoding": "rope_pi", "encoding_options.factor": 4.0},
        {"encoding": "rope_llama3", "encoding_options.factor": 4.0},
    ],
    "Qwen2ForCausalLM": [{"encoding": "rope", "model.qkv_bias": True, "encoding_options.base": 500.0}],
    "Qwen3ForCausalLM": [{"encoding": "rope", "model.qk_norm": True, "model.norm_epsilon": 1e-4, "model.head_dim": 8}],
    "SmolLM3ForCausalLM": [
        {"encoding": "nope"},
        {"encoding": "rope:base=500.0/rope:base=500.0/nope", "model.tied": True},
    ],
    "GPT2LMHeadModel": [{"encoding": "learned"} | GPT2],
    "BertForMaskedLM": [
        {"encoding": "learned", "model.family": "bert", "model.causal": False, "data.task": "masked"},
    ],
    "BamJaxForCausalLM": [
        *({"encoding": name} for name in sorted(encodings.ENCODINGS.keys() - {*own.WITHOUT, *NATIVE})),
        *({"encoding": name} | GPT2 for name in ("rope", "nope", "alibi", "cable_nw", "sinusoidal")),
        {"encoding": "bam", "encoding_options.train_loc": True, "ssmax": "on", "model.kv_heads": 2},
        *({"encoding": name, "ssmax": "effective"} for name in ("nope", "alibi", "bam", "bam_contextual", "t5")),
        {
            "encoding": "cable",
            "encoding_options.gate": "softplus",
            "encoding_options.step_bias": True,
            "ssmax": "inside",
        },
        {"encoding": "rope_yarn", "encoding_options.factor": 4.0, "encoding_options.window": 9},
        {"encoding": "rope:window=4/rope:window=4/nope:log_temperature=0.3,log_temperature_start=5"},
        SHARED,
        {"encoding": "bam", "model.qk_norm": True, "model.gate": True, "model.sinks": True, "model.soft_cap": 2.0}
        | {"ssmax": "outside", "log_temperature": 0.2, "log_temperature_start": 4, "model.norm_epsilon": 1e-3},
        {
            "encoding": "alibi",
            "model.qkv_bias": True,
            "model.tied": True,
            "model.head_dim": 8,
            "encoding_options.factor": 3.0,
        },
    ],
}


@pytest.mark.full
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(kind, each, id=f"{kind}-{n}-{each['encoding']}")
        for kind in KINDS
        for n, each in enumerate(KINDS[kind])
    ],
)
def test_transformers_gives_our_logits_and_writes_our_text(kind, changes, tmp_path, rng, record_property):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    run = write_run(tmp_path / "run", changes)
    folder = export(run, tmp_path / f"out_{abs(hash(str(changes)))}")
    auto = transformers.AutoModelForMaskedLM if "Masked" in kind else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, trust_remote_code=kind == "BamJaxForCausalLM").eval()
    assert type(model).__name__ == kind
    _, _, ours = checkpoint.restore_model(run)
    tokens = rng.integers(0, 256, (2, CONTEXT if "learned" in changes["encoding"] else 3 * CONTEXT))
    with torch.no_grad():
        theirs = model(torch.tensor(tokens)).logits.numpy()
    expected = np.asarray(ours(jnp.asarray(tokens))[0])
    error = np.abs(theirs - expected).max() / np.abs(expected).max()
    record_property("error", float(error))
    print(f"\n{kind} {changes}: relative error {error:.1e}")
    assert error < 1e-4 and np.abs(expected).max() > 0.1

    if "Masked" not in kind:
        # A batch padded on the left continues as each of its texts alone, and as ours does.
        texts = [tokens[0, :12], tokens[1, :7]]
        padded, mask = (
            np.stack([np.pad(x, (12 - len(x), 0)) for x in each]) for each in (texts, [x * 0 + 1 for x in texts])
        )
        out = model.generate(  # its eos may be drawn
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            max_new_tokens=6,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        ends, written = np.array([12, 7]), np.zeros_like(tokens)  # of the shape from before, compiled already
        for row, text in zip(written, texts, strict=True):
            row[: len(text)] = text
        for n in range(6):
            logits = ours(jnp.asarray(written))[0]
            written[[0, 1], ends + n] = np.asarray(logits)[[0, 1], ends + n - 1].argmax(-1)
        assert out[:, 12:].tolist() == [row[end : end + 6].tolist() for row, end in zip(written, ends, strict=True)]

    # What transformers saves comes back as well.
    model.save_pretrained(tmp_path / "saved")
    convert.main([f"--source={tmp_path / 'saved'}", f"--run={tmp_path / 'again'}", "--config.data.tokenizer=byte"])
    _, _, again = checkpoint.restore_model(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, transformer.split(again)[1], transformer.split(ours)[1])
