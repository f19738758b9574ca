"""Configurations of any kind end in success or in one line. For more of them: see tests/conftest.py, BAM_FUZZ."""

import dataclasses
import inspect
import json

from endurance.spoil import spoilt
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import config
from bam_jax.config import Config
from bam_jax.encodings import ENCODINGS
from bam_jax.models import transformer
from bam_jax.system.errors import UserError

NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 10**12, 2**63, 10**400, 1e308, 5e-324])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXTS = (
    st.text(st.characters(codec=None))
    | JSON.map(repr)
    | st.tuples(st.sampled_from("([{-~'\"\\\0\n\ud800"), st.integers(1, 20_000)).map(lambda pair: pair[0] * pair[1])
    | st.integers(4_000, 6_000).map(lambda n: "9" * n)
    | st.sampled_from(
        ["true", "None", "{[]: 1}", "1e999", "alibi", "on", "a:b", ".a:b", "./a.py:B", "{'a': {'weight': 1}}"]
    )
)


def fields(kind, above=""):
    """The dotted names of all fields of a configuration, and of its groups."""
    for name, each in config.section.kinds(kind).items():
        yield above + name
        if dataclasses.is_dataclass(each):
            yield from fields(each, f"{above}{name}.")


NAMES = sorted(fields(Config))
NO_TEXT = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.tuples(st.text(max_size=3))
"""Keys of a dictionary that no configuration has."""
KEYS = (
    st.sampled_from(NAMES)
    | st.builds("{}.{}".format, st.sampled_from(NAMES), st.text(max_size=5))
    | st.text(max_size=9)
)


def see(make):
    """Whether it succeeds or says why not in one line."""
    try:
        made = make()
    except UserError as error:
        assert str(error).isprintable(), str(error)
        assert len(str(error)) < 2_000
    else:
        assert config.from_json(config.to_json(made)) == made
        assert config.digest(made)


@given(st.lists(st.tuples(KEYS, TEXTS), max_size=3))
def test_overrides_succeed_or_are_one_line(pairs):
    arguments = [f"--config.{key}={text}" for key, text in pairs]
    see(lambda: config.override(Config(), config.from_arguments(arguments)))


@given(st.dictionaries(KEYS | NO_TEXT, JSON | TEXTS | st.dictionaries(NO_TEXT, JSON, max_size=2), max_size=3))
def test_changes_succeed_or_are_one_line(changes):
    see(lambda: config.override(Config(), changes))


@given(st.dictionaries(KEYS, JSON | TEXTS, max_size=3))
def test_whatever_a_record_holds_has_one_form(changes):
    made = config.typed(changes)
    assert made.keys() == changes.keys()
    json.dumps(made)


@given(st.randoms(use_true_random=False))
def test_files_succeed_or_are_one_line(chance):
    text = json.dumps(config.to_dict(Config()), indent=1)  # without the checksum, which would refuse it first
    spoilt_text = spoilt(text.encode(), chance).decode(errors="replace")
    see(lambda: config.from_json(spoilt_text))


def options(name):
    """Options of an encoding, mostly of types that it knows."""
    known = [
        each for each in inspect.signature(ENCODINGS[name].__init__).parameters if each not in ("self", "dims", "rngs")
    ]
    values = JSON | st.integers(-2, 40) | st.floats(0, 100) | st.sampled_from(["relu", "spread", "sampled", "alibi"])
    one = st.sampled_from(known) if known else st.text(max_size=3)
    return st.dictionaries(one, values, min_size=1, max_size=2)


@given(st.data())
def test_options_make_a_model_or_are_one_line(data):
    name = data.draw(st.sampled_from(sorted(ENCODINGS)))
    tree = {
        "encoding": name,
        "encoding_options": data.draw(options(name)),
        "ssmax": data.draw(st.sampled_from(["off", "on", "inside"])),
        "shared_encoding": data.draw(st.booleans()),
        "context": data.draw(st.sampled_from([1, 16, 2**31 - 1])),
        "model": {"layers": 1, "width": 16, "heads": 2, "hidden": 8, "causal": data.draw(st.booleans())},
    }

    def build():
        made = config.from_dict(tree)
        nnx.eval_shape(lambda: transformer.build(made, vocab=8, rngs=nnx.Rngs(0)))
        return made

    see(build)
