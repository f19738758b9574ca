"""The configuration: files, overrides, checks, JSON and hash; and how commands end."""

import argparse
import copy
import json
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bam_jax import config
from bam_jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, sections
from bam_jax.data.tokenizers import TOKENIZERS
from bam_jax.system import errors
from bam_jax.system.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def test_known_tokenizers_are_those_that_exist():
    assert set(sections.TOKENIZERS) == set(TOKENIZERS)


def test_file_and_overrides(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import ml_collections\n"
        "def get_config():\n"
        "    options = {'encoding_options': {'a': 'b'}}\n"
        "    return ml_collections.ConfigDict({'steps': 7, 'model': {'heads': 2}, **options})\n"
    )
    sections = "model.width=32 optimizer.rate=1 model.causal=false logger=wandb data.source=2024".split()
    given = [*sections, "encoding_options.window=64", "encoding_options.name=a=b"]
    loaded = config.load(path, config.from_arguments([f"--config.{each}" for each in given]))
    assert loaded == Config(
        steps=7,
        model=ModelConfig(heads=2, width=32, causal=False),
        optimizer=OptimizerConfig(rate=1.0),
        logger="wandb",
        data=DataConfig(source="2024"),
        encoding_options={"a": "b", "window": 64, "name": "a=b"},
    )
    assert type(loaded.optimizer.rate) is float


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS.glob("*.py")])
def test_every_config_file_loads_and_says_how_to_run_it(name):
    path = CONFIGS / f"{name}.py"
    config.load(path)
    docstring = path.read_text().split('"""')[1]
    assert f"--config=configs/{name}.py" in docstring and "Hardware:" in docstring and "Expected:" in docstring


