"""Runs side by side: what makes a method, what its seeds give, what is missing, and the files."""

import csv
import json
import math

import numpy as np
import pytest

import bam_jax
from bam_jax import compare
from bam_jax import config as configs
from bam_jax.data.tokenizers import tokenizer
from bam_jax.experiments import statistics
from bam_jax.report import __main__ as report
from bam_jax.report import comparison
from bam_jax.system import jsonl
from bam_jax.system.errors import UserError
from bam_jax.training import run_folder

KEYS = {"eval": "passkey", "unit": "accuracy", "prompt": "toy", "seed": 0}
TEXT = {"eval": "perplexity", "unit": "perplexity per token", "window": 64, "windows": [1.0]}


@pytest.fixture
def run(tmp_path):
    """Writes a run that has measured something: records are changes of `KEYS` and of `TEXT`."""

    def write(name, *cells, **fields):
        config = configs.override(configs.Config(context=64), fields)
        with run_folder.claim(tmp_path / "runs" / name, config, tokenizer("char")):
            pass
        for cell in cells:
            record = {"length": 64, "n": 10, "step": 1, "overrides": {}, "first": 0, **cell}
            if record["eval"] == "perplexity":
                record["windows"] = [1.0] * math.ceil(record["length"] / record["window"])
            jsonl.append(tmp_path / "runs" / name / "results.jsonl", record)
        return tmp_path / "runs" / name

    return write


@pytest.fixture
def six(run, tmp_path):
    """Two encodings with three seeds each, keys at two lengths and depths."""
    for encoding, values in {"alibi": (0.1, 0.2, 0.3), "bam": (1.0, 0.8, 1.0)}.items():
        for seed, value in enumerate(values):
            cells = [KEYS | {"length": n, "depth": d, "value": value} for n in (64, 4096) for d in (0.0, 1.0)]
            run(f"{encoding}{seed}", *cells, encoding=encoding, seed=seed)
    return tmp_path / "runs"


def frame(folder):
    return bam_jax.results(str(folder))


def test_seeds_count_together_and_have_their_interval(six):
    (found,) = comparison.compare(frame(six))
    assert (found.title, found.unit, found.context, found.lengths) == ("passkey", "accuracy", 64, [64, 4096])
    assert {*found.curves} == {"alibi", "bam"} and found.floor == {64: 0.5, 4096: 0.5}
    for label, values in {"alibi": [0.1, 0.2, 0.3], "bam": [1.0, 0.8, 1.0]}.items():
        assert found.curves[label].values(64) == values
        expected = statistics.accuracy_interval(values, 60)  # prompts of three seeds at two depths
        np.testing.assert_allclose(found.curves[label].intervals[64], expected)


def test_the_newest_checkpoint_counts_and_perplexities_have_a_geometric_mean(run, tmp_path):
    text = [TEXT | {"value": 2.0, "n": 1}, TEXT | {"value": 4.0, "n": 3, "first": 1}]
    run("a", TEXT | {"value": 9.0, "step": 1}, *({**each, "step": 2} for each in text))
    ((found,),) = [comparison.compare(frame(tmp_path / "runs"))]
    assert found.curves["bam"].middle(64) == pytest.approx((2.0 * 4.0**3) ** (1 / 4))


@pytest.mark.parametrize(
    ("runs", "labels", "also"),
    [
        ([{}, {"seed": 1}], ["bam", "bam"], []),
        (
            [{"encoding": "alibi", "ssmax": "on"}, {"encoding": "cable", "ssmax": "off"}],
            ["alibi", "cable"],
            ["ssmax is on in alibi; off in cable."],
        ),
        ([{"ssmax": "on"}, {"ssmax": "off"}], ["bam, ssmax=on", "bam, ssmax=off"], []),
        (
            [{"encoding_options": {"init": "alibi"}}, {"model.layers": 4}, {"encoding": "nope"}],
            ["bam, layers=2, init=alibi", "bam, layers=4", "nope, layers=2"],
            [],
        ),
        ([{"log_every": 7, "seed": 1}, {"mesh.data": 2, "optimizer.accumulate": 2}], ["bam", "bam"], []),
        (
            [{"start": "runs/x0"}, {"start": "runs/x1", "seed": 1}, {}],
            ["bam, start=True", "bam, start=True", "bam, start=False"],
            [],
        ),
    ],
)
def test_a_method_is_what_tells_runs_apart(run, tmp_path, runs, labels, also):
    for number, fields in enumerate(runs):
        run(f"r{number}", KEYS | {"depth": 0.0, "value": 0.5}, **fields)
    both = frame(tmp_path / "runs")
    found = comparison.label(both)
    assert [found[str(tmp_path / "runs" / f"r{number}"), f"r{number}"] for number in range(len(runs))] == labels
    assert comparison.others(both) == also


