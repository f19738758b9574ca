"""The static site, from invented runs."""

import dataclasses
import json
import math
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from bam_jax import config
from bam_jax.evals.records import STOPPED
from bam_jax.experiments import experiment, jobs, results
from bam_jax.report import figures, paper_page, run_page, site
from bam_jax.report.__main__ import main
from bam_jax.report.paper_page import Status, read_progress
from bam_jax.system.errors import UserError

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "quickstart.py"
SMALL = {"encoding": "rope", "steps": 10}
EXPERIMENT = f"""
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.perplexity import Perplexity
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments.experiment import Column, Row, Table, tabled

KEYS = tuple(Column(f"{{n}} <tokens>", Passkey((n,), depths=2, patience=1)) for n in (64, 128))
TEXT = tuple(Column(f"{{n}}", Perplexity((n,))) for n in (64, 128))
NEEDLES = tuple(Column(f"{{n}}", Ruler((n,), tasks=("niah_single_1",), samples=2)) for n in (256, 512))


def get_experiment(scale):
    rows = [
        Row("RoPE", {str(CONFIG)!r}, {SMALL!r}, seeds=(0, 1)),
        Row("Local", {str(CONFIG)!r}, {SMALL!r}, changes={{"encoding_options.window": 64}}),
        Row("Late", {str(CONFIG)!r}, {(SMALL | {"batch": 2})!r}),
    ]
    tables = [
        Table("Table 1: keys", KEYS, {{"RoPE": ("1.00", "0.50"), "Local": ()}}),
        Table("Table 2: text", TEXT, {{"RoPE": ("3.0", "4.0"), "Late": ()}}),
        Table("Table 3: needles", NEEDLES, {{"RoPE": ()}}),
    ]
    return tabled("An <invented> paper", rows, tables, notes=("Look at `this`.",))
"""
SIZES = f"""
from bam_jax.experiments.experiment import Column, Row, Table, tabled

table = Table("Sizes", (Column("heads", quantity="heads"),), {{"RoPE": ("4",)}})
get_experiment = lambda: tabled("Sizes", [Row("RoPE", {str(CONFIG)!r})], [table])
"""


def cell(evaluation, length, value, **others):
    record = {"eval": evaluation, "length": length, "depth": None, "value": value, "n": 1, "step": 10, "overrides": {}}
    return record | {"unit": "accuracy", "seconds": 0.5, "commit": "abc1234"} | others


def keys(values, *, seed=0, **others):
    """Passkeys at two lengths and depths, values in this order."""
    places = [(length, depth) for length in (64, 128) for depth in (0.0, 1.0)]
    return [
        cell("passkey", length, value, depth=depth, prompt="toy", seed=seed, **others)
        for (length, depth), value in zip(places, values, strict=True)
    ]


def records(seed):
    windows = {64: [math.log(3.0)], 128: [math.log(3.0), math.log(5.0)]}
    return [
        *keys([1.0, 1.0, seed, 1.0], seed=seed),
        *(keys([1.0, 1.0, 0.0, 0.0], overrides={"encoding_options.window": "64"}) if seed == 0 else []),
        *(cell("perplexity", n, 3.0 + seed, windows=each, window=64) for n, each in windows.items()),
        *(cell("ruler", n, 0.5, n=2, task="niah_single_1", seed=seed, essays="stdlib") for n in (256, 512)),
        {"eval": STOPPED, "of": "passkey", "lengths": [4096], "after": [64, 128], "step": 10, "overrides": {}},
        cell("a new one", 64, 12.5, unit="ms", task="<inference>", spread=0.25, detail={"not": "shown"}),
    ]


