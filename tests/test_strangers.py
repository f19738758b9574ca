"""A run from elsewhere is data: opening it runs none of its code and fetches none of its addresses."""

import json
import sys

import pytest

from bam_jax import config as configs
from bam_jax import evaluate, figures
from bam_jax import heads as heads_command
from bam_jax.convert import __main__ as convert
from bam_jax.data import loader
from bam_jax.evals.perplexity import Perplexity
from bam_jax.experiments import jobs
from bam_jax.experiments.experiment import Row
from bam_jax.models import transformer
from bam_jax.report import site
from bam_jax.system.errors import UserError
from bam_jax.training import checkpoint

CODE = """
from pathlib import Path
from bam_jax.encodings import NoPE
with (Path(__file__).parent / "ran").open("a") as file:
    file.write("x")
class Enc(NoPE):
    pass
Other = dict
"""
ADDRESS = "memory://nowhere/corpus"
TEXT = "a tale of some length, told again and again. " * 200


@pytest.fixture(scope="module")
def made(tmp_path_factory, write_initial):
    """A run of NoPE, whose parameters suit `Enc` as well; its text is long enough for all that is asked of it."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "text.txt").write_text(TEXT)
    return write_initial(folder / "run", encoding="nope", context=24, data={"source": str(folder / "text.txt")})


@pytest.fixture
def stranger(made, tmp_path, monkeypatch):
    """The run as a stranger may have left it, with a module beside it that Python finds."""
    (tmp_path / "evilmod.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    text = (made / "config.json").read_text()

    def become(**changes):
        tree = json.loads(text)
        tree.pop("crc32")  # a stranger writes what will do
        tree |= {name: tree[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
        (made / "config.json").write_text(json.dumps(tree))
        return made

    yield become
    (made / "config.json").write_text(text)
    sys.modules.pop("evilmod", None)
    for name in ("results.jsonl", "heads.jsonl"):
        (made / name).unlink(missing_ok=True)


def perplexity(run, *words):
    evaluate.main([f"--run={run}", "--eval=perplexity", "--lengths=16", "--tokens=32", *words])


def drawing(name):
    return lambda run, out: figures.main([name, f"--run={run}", f"--out={out / 'a'}"])


COMMANDS = {
    "evaluate": lambda run, out: perplexity(run),
    "heads": lambda run, out: heads_command.main([f"--run={run}", "--keys=8", "--tokens=16"]),
    **{name: drawing(name) for name in ("attention", "biases", "coupling", "scales")},
    "convert": lambda run, out: convert.main([f"--run={run}", "--layout=bam", f"--export={out / 'e'}"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_what_a_run_names(command, stranger, tmp_path):
    run = stranger(encoding="evilmod:Enc")
    with pytest.raises(UserError, match="'evilmod:Enc' is code.*--allow=evilmod"):
        COMMANDS[command](run, tmp_path)
    assert not (tmp_path / "ran").exists() and "evilmod" not in sys.modules


@pytest.mark.parametrize("name", ["bam_jax.train:main", "os:system", "json:loads", "sys:modules"])
def test_what_is_loaded_anyway_must_be_an_encoding(name, stranger):
    with pytest.raises(UserError):
        checkpoint.restore_model(stranger(encoding=name))


def test_pages_and_starts_import_nothing(stranger, tmp_path):
    like = transformer.split(checkpoint.restore_model(stranger())[2])[1]
    run = stranger(encoding="evilmod:Enc", data={"source": ADDRESS})
    site.write(run.parent, [], tmp_path / "site")
    assert "evilmod:Enc" in "".join(page.read_text() for page in (tmp_path / "site").glob("*.html"))
    assert checkpoint.restore_parameters(run, like).keys() == like.keys()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("word", ["--allow=evilmod", "--config.encoding=evilmod:Enc"])
def test_a_command_that_names_the_module_opens_the_run(word, stranger, tmp_path):
    perplexity(stranger(encoding="evilmod:Enc"), word)
    assert (tmp_path / "ran").read_text() == "x"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--allow=./evilmod.py", "--allow='./evilmod.py' is neither a module nor an address"),
        ("--allow=no_such_module", "cannot import --allow=no_such_module"),
        ("--config.encoding=evilmod:Other", "'evilmod' has no Encoding class 'Other'"),
        ("--config.encoding=evilmod:None_", "'evilmod' has no Encoding class 'None_'"),
    ],
)
def test_a_wrong_word_is_one_line(word, says, stranger):
    with pytest.raises(UserError) as error:
        perplexity(stranger(), word)
    assert says in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("evaluate", {"source": ADDRESS}),
        ("evaluate", {"mixture": {"a": {"weight": 1, "source": ADDRESS}, "b": {"weight": 1}}}),
        ("heads", {"source": "simplecache::s3://bucket"}),
        ("attention", {"held_out_source": "tfds:name"}),
        ("biases", {"source": "https://host/a.txt"}),
        ("coupling", {"held_out_source": ADDRESS}),
    ],
)
def test_no_command_fetches_what_a_run_names(command, where, stranger, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "open_documents", lambda *arguments: pytest.fail("fetched"))
    with pytest.raises(UserError, match="add --allow="):
        COMMANDS[command](stranger(data=where), tmp_path)


def test_one_address_is_no_leave_for_another(stranger):
    words = ["--allow=memory://nowhere", "--allow=tfds:x", "--config.data.held_out_source=memory://nowhere/corpu"]
    for word in words:
        with pytest.raises(UserError, match="(add --allow=|does not exist)"):
            perplexity(stranger(data={"source": ADDRESS}), word)


@pytest.mark.parametrize("word", [f"--allow={ADDRESS}", f"--config.data.source={ADDRESS}"])
def test_a_command_that_names_the_address_fetches_it(word, stranger):
    import fsspec

    fsspec.filesystem("memory").pipe("/nowhere/corpus/a.txt", TEXT.encode())
    perplexity(stranger(data={"source": ADDRESS}), word)


def test_sweeps_and_trainings_allow_what_their_own_files_name(stranger, tmp_path):
    config = configs.from_dict({"encoding": "evilmod:Enc", "data": {"source": ADDRESS}})
    row = Row("mine", "mine.py", seeds=(0,), evaluations=(Perplexity((64,)),))
    _, command = jobs.Job(row, 0, config, "mine-seed0").commands(tmp_path)
    assert command[-2:] == ["--allow=evilmod", f"--allow={ADDRESS}"]
    (tmp_path / "mine.py").write_text(
        "import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict({'encoding': 'evilmod:Enc'})\n"
    )
    configs.load(tmp_path / "mine.py")
    assert (tmp_path / "ran").read_text() == "x"
