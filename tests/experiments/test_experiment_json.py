"""The description that a sweep leaves in a folder of runs."""

import json

import pytest

from bam_jax.evals.harness import Harness
from bam_jax.evals.passkey import Passkey
from bam_jax.evals.ruler import Ruler
from bam_jax.experiments.experiment_json import read_description
from bam_jax.system.errors import UserError


def written(folder, evaluation):
    run = {"name": "a-seed0", "label": "a", "seed": 0, "labels": [], "commands": ["c"], "evaluations": [evaluation]}
    made = {"title": "t", "command": "c", "folder": "f", "claims": [], "notes": [], "runs": [run]}
    (folder / "experiment.json").write_text(json.dumps(made))
    return read_description(folder)["runs"][0]["evaluations"]


@pytest.mark.parametrize(
    "evaluation",
    [
        Passkey((64, 128), depths=5, patience=2, label="mine"),
        Ruler((4096,), tasks=("niah_single_1",), essays="folder"),
        Harness((64,), tasks=("arc_easy", "mmlu"), data="invented", shots=5),
    ],
)
def test_an_evaluation_is_read_as_it_was_written(tmp_path, evaluation):
    assert written(tmp_path, evaluation.to_dict()) == [evaluation]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "passkee"}, "did you mean 'passkey'"),
        ({"lengths": [0]}, r"lengths\[0\]=0, which must be `int` >= 1"),
        ({"trials": "2"}, "--trials='2', which must be `int`"),
        ({"prompt": "pape"}, "did you mean 'paper'"),
        ({"dephts": 4}, "'dephts' is unknown"),
        ({"depths": ...}, "'depths' is missing"),
    ],
)
def test_an_evaluation_that_none_could_carry_out_is_named(tmp_path, change, says):
    changed = {name: value for name, value in (Passkey((64,)).to_dict() | change).items() if value is not ...}
    with pytest.raises(UserError, match=f"experiment.json has .*{says}.*run the sweep again"):
        written(tmp_path, changed)
