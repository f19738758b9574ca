"""The command that times the compiler: what it compares, and that what it counts is what was compiled."""

import re
from pathlib import Path

import pytest

from bam_jax import config as configs
from bam_jax.system.errors import UserError
from benchmarks import compile_time
from benchmarks.compile_time import Cost

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.py"
SMALL = {"model.layers": 4, "model.width": 16, "model.hidden": 16, "model.scan": True, "batch": 2, "ssmax": "off"}


def test_ratios_are_to_the_mean_of_equal_layers_and_to_each():
    turns = iter([Cost(2.0, 100), Cost(4.0, 300), Cost(6.0, 300), Cost(9.0, 100), Cost(4.0, 300), Cost(60.0, 300)])
    names = [*compile_time.equal_layers("rope/rope/bam"), "rope/rope/bam"]
    costs = compile_time.medians({name: lambda: next(turns) for name in names}, rounds=2)
    assert costs == {"rope": Cost(5.5, 100), "bam": Cost(4.0, 300), "rope/rope/bam": Cost(33.0, 300)}
    assert [line.split()[:2] for line in compile_time.report(["rope/rope/bam"], costs)][-3:] == [
        ["6.95", "1.50"],
        ["6.00", "3.00"],
        ["8.25", "1.00"],
    ]


@pytest.mark.full
def test_the_compiler_sees_one_layer_of_each_run():
    cost = lambda encoding, layers=4: compile_time.compile_once(
        configs.load(CONFIG, SMALL | {"encoding": encoding, "encoding_options": {}, "model.layers": layers})
    )
    nope, pattern = cost("nope"), cost("nope/nope/nope/bam")
    assert nope.seconds > 0 and 1.3 < pattern.instructions / nope.instructions < 3
    assert cost("nope:window=8/nope", 8).instructions < 1.3 * nope.instructions


def test_the_command_prints_a_line_for_each(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_time, "compile_once", lambda *of: asked.append(of) or Cost(1.0, 10))
    sizes = [f"--config.{name}={value}" for name, value in SMALL.items()]
    compile_time.main([f"--config={CONFIG}", "--pattern=nope:window=8/nope", "--rounds=1", *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a training step of 4 layers for cpu")
    assert [re.sub(".*  ", "", line) for line in lines[1:4]] == ["nope:window=8", "nope", "nope:window=8/nope"]
    assert len(lines) == 8
    assert [(config.encoding, config.model.layers, chip) for config, chip in asked] == [
        ("nope:window=8", 4, None),
        ("nope", 4, None),
        ("nope:window=8/nope", 4, None),
    ]
    with pytest.raises(UserError, match="has 2 places, which must divide"):
        compile_time.main([f"--config={CONFIG}", "--pattern=nope/rope", *sizes, "--config.model.layers=3"])