SIZES = {  # layers, width, heads, hidden, rows of a micro-batch; the optimiser, its rate and its warm-up
    "gpt2_tiny": (6, 512, 8, 2048, 64, "adamw", 6e-4, 750),
    "gpt2_small": (12, 768, 12, 3072, 32, "adamw", 6e-4, 750),
    "gpt2_medium": (24, 1024, 16, 4096, 16, "adamw", 6e-4, 750),
    "lm_120m": (12, 768, 16, 1536, None, "radam", 1e-3, 0),
    "lm_432m": (14, 1536, 24, 3072, None, "radam", 5e-4, 0),
    "lm_1b": (15, 2048, 32, 8192, None, "radam", 3e-4, 0),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_sizes(name):
    made = config.load(CONFIGS / f"{name}.py")
    model, optimizer, cable = made.model, made.optimizer, name.startswith("gpt2")
    micro = made.batch // optimizer.accumulate if cable else None
    sizes = model.layers, model.width, model.heads, model.hidden, micro
    assert (*sizes, optimizer.name, optimizer.rate, optimizer.warmup) == SIZES[name]
    assert (made.batch * made.context, made.steps) == ((524_288, 19_000) if cable else (589_824, 19_251))
    assert optimizer.final == 0.1
    if cable:
        assert model.family == "gpt2" and not made.data.document_mask
    else:
        assert (optimizer.b1, optimizer.b2, optimizer.decay, optimizer.clip) == (0.9, 0.95, 0.1, 1)


def test_the_extended_context_takes_as_many_tokens_a_step():
    before, after = (config.load(CONFIGS / f"{name}.py") for name in ("lm_1b", "lm_1b_extended"))
    assert (after.context, after.steps) == (1024, 256)
    assert after.batch * after.context == before.batch * before.context
    assert after.optimizer.rate * after.optimizer.final == pytest.approx(before.optimizer.rate * before.optimizer.final)


def test_masked_tokens_need_an_encoder():
    with pytest.raises(UserError, match="--config.model.causal=False"):
        Config(data=DataConfig(task="masked"))
    Config(data=DataConfig(task="masked"), model=ModelConfig(causal=False))


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--config.model.headz=3", "unknown config key config.model.headz; did you mean 'heads'?"),
        ("--config.layers=4", "unknown config key config.layers; did you mean config.model.layers?"),
        ("--config.optimiser.rate=1", "did you mean 'optimizer'"),
        ("--config.optimiser.rate=1", "; keys of optimizer: name, rate, prior_rate"),
        ("--config.model=3", "config.model is a group; name one of its keys: attention_dropout, causal, dtype"),
        ("--config.steps.x=3", "write config.steps=value"),
        ("--config.steps", "not of the form --config.name=value"),
        ("--config.steps=many", "config.steps='many' must be of type int, not str"),
        ("--config.shared_encoding=1", "must be True or False, not int"),
        ("--config.optimizer.rate=1e999", "must be finite"),
        ("--config.encoding_options=3", "must be of type dict"),
        ("--config.encoding_options.x={1}", "JSON values only"),
        ("--config.model.heads=7", "config.model.heads=7 must be a divisor of the width 64"),
        ("--config.model.kv_heads=3", "config.model.kv_heads=3 must be 0 or a divisor of the heads, 4"),
        ("--config.context=-1", "config.context=-1 must be 1 or more"),
        ("--config.model.heads=1000000000000", "config.model.heads=1000000000000 must be 65536 or less"),
        ("--config.data.holdout=1", "config.data.holdout=1.0 must be at least 0 and below 1"),
        ("--config.data.tokenizer=chars", "did you mean 'char'?"),
        ("--config.data.mask_fraction=0", "config.data.mask_fraction=0.0 must be above 0"),
        ("--config.data.mixture.keys.task=passkey", "config.data.mixture.keys={'task': 'passkey'} must be a group"),
        ("--config.data.mixture.keys.weight=0", "config.data.mixture.keys.weight=0.0 must be positive"),
        (
            "--config.data.mixture.keys={'weight': 1, 'taks': 'x'}",
            "config.data.mixture.keys.taks; did you mean 'task'?",
        ),
        ("--config.data.mixture.keys={'weight': 1, 'tokenizer': 'byte'}", "set config.data.tokenizer"),
        ("--config.data.mixture={'a': {'weight': 1}, 'b': {'weight': 1e-6}}", "mixture.b.weight=1e-06 is less than"),
        (
            "--config.data.mixture={'a': {'weight': 1}, 'b': {'weight': 1, 'task': 'triplets'}}",
            "tasks packed, triplets",
        ),
        ("--config.data.mixture.keys={'weight': 1, 'holdout': 2}", "(in config.data.mixture.keys)"),
        ("--config.optimizer.accumulate=5", "config.batch=32 must be a multiple of config.optimizer.accumulate=5"),
        ("--config.encoding=./cauchy.py:CauchyPrior", "='./cauchy.py:CauchyPrior' must be a name, or package.module:C"),
        ("--config.encoding=no_such_module:X", "in the folder that no_such_module stands in, or with PYTHONPATH="),
    ],
)
def test_bad_overrides_are_one_clear_line(argument, says):
    with pytest.raises(UserError) as error:
        config.override(Config(), config.from_arguments([argument]))
    assert says in str(error.value) and "\n" not in str(error.value)


DEEP = "[" * 10_000 + "]" * 10_000


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "null",
        '{"encoding_options": {"a": ' + DEEP[9_500:10_500] + "}}",
        '{"data": {"mixture": {"a\\n": {"weight": 0}}}}',
        '{"steps": ' + "9" * 5_000 + "}",
        '{"steps": 1e999}',
        '{"optimizer": {"rate": ' + "9" * 400 + "}}",
        '{"data": {"source": "a\\u0000b"}}',
        '{"encoding_options": {"a": "\\ud800"}}',
        '{"a\\u001b[2J\\n": 1}',
    ],
)
def test_odd_text_in_a_file_is_one_line(text):
    with pytest.raises(UserError) as error:
        config.from_json(text)
    assert str(error.value).isprintable() and len(str(error.value)) < 1500


@pytest.mark.parametrize(
    "tree", [{1: 2}, {"optimizer": {None: 2}}, {"data": {"mixture": {0.5: 2}}}, {None: 1, 2: 3}], ids=repr
)
def test_a_key_that_is_no_text_is_one_line(tree, tmp_path):
    path = written(tmp_path / "mine.py", tree)
    for make in (lambda: config.load(path), lambda: config.from_dict(tree)):
        with pytest.raises(UserError) as error:
            make()
        assert str(error.value).isprintable()


