"""Attention in small tiles."""

import pytest

from bam_jax.attention.cpu import blocks
from bam_jax.attention.pallas import gpu, tpu_grid


@pytest.fixture
def float32_on_gpus(monkeypatch):
    """Interpreted, a product of float32 is exact: what is compared is the kernel's arithmetic, not its rounding."""
    monkeypatch.setattr(gpu, "_DTYPES", (*gpu._DTYPES, "float32"))


@pytest.fixture
def small_tiles(float32_on_gpus, monkeypatch):
    """Several blocks on either side; a query block spans no whole key block."""
    for module in (blocks, tpu_grid):
        monkeypatch.setattr(module, "_block_sizes", lambda q, k: (4, 6))
