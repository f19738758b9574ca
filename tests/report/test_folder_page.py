"""The report's numbers and files, from invented results."""

import json

import numpy as np
import pytest

from bam_jax import config, render
from bam_jax.analysis import figures, heads
from bam_jax.experiments import results
from bam_jax.render.curves import Curve
from bam_jax.render.learned import Heads
from bam_jax.report import folder_page as report
from bam_jax.report.__main__ import main
from bam_jax.report.figures import length_curves, passkey_floors, position_curves
from bam_jax.report.page import Estimated
from bam_jax.system.errors import UserError


def cell(evaluation, length, value, *, depth=None, n=1, overrides=None):
    """A line of results.jsonl."""
    prompts = {"prompt": "toy", "seed": 0} if evaluation == "passkey" else {}
    where = {"eval": evaluation, "length": length, "depth": depth, "step": 2000, "overrides": overrides or {}}
    return where | prompts | {"value": value, "n": n, "unit": "", "commit": "abc1234", "seconds": 0.5}


def entry(name, label, seed, labels=()):
    """A run in experiment.json."""
    train, evaluate = f"bam_jax.train --workdir=x/{name}", f"bam_jax.evaluate --run={name} --eval=passkey"
    commands = [f"python -m {train}", f"python -m {evaluate}"]
    return {"name": name, "label": label, "seed": seed, "labels": labels, "commands": commands}


@pytest.fixture
def folder(tmp_path):
    """Two seeds of BAM SSMax, RoPE with a window at evaluation, and a row that has not begun."""
    window = [{"encoding_options.window": 64}, "Local RoPE"]
    description = {
        "title": "An <invented> experiment",
        "command": "python -m bam_jax.sweep invented.py",
        "folder": str(tmp_path),
        "claims": [
            {"label": "BAM SSMax", "length": 128, "least": 0.9, "most": 1.0},
            {"label": "RoPE", "length": 128, "least": 0.0, "most": 0.1},
            {"label": "RoPE", "length": 256, "least": 0.0, "most": 0.1},
            {"label": "RoPE", "length": 128, "least": 0.3, "most": 0.5},
        ],
        "notes": ["Be honest about `this`."],
        "runs": [
            entry("bam-seed0", "BAM SSMax", 0),
            entry("bam-seed1", "BAM SSMax", 1),
            entry("rope-seed0", "RoPE", 0, [window]),
            entry("cable-seed0", "CABLE", 0),
        ],
    }
    (tmp_path / "experiment.json").write_text(json.dumps(description))
    wide = {"encoding_options.window": "64"}
    cells = {
        "bam-seed0": [cell("passkey", n, 1.0, depth=d) for n in (64, 128) for d in (0.0, 1.0)],
        "bam-seed1": [cell("passkey", n, d, depth=d) for n in (64, 128) for d in (0.0, 1.0)],
        "rope-seed0": [
            cell("passkey", 128, 0.0, depth=0.0),
            cell("passkey", 128, 1.0, depth=0.0, overrides=wide),
            cell("passkey", 128, 0.5, depth=0.0, overrides={"encoding_options.base_scale": "50.0"}),
            cell("perplexity", 64, 9.0) | {"window": 64, "windows": [2.0]},
            cell("perplexity", 128, 4.0, n=3) | {"window": 64, "windows": [1.0, 2.0]},
            cell("perplexity", 128, 4.0) | {"window": 64, "windows": [3.0, 4.0]},
        ],
    }
    for name, lines in cells.items():
        run = tmp_path / name
        run.mkdir()
        encoding = "bam" if name.startswith("bam") else "rope"
        (run / "config.json").write_text(config.to_json(config.Config(encoding=encoding)))
        (run / "metrics.jsonl").write_text(json.dumps({"step": 2000, "loss": 1.25, "seconds": 30.0}) + "\n")
        (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn": ')
    return tmp_path


def test_curves_are_means_by_label_and_seed(folder):
    _, runs = results.read_sweep(folder)
    assert length_curves(runs, "passkey") == {
        "BAM SSMax": Curve(
            {0: {64: 1.0, 128: 1.0}, 1: {64: 0.5, 128: 0.5}},
            {64: (0.0, 0.75, 1.0), 128: (0.0, 0.75, 1.0)},
            "bam",
        ),
        "RoPE": Curve({0: {128: 0.0}}, {}, "rope"),
        "Local RoPE": Curve({0: {128: 1.0}}, {}, "rope"),
        "RoPE, encoding_options.base_scale=50": Curve({0: {128: 0.5}}, {}, "rope"),
    }
    assert length_curves(runs, "perplexity") == {"RoPE": Curve({0: pytest.approx({64: 9.0, 128: 4.0})}, {}, "rope")}


def test_a_key_beside_its_question_is_one_of_its_depths_and_positions_are_windows_of_the_longest_sequences(folder):
    _, runs = results.read_sweep(folder)
    assert passkey_floors(runs) == {64: 0.5, 128: 0.5}
    assert passkey_floors(run for run in runs if run.label == "RoPE") == {128: 0.0}
    assert position_curves(runs) == {"RoPE": Curve({0: pytest.approx({64: np.exp(1.5), 128: np.exp(2.5)})}, {}, "rope")}


def test_weights_are_the_prior_of_definition_2_and_a_mean_weighs_every_prompt_the_same():
    assert results.mean([cell("passkey", 64, 1.0, n=3), cell("passkey", 64, 0.0)]) == 0.75
    known = Heads(np.array([[0.0, 1.0]]), np.log([[1.0, 0.5]]), np.zeros((1, 2)))
    uniform, laplace = figures.prior_weights(known, 4)[0]
    np.testing.assert_allclose(uniform, 0.25, rtol=1e-5)
    expected = np.exp(-0.5 * np.array([3.0, 2.0, 1.0, 0.0]))
    np.testing.assert_allclose(laplace, expected / expected.sum(), rtol=1e-5)


def test_the_report_is_one_page_that_says_every_seed_and_what_is_missing(folder, read_pages):
    html = report.write(folder).read_text()
    (shown,) = read_pages(folder).values()
    assert shown.links and all(link.startswith(("#", "data:")) for link in shown.links)  # nothing from a network
    said = shown.text.replace(" ", "")
    for row in (
        "BAM SSMax at 2× NO at least 0.9 0.75 [0.00, 1.00] n=2 1.00 0.50",
        "RoPE at 2× yes at most 0.1 0.00 1 seed 0.00",
        "RoPE at 4× not measured at most 0.1 –",
        "RoPE at 2× NO at least 0.3, at most 0.5 0.00 1 seed 0.00",
        "at 2×, best first: Local RoPE 1.00 (1 seed); BAM SSMax 0.75 [0.00, 1.00] n=2; RoPE,",
        "NOT THERE YET: cable-seed0",
    ):
        assert row.replace(" ", "") in said
    ends = "at 2× BAM SSMax 0.75, RoPE 0.00, Local RoPE 1.00, RoPE, encoding_options.base_scale=50 0.50."
    assert f'aria-label="Passkey accuracy against length: means over seeds, {ends}"' in html
    assert 'aria-label="Passkey accuracy by length and depth: mean over every depth, at 2× BAM SSMax 0.75."' in html
    markdown = (folder / "report.md").read_text()
    assert "| Local RoPE | – | 1.00 1 seed |" in markdown and "| BAM SSMax | 1 | 0.50 | 0.50 |" in markdown
    for name in ("passkey", "depths", "perplexity"):
        assert f"(figures/{name}.png)" in markdown and (folder / "figures" / f"{name}.png").exists()


def test_perplexities_are_divided_seed_by_seed():
    ours = Curve({0: {64: 2.0, 128: 3.0}, 1: {64: 4.0}, 2: {64: 8.0}}, {})
    theirs = Curve({9: {64: 1.0}, 2: {64: 8.8}, 0: {64: 2.2, 128: 3.3}, 1: {64: 4.4}}, {})
    alone = Curve({7: {64: 2.0}, 0: {64: 2.0}}, {})
    (section,) = report._ratio_sections({"ours": ours, "theirs": theirs, "alone": alone}, "ours", 64)
    assert section.table.head == ["", "1×", "2×"]
    assert section.table.rows == [["theirs", Estimated("1.100", "[1.100, 1.100] n=3"), "–"]]  # one seed has both at 2×
    assert report._ratio_sections({"ours": ours, "alone": alone}, "ours", 64) == []
    assert report._ratio_sections({"alone": alone}, "ours", 64) == []


def test_a_run_that_cannot_be_read_is_left_out_and_named(folder, capsys):
    (folder / "bam-seed1" / "config.json").write_text("{")
    main([str(folder)])
    said = capsys.readouterr()
    assert said.out.startswith("wrote ") and said.err.startswith("left out: bam-seed1: ") and said.err.count("\n") == 1
    text = (folder / "report.md").read_text()
    assert said.err.strip() in text and "RoPE" in text and "NOT THERE YET: bam-seed1, cable-seed0" in text
    for path in folder.glob("*/results.jsonl"):
        path.unlink()
    assert "not measured" in report.write(folder).read_text()


def test_a_report_on_nothing_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match=r"has no runs; make some with python -m bam_jax.train"):
        main([str(tmp_path)])
    with pytest.raises(UserError, match=r"no experiment.json; run python -m bam_jax.sweep"):
        report.write(tmp_path)