CHANGES = {
    "encoding": "alibi",
    "encoding_options.factor": 4.0,
    "encoding_options": {"factor": 2.0, "x": 1},
    "ssmax": "on",
    "data.mixture": {"a": {"weight": 1}, "b": {"weight": 2}},
    "data.mixture.a.weight": 3,
    "data.mixture.a": {"weight": 7, "holdout": 0.5},
    "data.holdout": 0.25,
    "model.heads": 8,
    "model.width": 128,
}


@given(st.permutations(list(CHANGES)), st.sets(st.sampled_from(list(CHANGES))))
def test_changes_have_no_order(order, left_out):
    before = Config(encoding="bam", encoding_options={"init": "spread"}, ssmax="inside")
    rest = {name: CHANGES[name] for name in order if name not in left_out}
    kept = copy.deepcopy(rest)
    made = config.override(before, rest)
    assert made == config.override(before, dict(sorted(rest.items()))) and rest == kept
    assert made == config.override(before, config.from_arguments(config.arguments(rest)))
    if "encoding" in rest:
        assert "init" not in made.encoding_options


@given(
    st.dictionaries(
        st.sampled_from(["data.source", "encoding", "encoding_options.a", "data.mixture.b.c", "model.layers", "ssmax"]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.integers(-9, 9) | st.booleans(),
    )
)
def test_the_arguments_of_changes_are_read_as_the_same(changes):
    texts = ("data.source", "encoding", "ssmax")
    changes = {name: str(value) if name in texts else value for name, value in changes.items()}
    changes |= {"model.layers": 3} if "model.layers" in changes else {}
    read = config.from_arguments(config.arguments(changes))
    assert read == changes and list(map(type, read.values())) == list(map(type, changes.values()))


def test_a_value_and_the_text_of_old_records_are_one():
    for name, values in {
        "data.holdout": (0.0, 0, "0", "0.0", "0e3"),
        "encoding_options.factor": (4.0, 4, "4", "4.0"),
        "encoding_options": ({"factor": 4.0}, {"factor": 4}, "{'factor': 4}"),
        "shared_encoding": (True, "true", "True"),
        "data.source": ("64",),
        "encoding_options.init": ("spread",),
        "skip": ("off",),  # no field, but stored beside them
        "steps": ("many",),
        "seed": ("0x" + "f" * 5_000,),
        "encoding_options.deep": ("[" * 50 + "]" * 50,),
    }.items():
        forms = [json.dumps(config.typed({name: value})) for value in values]
        assert len(set(forms)) == 1 and config.typed(json.loads(forms[0])) == json.loads(forms[0])
    assert config.typed({"steps": "3", "data.source": "3"}) == {"steps": 3, "data.source": "3"}


OTHERS = {
    "alibi": "off",
    "cable": "off",
    "ownprior:Prior": "off",
    "bam_contextual": "effective",
    "bam:init=spread": "on",
    "rope:window=512/nope": "off",
    "rope/bam": "off",
    "rope:ssmax=off/bam": "on",
}


@pytest.mark.parametrize(("encoding", "ssmax"), OTHERS.items())
def test_another_encoding_than_the_files_comes_with_its_own_ssmax(encoding, ssmax, monkeypatch):
    monkeypatch.setitem(sys.modules, "ownprior", types.ModuleType("ownprior"))
    two = {"encoding": encoding, "model.layers": 2}
    load = lambda **changes: config.load(CONFIGS / "quickstart.py", two | changes)
    assert config.load(CONFIGS / "quickstart.py").ssmax == "effective"
    assert load().ssmax == ssmax and load().encoding_options == {}
    assert load(ssmax="inside").ssmax == "inside"


def test_the_files_own_encoding_keeps_the_files_ssmax_and_options():
    own = config.load(CONFIGS / "quickstart.py")
    assert config.load(CONFIGS / "quickstart.py", {"encoding": "bam"}) == own
    assert config.load(CONFIGS / "gpt2_tiny.py").ssmax == "off"
    assert config.load(CONFIGS / "gpt2_tiny.py", {"encoding": "bam"}).ssmax == "on"


def test_a_trained_run_keeps_its_ssmax_under_another_encoding():
    trained = Config(encoding="rope", ssmax="on")
    assert config.override(trained, {"encoding": "rope_yarn"}).ssmax == "on"


def written(path, tree):
    path.write_text(f"import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict({tree!r})\n")
    return path


def test_the_papers_bam_is_one_name_wherever_it_stands(tmp_path):
    """The location is fixed at 0 where `train_loc` is left at its default."""
    stated = {"encoding_options.train_loc": True, "ssmax": "off", "optimizer.prior_rate": 20.0}
    nested = {"encoding_options": {"train_loc": True}, "ssmax": "off", "optimizer": {"prior_rate": 20.0}}
    file = written(tmp_path / "a.py", {"encoding": "cable", "shared_encoding": True, "optimizer": {"prior_rate": 3.0}})
    own, more = written(tmp_path / "b.py", {"encoding": "bam_paper"}), written(tmp_path / "c.py", nested)
    more.write_text(more.read_text().replace("ConfigDict({", "ConfigDict({'encoding': 'bam_paper', "))
    plain = Config(encoding="bam", encoding_options={"init": "uniform"}, ssmax="on")
    assert config.load(file, {"encoding": "bam_paper"}) == config.load(own) == plain
    assert config.load(CONFIGS / "quickstart.py", {"encoding": "bam_paper"}).encoding_options == {"init": "uniform"}
    changed = config.override(plain, stated)
    assert changed.optimizer.prior_rate == 20 and changed.encoding_options == {"init": "uniform", "train_loc": True}
    found = config.load(file, {"encoding": "bam_paper", **stated}), config.load(own, stated), config.load(more)
    assert found == (changed,) * 3


@pytest.mark.parametrize("encoding", ["rope:window=8/bam_paper", "bam_paper:window=8"])
def test_the_name_of_a_whole_model_is_no_place_of_a_pattern(encoding):
    with pytest.raises(UserError, match="bam_paper names a whole model.*alone"):
        Config(encoding=encoding)
    with pytest.raises(UserError, match="bam_paper names a whole model.*alone"):
        config.load(CONFIGS / "quickstart.py", {"encoding": encoding})


def test_options_stay_with_the_encoding_that_they_were_given_for():
    alibi, factor = {"encoding": "alibi"}, {"encoding_options.factor": 4.0}
    before = Config(encoding="bam", encoding_options={"init": "spread"})
    assert config.override(before, factor | alibi).encoding_options == {"factor": 4.0}
    assert config.override(before, alibi).encoding_options == {}
    same = {"encoding_options.spread": 2.0, "encoding": "bam"}
    assert config.override(before, same).encoding_options == {"init": "spread", "spread": 2.0}


def test_passkeys_need_characters():
    for mixture in {}, {"keys": {"weight": 1}}:
        with pytest.raises(UserError, match="'char' for the task 'passkey'"):
            DataConfig(task="passkey", tokenizer="byte", mixture=mixture)


def test_parts_of_a_mixture_are_whole_configurations():
    data = DataConfig(source="a", mixture={"text": {"weight": 3}, "keys": {"weight": 1.5, "task": "passkey"}})
    assert data.parts() == {
        "text": (3.0, DataConfig(source="a")),
        "keys": (1.5, DataConfig(source="a", task="passkey")),
    }
    assert DataConfig().parts() == {"": (1.0, DataConfig())}
    both = config.from_json(config.to_json(Config(data=data)))
    assert both.data == data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "bad.py is not there; give the path of a Python file"),
        ("x = 1", "has no get_config"),
        ("def get_config(): return {}", "returned dict"),
        ("def get_config(:", "is not Python"),
        ("\nx = nothing", "bad.py fails at line 2: NameError: name 'nothing' is not defined; mend that file"),
        ("def get_config():\n    raise OSError('a\\nb')", "fails at line 2: OSError: a b; mend"),
        (
            "import ml_collections\ndef get_config(): return ml_collections.ConfigDict({'model.layers': 2})",
            "fails at line 2: ValueError: .* but the key model.layers contains one.; mend",
        ),
    ],
)
def test_bad_files(tmp_path, content, says):
    path = tmp_path / "bad.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=says):
        config.load(path)


