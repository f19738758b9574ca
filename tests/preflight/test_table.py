"""What axes of a mesh leave of what a device holds."""

from pathlib import Path

import jax
import pytest

from bam_jax.preflight import table
from bam_jax.preflight.compiled import Compiled
from bam_jax.system.errors import UserError

QUICKSTART = str(Path(__file__).parents[2] / "configs/quickstart.py")
SLICES = ["cpu:2,data=2", "cpu:8,data=8", "cpu:8,data=2,fsdp=2,context=2"]


def test_what_axes_leave(capsys, monkeypatch):
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")

    def compiled(config, mesh, name):
        """What does not go with tokens is 1 GB; a row is 1 MB on one device."""
        size = dict(mesh.shape)
        arguments = {"parameters": 4_000_000 // size["fsdp"], "optimizer": 8_000_000 // size["fsdp"], "batch": 1}
        shares = size["data"] * size["fsdp"] * size["context"]
        return Compiled(arguments=arguments, temporaries=1e9 + 1e6 * config.batch / shares)

    monkeypatch.setattr(table, "_compile", compiled)
    assert table.main([f"--config={QUICKSTART}", "--config.batch=16", *SLICES]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        [SLICES[0], "4.0 MB", "8.0 MB", "1.00", "1", "8.0 MB", "1.00", "1"],
        [SLICES[1], "4.0 MB", "8.0 MB", "1.00", "1", "2.0 MB", "4.00", "4"],
        [SLICES[2], "2.0 MB", "4.0 MB", "2.00", "2", "2.0 MB", "4.00", "4"],
    ]


def test_a_batch_that_does_not_fit_is_said(monkeypatch):
    monkeypatch.setattr(table, "compile_step", lambda *_: Compiled(temporaries=1, refused="out of memory"))
    with pytest.raises(UserError, match=r"rows do not fit cpu:1: out of memory; set a smaller config.batch"):
        table.main([f"--config={QUICKSTART}", "--config.model.layers=1", "cpu:1"])