@pytest.mark.full
def test_what_a_model_has_learned_has_tables_and_figures(folder, monkeypatch):
    known = Heads(np.array([[-2.0, 3.0]]), np.zeros((1, 2)), np.zeros((1, 2)))
    monkeypatch.setattr(figures, "learned_priors", lambda run: known)
    for name in ("bam-seed0", "bam-seed1"):
        (folder / name / "checkpoints" / "2000").mkdir(parents=True)
    report.write(folder)
    markdown = (folder / "report.md").read_text()
    assert "| 0, 0 | -2.00 | 0.00 | 0.1" in markdown and "| 0, 1 | 3.00 | 0.00 | 1.00 |" in markdown
    assert "| BAM SSMax | 1 | 0 | -2.00, 0.00 | 3.00, 0.00 |" in markdown
    assert "Not measured: " in markdown and "Not drawn: " in markdown  # there is no checkpoint
    windows = {"positions": [8, 16], "kl_content": [0.1, 0.3], "kl_prior": [1.0, 2.0], "entropy": [0.5, 0.5]}
    records = [
        {"layer": 0, "head": head, "class": kind, "shape": shape, "log_scale": 0.0, "loc": 0.0, "tokens": 16}
        | {"reach": {"64": [1, 2, 3], "4096": [4, 5, 1234]}}
        | windows
        for head, (kind, shape) in enumerate([("retrieval", -2.0), ("local", 3.0)])
    ]
    monkeypatch.setattr(heads, "measure", lambda run, progress: records)
    drawn = render.attention({"local": np.tril(np.full((4, 4), 0.25))}, (0, 2))
    monkeypatch.setattr(figures, "draw_attention", lambda run: drawn)
    report.write(folder)
    markdown = (folder / "report.md").read_text()
    assert "| 0, 0 | retrieval | -2.00 | 0.00 | 0.00 | 1 2 3 | 4 5 1,234 | 2.20 | 0.20 | 1.50 |" in markdown
    for name in ("coupling", "attention"):
        assert f"(figures/{name}.png)" in markdown and (folder / "figures" / f"{name}.svg").exists()