def test_fields_that_are_named_pool_the_others(run, tmp_path):
    cell = KEYS | {"depth": 0.0, "value": 0.5}
    for name, fields in {"a": {"model.layers": 2}, "b": {"model.layers": 4, "seed": 1}}.items():
        run(name, cell, **fields)
    both = frame(tmp_path / "runs")
    assert len({*comparison.label(both).values()}) == 2
    assert {*comparison.label(both, ["encoding"]).values()} == {"bam"}
    assert comparison.others(both, ["encoding"]) == ["model.layers is 2 in bam; 4 in bam."]
    with pytest.raises(UserError, match="--by=layer is no field of these runs; did you mean 'model.layers'|known"):
        comparison.label(both, ["layer"])
    run("c", cell, **{"model.layers": 4})
    with pytest.raises(UserError, match=r"a and .*c have the same seed and differ in model.layers; add that to --by"):
        comparison.label(frame(tmp_path / "runs"), ["encoding"])


def test_one_run_in_two_places_is_refused(run, tmp_path):
    for name in ("a", "b"):
        run(name, KEYS | {"depth": 0.0, "value": 0.5})
    with pytest.raises(UserError, match="a and .*b have the same seed and are one run; leave one of them out"):
        comparison.compare(frame(tmp_path / "runs"))


def test_what_some_lack_is_named_with_its_command(six, run):
    run("cable", KEYS | {"depth": 0.0, "value": 0.5}, TEXT | {"value": 3.0}, encoding="cable")
    commands = comparison.missing(frame(six))
    asked = f"python -m bam_jax.evaluate --run={six}/cable --eval=passkey --lengths=4096 --depths=2 --trials=10"
    assert asked in commands and len(commands) == 1 + 6
    assert f"python -m bam_jax.evaluate --run={six}/bam0 --eval=perplexity --lengths=64" in commands


def test_a_figure_has_a_line_for_each_method(six):
    figure = bam_jax.plot_lengths(frame(six))
    (axes,) = figure.axes
    assert {"alibi", "bam"} <= {line.get_label() for line in axes.lines} and axes.get_ylabel() == "accuracy"
    assert 64 in {float(line.get_xdata()[0]) for line in axes.lines if line.get_xdata()[0] == line.get_xdata()[-1]}
    with pytest.raises(UserError, match="'passkeys' cannot be drawn against length; did you mean 'passkey'"):
        bam_jax.plot_lengths(frame(six), "passkeys")


def test_evaluations_are_told_apart_by_task_and_by_changes(run, tmp_path):
    ruler = {"eval": "ruler", "unit": "accuracy", "seed": 0, "value": 0.5}
    changed = {"overrides": {"encoding_options.factor": 4.0}}
    run("a", ruler | {"task": "one"}, ruler | {"task": "two"}, KEYS | {"depth": 0.0, "value": 0.5} | changed)
    found = {each.title: [*each.curves] for each in comparison.compare(frame(tmp_path / "runs"))}
    assert found == {
        "passkey": ["bam, encoding_options.factor=4"],
        "ruler (one)": ["bam"],
        "ruler (two)": ["bam"],
    }


def test_the_command_prints_and_writes_tables(six, run, command, refused, tmp_path):
    out = tmp_path / "out"
    ask = compare.main, *(str(path) for path in sorted(six.iterdir())), f"--out={out}"
    status, said, _ = command(*ask)
    assert not status and "| alibi | 0.20 [0.00, 0.45] n=3 |" in said and "every seed" not in said
    assert {path.name for path in out.iterdir()} == {*(f"compare.{x}" for x in ("html", "md", "csv", "tex")), "figures"}
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert [(row["method"], row["length"], row["seeds"]) for row in rows] == [
        *(("alibi", n, "3") for n in ("64", "4096")),
        *(("bam", n, "3") for n in ("64", "4096")),
    ]
    assert r"alibi & $0.20\,[0.00, 0.45]$ &" in (out / "compare.tex").read_text()
    run("none", encoding="nope")
    status, said, _ = command(compare.main, *(str(path) for path in sorted(six.iterdir())), f"--out={out}")
    assert not status, "its own files are replaced"
    assert f"--run={six}/none --eval=passkey --lengths=64,4096" in said
    (out / "compare.html").write_text("mine")
    assert "this command did not write it" in refused(*ask)
    assert "is not there; give folders" in refused(compare.main, str(tmp_path / "nothing"))
    assert "has no results" in refused(compare.main, str(six / "none"))