def test_a_config_is_a_python_file(tmp_path):
    (tmp_path / "config.json").write_text('{"a": null}')
    with pytest.raises(UserError, match="not a Python file"):
        config.load(tmp_path / "config.json")


@st.composite
def configs(draw):
    heads, options = draw(st.integers(1, 8)), st.none() | st.booleans() | st.integers() | st.lists(st.text())
    return Config(
        encoding_options=draw(st.dictionaries(st.text(), options, max_size=3)),
        model=ModelConfig(heads=heads, width=heads * draw(st.integers(1, 64))),
        optimizer=OptimizerConfig(rate=draw(st.floats(1e-12, 1e3))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@given(configs())
def test_json_gives_the_same_back(made):
    assert config.from_json(config.to_json(made)) == made
    assert config.digest(config.from_json(config.to_json(made))) == config.digest(made)


def test_hash_is_fixed_and_tells_apart():
    # Runs on disk carry this: a new field or default changes it knowingly.
    assert config.digest(Config()) == "9773afba90be"
    rates = [Config(optimizer=OptimizerConfig(rate=rate)) for rate in (1, 1.0)]
    assert config.digest(rates[0]) == config.digest(rates[1])
    changes = {"optimizer.schedule": "linear", "data.similarity_scale": 10.0, "log_temperature": 0.1, "seed": 1}
    changes |= {"model.soft_cap": 50.0, "model.qk_norm": True, "model.gate": True, "model.sinks": True}
    digests = {config.digest(config.override(Config(), {name: value})) for name, value in changes.items()}
    assert len(digests | {config.digest(Config())}) == 9


def test_options_are_a_copy():
    options = {"a": [1]}
    made = Config(encoding_options=options)
    options["a"].append(2)
    assert made.encoding_options == {"a": [1]}


def test_parse_splits_overrides_and_names_the_nearest():
    parser = errors.Parser(prog="x", description="")
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir")
    namespace, changes = config.parse(["--config=a.py", "--config.steps=3", "--workdir", "w"], parser)
    assert namespace == argparse.Namespace(config="a.py", workdir="w") and changes == {"steps": 3}
    with pytest.raises(UserError, match="unknown argument b after --workdir=a; .* --workdir VALUE b"):
        config.parse(["--config=a.py", "--workdir=a", "b"], parser)
    with pytest.raises(UserError, match="unknown argument --workdri=w; did you mean '--workdir'"):
        config.parse(["--config=a.py", "--workdri=w"], parser)
    with pytest.raises(UserError, match="required: --config"):
        config.parse([], parser)


def raises(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "says"),
    [
        (raises(UserError("bad")), 2, "error: bad\n"),
        (
            raises(FileExistsError(17, "File exists", "x")),
            2,
            "error: x: a file or a link is in the way; give a folder, or a name that is not there yet\n",
        ),
        (raises(PermissionError(13, "Denied", "x")), 2, "error: x: Denied; give a path that can be read and written\n"),
        (raises(KeyboardInterrupt()), 130, "interrupted\n"),
        (lambda argv: None, None, ""),
        (lambda argv: len(argv), 1, ""),
    ],
)
def test_exit_codes(main, code, says, capsys):
    with pytest.raises(SystemExit) as ended:
        errors.run(main, ["x"])
    assert ended.value.code == code and capsys.readouterr().err == says


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        errors.run(lambda argv: 1 // 0, [])
    with pytest.raises(ConnectionError):  # of the system, and of no path
        errors.run(raises(ConnectionError(111, "refused")), [])


def test_what_is_accepted_can_be_read_again():
    """Options and fields hold what their file can hold."""
    for number in (2**63 - 1, 1 - 2**63):
        made = config.override(Config(), {"encoding_options.x": number})
        assert config.from_json(config.to_json(made)) == made
    for number in (2**63, -(2**63)):
        for name in ("encoding_options.x", "seed"):
            with pytest.raises(UserError, match=f"config.{name.partition('.')[0]}"):
                config.override(Config(), {name: number})