def write_run(path, made, lines, *, step=10):
    path.mkdir(parents=True)
    (path / "config.json").write_text(config.to_json(made))
    history = [{"step": n, "loss": 4.0 - 0.1 * n, "seconds": 3.0 * n, "rate": 0.003} for n in range(1, step + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in history))
    (path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def write_paper(place):
    """An experiment of three rows, whose last has not begun."""
    path = place / "paper_table1.py"
    path.write_text(EXPERIMENT)
    return path


def write_folder(paper):
    """Its runs, one of the user's own, and an experiment with a folder of its own."""
    folder = paper.parent / "my runs"
    for job in jobs.row_jobs(experiment.load(paper)):
        if job.row.label == "RoPE":
            write_run(folder / job.name, job.config, records(job.seed))
    write_run(folder / "mine #1", config.Config(encoding="alibi", steps=100), [], step=3)
    own = folder / "own"
    write_run(own / "nope-seed0", config.Config(encoding="nope", steps=10), keys([1.0, 1.0, 0.0, 0.0]))
    entry = {"label": "NoPE", "labels": [], "commands": ["python -m bam_jax.train --workdir=x"]}
    runs = [entry | {"name": f"nope-seed{seed}", "seed": seed} for seed in (0, 1)]
    description = {"title": "Own & only", "command": "python -m bam_jax.sweep x.py", "folder": "x"}
    (own / "experiment.json").write_text(json.dumps(description | {"claims": [], "notes": [], "runs": runs}))
    return folder


@pytest.fixture
def paper(tmp_path):
    return write_paper(tmp_path)


@pytest.fixture
def folder(paper):
    return write_folder(paper)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The site of these."""
    paper = write_paper(tmp_path_factory.mktemp("site"))
    folder = write_folder(paper)
    return site.write(folder, [paper], folder / "report").parent


@pytest.fixture(scope="module")
def found(made, read_pages):
    """Its pages, read, by name."""
    return read_pages(made)


def test_every_page_is_whole_and_every_link_leads_somewhere(made, found):
    assert len(found) == 1 + 1 + 1 + 2 + 2  # index, paper, folder, the runs of both, others
    for name, page in found.items():
        assert page.heads == 1 and len({*page.ids}) == len(page.ids), name
        for link in page.links:
            there = link[1:] in page.ids if link.startswith("#") else unquote(link) in found
            assert there or link.startswith("data:image/png"), (name, link)
    seen, todo = set(), {"index.html"}
    while todo:
        seen |= todo
        todo = {unquote(link) for name in todo for link in found[name].links if link.endswith("html")} - seen
    assert seen == {*found}  # all can be reached
    everything = "".join(path.read_text(encoding="utf-8") for path in made.glob("*.html"))
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # never fetched
    assert {*re.findall(r"\w+://[^\"' <]+", everything)} <= names


def test_pages_say_what_was_measured_and_what_was_not(found):
    index, table = found["index.html"].text, found["paper_table1.html"].text
    best = "Table 1: keys: At 128 <tokens> RoPE finds most: 0.75 [0.00, 1.00] n=2; next is Local 0.00 (1 seed)"
    best += ", and one seed shows no difference."
    assert f"An <invented> paper {best}" in index and " ◐ 8 of 10" in index and best in table
    assert "Own & only 1 of 2" in index
    assert "8 of 10 cells measured; 2 of 3 models trained." in table
    assert "RoPE 1.00 (1.00) [0.00, 1.00] n=2 0.75 (0.50) [0.00, 1.00] n=2 Local 1.00 1 seed 0.00 1 seed" in table
    assert re.search(r"n=2 [^[]* RoPE 3.5 \(3.0\) \[0.6, 21.5\] 3.5 \(4.0\) \[0.6, 21.5\] Late … …", table)
    assert "RoPE 128 <tokens> 0.75 0.00 to 1.00 0.50 +0.25 2 (0: 0.50, 1: 1.00)" in table
    assert "RoPE 0.00 1.00 0.50 RoPE 1.00 1.00 1.00 Local 0.00 1.00 0.00" in table  # by depth and length
    assert "Passkey accuracy by depth and length, 2 depths" in " ".join(found["paper_table1.html"].figures)
    (name,) = [each for each in found if "seed0" in each and each.startswith("run-rope")]
    run = found[name].text
    assert run.count("bam_jax.train") == 1 and "--eval=ruler" in run and '"steps": 10' in run
    assert "A new one" in run and "<inference> 64 12.5 ms 1 0.5 0.25" in run and "shown" not in run
    assert "passkey at 4,096 tokens: no prompt was answered at 64, 128" in run
    assert "mine #1 2×64 64 stopped at step 3 of 100 3.700" in index and "Late 0 not begun" in table
    assert "It belongs to these experiments: Own & only" in found["run-own.nope-seed0.html"].text


def test_a_held_out_loss_stands_beside_the_loss(tmp_path):
    write_run(tmp_path / "run", config.Config(steps=10), [])
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) | {"held_out_loss": 4.25} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = site.write(tmp_path, [], tmp_path / "report").parent
    (page,) = [text for path in made.glob("*.html") if "held out loss" in (text := path.read_text())]
    assert "4.25" in page and "Loss in training and on held-out text" in page
    assert site.write(tmp_path, [], tmp_path / "report").parent == made
    (tmp_path / "index.html").write_text("my own site")
    with pytest.raises(UserError, match="index.html is there, and this command did not write it"):
        site.write(tmp_path, [], tmp_path)
    assert [path.name for path in tmp_path.glob("*.html")] == ["index.html"]


def test_a_status_follows_from_the_cells(folder, paper, tmp_path):
    status = lambda path=paper: read_progress(path, experiment.load(path), folder).status
    planned = {(job.row.label, job.seed): job for job in jobs.row_jobs(experiment.load(paper))}
    late, rope = (folder / planned[label, 0].name / "results.jsonl" for label in ("Late", "RoPE"))
    write = lambda path, lines: path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert status() == Status.PART
    write_run(late.parent, planned["Late", 0].config, records(0))
    assert status() == Status.DONE
    write(late, [each for each in records(0) if each["eval"] != "perplexity"])
    assert status() == Status.PART
    write(late, records(0))
    kept = [each for each in map(json.loads, rope.read_text().splitlines()) if each.get("length") != 128]
    kept += [cell("perplexity", 128, 3.0, windows=[1.0, 1.0], window=64)]
    write(rope, kept)
    assert status() == Status.PART
    wide = {"encoding_options.window": "64"}
    end = {
        "eval": STOPPED,
        "of": "passkey",
        "lengths": [128],
        "after": [32],
        "step": 10,
        "unit": "",
        "prompt": "toy",
        "seed": 0,
    }
    ends = [end | {"overrides": each} for each in ({}, wide)]
    empty = [cell("passkey", 32, 0.0, depth=depth, prompt="toy", seed=0) for depth in (0.0, 1.0)]
    write(rope, [*kept, *ends, *empty, *(each | {"overrides": wide} for each in empty)])
    assert status() == Status.DONE  # nothing more will be measured
    for path in folder.glob("*/results.jsonl"):
        path.unlink()
    assert status() == Status.MISSING
    (tmp_path / "sizes.py").write_text(SIZES)
    assert status(tmp_path / "sizes.py") == Status.NOTHING


def test_heat_maps_are_the_records_of_each_row(folder, paper):
    each = read_progress(paper, experiment.load(paper), folder)
    assert {*paper_page.passkey_grids(each, folder)} == {2}
    grids = paper_page.passkey_grids(each, folder)[2]
    assert grids["RoPE"][:2] == grids["Local"][:2] == (["0.00", "1.00"], ["64 <tokens>", "128 <tokens>"])
    np.testing.assert_array_equal(grids["RoPE"].values, [[1.0, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(grids["Local"].values, [[1.0, 0.0], [1.0, 0.0]])
    first, *columns = each.made.tables[0].columns
    other = dataclasses.replace(first, evaluation=dataclasses.replace(first.evaluation, depths=1))
    table = dataclasses.replace(each.made.tables[0], columns=(other, *columns))
    found = paper_page.passkey_grids(
        dataclasses.replace(each, made=dataclasses.replace(each.made, tables=(table,))), folder
    )
    assert [*found] == [2, 1] and found[1]["RoPE"].columns == ["64 <tokens>"] and len(found[1]["RoPE"].rows) == 1
    ((label, needles),) = paper_page.ruler_grids(each).items()
    assert label == "RoPE" and needles.rows == ["single 1"] and needles.values.tolist() == [[0.5, 0.5]]


def test_curves_are_drawn_of_tables_over_lengths_alone(folder, paper):
    each = read_progress(paper, experiment.load(paper), folder)
    keys, text, needles = (figures.draw_curves(each.made, *b) for b in zip(each.made.tables, each.entries, strict=True))
    assert text is not None and needles is None
    rope, first, second, local, *_ = keys.axes[0].lines
    lines = [line.get_ydata() for line in (rope, first, second, local)]
    np.testing.assert_array_equal(lines, [[1.0, 0.75], [1.0, 0.5], [1.0, 1.0], [1.0, 0.0]])
    assert first.get_linewidth() < rope.get_linewidth() == local.get_linewidth()


@pytest.mark.parametrize("file", ["quickstart", "gpt2_tiny"])
def test_the_command_of_a_run_repeats_its_configuration(file, tmp_path):
    made = config.load(CONFIG.with_name(f"{file}.py"), {"encoding": "cable", "model.heads": 2, "data.source": "a 'b'"})
    (command,) = run_page.training_commands(made, tmp_path / "x")
    overrides = [word for word in shlex.split(command) if word.startswith("--config.")]
    assert config.load(CONFIG, config.from_arguments(overrides)) == made


def test_broken_records_are_named_and_their_pages_left_out(folder, paper, capsys, read_pages):
    (cells,), metrics = folder.glob("rope*seed0*/results.jsonl"), folder / "mine #1" / "metrics.jsonl"
    broken = {cells: ("{", "is not JSON"), metrics: ('{"step": 10}', "has no 'loss'")}
    for path, (line, _) in broken.items():
        path.write_text(path.read_text() + line + "\n")
    written = read_pages(site.write(folder, [paper], folder / "report").parent)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out: ")]
    assert len(said) == 3
    for what, path in ((f"the page of {paper}", cells), (cells.parent, cells), (metrics.parent, metrics)):
        (line,) = [line for line in said if line.startswith(f"left out: {what}: ")]
        assert f"{path.name}, line {len(path.read_text().splitlines())} {broken[path][1]}" in line
        assert line.split() == [word for word in line.split() if word in written["index.html"].text]
    assert not {f"run-{cells.parent.name}.html", "run-mine #1.html", "paper_table1.html"} & {*written}
    assert "run-own.nope-seed0.html" in written
    for each in written.values():
        assert {unquote(link) for link in each.links if link.endswith(".html")} <= {*written}


def test_a_page_that_cannot_be_made_is_left_out_and_no_page_leads_there(folder, paper, monkeypatch, read_pages):
    def refuse(*_):
        raise UserError("a checkpoint cannot be read")

    monkeypatch.setattr(site.paper_page, "page_sections", refuse)
    written = read_pages(site.write(folder, [paper], folder / "report").parent)
    assert f"left out: the page of {paper}: a checkpoint cannot be read" in written["index.html"].text
    assert not any("paper_table1.html" in each.links for each in written.values())


def test_a_site_of_nothing_that_can_be_read_is_one_line(tmp_path, capsys):
    write_run(tmp_path / "a", config.Config(), [])
    (tmp_path / "a" / "config.json").unlink()
    (tmp_path / "a" / "config.json").symlink_to("nowhere")
    with pytest.raises(UserError, match=f"^left out: {tmp_path / 'a'}: .*config.json is a link"):
        site.write(tmp_path, [], tmp_path / "report")
    with pytest.raises(UserError, match="config.json is a link"):
        results.read_run(tmp_path / "a")
    assert not (tmp_path / "report").exists() and not capsys.readouterr().err


DOCS = [ROOT / "site" / name for name in ("index.html", "encodings.html", "api/encodings.html")]
"""Pages of the documentation, which are there after `make docs`."""


@pytest.mark.full
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_screen(made, title_of, width):
    pages = [*sorted(made.glob("*.html")), *(path for path in DOCS if path.exists())]
    frames = "".join(f'<iframe src="{path.as_uri()}" width="{width}" height="900"></iframe>' for path in pages)
    script = "[...document.querySelectorAll('iframe')].map(f => f.contentDocument.documentElement.scrollWidth)"
    page = f"<body>{frames}<script>onload = () => document.title = {script}</script></body>"
    said = title_of(f"<title></title><style>iframe {{ border: none }}</style>{page}")
    widths = [int(each) for each in said.split(",")]
    # The frame's own scroll bar takes some of its width.
    assert {path.name: each for path, each in zip(pages, widths, strict=True) if each > width} == {}
    assert all(each > width - 20 for each in widths)  # they were laid out


def test_papers_are_not_looked_at_unless_they_are_asked_for(folder, tmp_path, monkeypatch, capsys, read_pages):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(site.experiment, "load", None)
    main([str(folder), f"--out={tmp_path / 'site'}"])
    said = capsys.readouterr()
    assert said.out == f"wrote {tmp_path / 'site' / 'index.html'}\n" and "paper" not in said.err
    pages = read_pages(tmp_path / "site")
    assert {"index.html", "folder-own.html", "run-mine #1.html"} <= {*pages}
    assert "python -m bam_jax.train --config=" in pages["run-mine #1.html"].text
    assert "toy scale" not in pages["index.html"].text


def test_options_that_do_not_apply_are_named(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="holds one experiment, whose report has no options"):
        main([str(folder / "own"), "--scale=toy"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--scale=small is that of experiment files"):
        main([str(folder), "--scale=small"])
    with pytest.raises(UserError, match="has no tables of a paper"):
        site.write(folder, [ROOT / "experiments" / "quickstart.py"], folder / "report")
    assert not (folder / "report").exists()


def test_without_matplotlib_nothing_is_made(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for each in (folder, folder / "own"):
        before = {*each.rglob("*")}
        with pytest.raises(UserError, match="figures"):
            main([str(each)])
        assert {*each.rglob("*")} == before