def test_options_may_stand_between_runs(six, command, monkeypatch):
    monkeypatch.chdir(six)
    first, *rest = sorted(path.name for path in six.iterdir())
    status, said, _ = command(compare.main, first, "--out=../out", "--by= encoding , ssmax", *rest)
    assert not status and said.count("n=3") == 4
    assert not command(compare.main, "--out=../out", "--", first)[0], "which ends the options"


def test_what_an_earlier_comparison_wrote_is_no_run(six, command, monkeypatch):
    monkeypatch.chdir(six.parent)
    ask = lambda: command(compare.main, *(f"runs/{path.name}" for path in sorted(six.iterdir())))
    assert not ask()[0] and (six / "compare" / "compare.html").exists()
    status, said, errors = ask()
    assert not status and said.count("n=3") == 4 and "left out runs/compare, which has no runs" in errors


@pytest.mark.parametrize("places", [["runs"], ["runs/*"], ["runs/bam0", "runs/none"]])
def test_runs_without_measurements_are_listed_wherever_they_are_found(six, run, command, monkeypatch, places):
    monkeypatch.chdir(six.parent)
    run("none", encoding="nope")
    status, said, errors = command(compare.main, *places, "--out=out")
    assert not status and "--run=runs/none --eval=passkey --lengths=64,4096" in said and "left out" not in errors


def test_a_run_that_several_paths_lead_to_counts_once(six, run):
    (six.parent / "link").symlink_to(six)
    once, paths = frame(six), [str(six), f"{six}/", str(six / "bam0"), str(six.parent / "link")]
    again = bam_jax.results(paths)
    assert again.drop(columns="path").equals(once.drop(columns="path"))
    odd = run("[x]", KEYS | {"depth": 0.0, "value": 0.5})
    assert [*bam_jax.results(odd)["name"]] == ["[x]"], "a name, not a pattern"


def test_mistakes_are_named(six, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(six.parent)
    for wrong in ("", "encoding,"):
        assert "--by= is no field of these runs" in refused(compare.main, "runs", f"--by={wrong}")
    assert "--out: is empty; give a path" in refused(compare.main, "runs", "--out=")
    assert "error: '' is not there" in refused(compare.main, "")
    with pytest.raises(UserError, match="the list of paths is empty"):
        bam_jax.results([])
    assert [*six.parent.iterdir()] == [six]
    bam_jax.plot_lengths(frame(six), "passkey", by="encoding")
    with pytest.raises(UserError, match="nothing is measured"):
        bam_jax.plot_lengths(frame(six).iloc[:0], "passkey")
    with pytest.raises(UserError, match="'passkey' is measured at 64 tokens alone; evaluate it at several --lengths"):
        bam_jax.plot_lengths(frame(six).query("length == 64"), "passkey")
    for wrong in (frame(six)[["eval", "value"]], "runs"):
        with pytest.raises(UserError, match="the frame has no column 'config.context'; give rows of bam_jax.results"):
            bam_jax.plot_lengths(wrong, "passkey")


def test_a_strangers_option_is_text(run, tmp_path, command):
    for seed, value in enumerate(("<b>&_$", "plain")):
        run(f"r{seed}", KEYS | {"depth": 0.0, "value": 0.5}, encoding_options={"init": value})
    assert not command(compare.main, str(tmp_path / "runs"), f"--out={tmp_path / 'out'}")[0]
    assert "<b>" not in (tmp_path / "out" / "compare.html").read_text()
    assert r"init=<b>\&\_\$" in (tmp_path / "out" / "compare.tex").read_text()
    assert json.dumps("<b>&_$")[1:-1] in (tmp_path / "out" / "compare.csv").read_text()


def test_the_report_of_ones_own_runs_begins_with_it(six, command):
    status, _, said = command(report.main, str(six))
    assert not status, said
    page = (six / "report" / "index.html").read_text()
    assert page.index("Passkey") < page.index("Your runs: 6") and "0.20" in page and "[0.00, 0.45] n=3" in page
