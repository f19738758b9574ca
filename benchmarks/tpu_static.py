"""Compile the attention kernels for TPUs, without one, and count their instructions.

    python -m benchmarks.tpu_static --chips=v5e,v6e --biases=uniform,ggd [--encoder]

For each chip, bias and kernel it prints the instruction bundles of one tile with a mask, those of a `whole` tile, which needs no
mask, and the registers spilled to memory and read back. The records also contain the memory of forward and backward besides the
operands. Bundles are not cycles: every other branch counts once, and transfers do not count. Compare only kernels of the same
shape. It needs libtpu, which is in the extras `compilers` and `tpu`. With `--encoder`, queries see both sides of rows that end in
padding. In decoders, the default, they see only what comes before them.

If tokamax is installed (the extra `bench`), its splash attention is compiled as well, causal, without a bias, in tiles of the
same size; its backward pass is one kernel for all gradients. With `--gaps`, positions are such that every bias is a formula in
the kernel. Without it, every relative bias except ALiBi comes in strips. The records in benchmarks/records are made by

    python -m benchmarks.tpu_static --json=benchmarks/records/tpu_static.json
    python -m benchmarks.tpu_static --gaps --chips=v5e,v6e --biases=uniform,ggd,kerple_log \\
        --json=benchmarks/records/tpu_static_gaps.json
    python -m benchmarks.tpu_static --encoder --biases=uniform,alibi,ggd,cable --json=benchmarks/records/tpu_static_encoder.json

`--steps` compiles nothing. It counts the grid steps for long texts, in the forward pass and in the pass for the gradients of
keys, and the number of tiles to compute:

    python -m benchmarks.tpu_static --steps --json=benchmarks/records/tpu_steps.json
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import dataclasses
import functools
import importlib.util
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

from bam_jax import biases
from bam_jax.attention import Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.pallas import tpu_grid
from bam_jax.encodings import Dims, spec
from bam_jax.system import files, jsonl

CHIPS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
KERNELS = ("forward_kernel", "query_kernel", "key_kernel")

SPLASH = "tokamax"
SPLASH_KERNELS = ("splash_mha_fwd_residuals", "splash_mha_dkv")

_number: Callable[..., Any] = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
BIASES = {
    "uniform": lambda heads: biases.Uniform(),
    "alibi": lambda heads: biases.ALiBi(_number(heads)),
    "ggd": lambda heads: biases.GeneralisedGaussian(_number(heads), _number(heads), _number(heads)),
    "kerple_log": lambda heads: biases.KerpleLog(_number(heads), _number(heads)),
    "t5_distance": lambda heads: biases.T5Distance(_number(heads, 1025)),
    "cable": lambda heads: biases.CABLE(),
    "inkling": lambda _: biases.Mixture(biases.Band(_number(16, 1024))),
    "bam_mixture": lambda _: biases.Mixture(biases.GeneralisedGaussian(_number(8), _number(8), _number(8))),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The attention that is compiled: rows of one document, in bfloat16, nothing skipped."""

    length: int = 4096  # tokens
    heads: int = 8
    width: int = 64
    causal: bool = True  # otherwise both sides are visible, and the last tokens are padding
    gaps: bool = False  # whether positions have gaps, so that no bias comes in strips


def compile_for(chip: str, f: Any, *arguments: Any) -> Any:
    """Compile a function for one TPU, which need not be present."""
    here = SingleDeviceSharding(_device(chip))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments)
    with use_abstract_mesh(mesh_for(chip)):
        return jax.jit(f).lower(*shapes).compile()


def mesh_for(chip: str) -> AbstractMesh:
    """The mesh under which `jax.sharding.use_abstract_mesh` traces for one TPU."""
    device = _device(chip)
    described = AbstractDevice(device_kind=device.device_kind, num_cores=device.num_cores, platform="tpu")
    return AbstractMesh((), (), abstract_device=described)


def _device(chip: str) -> Any:
    if chip not in CHIPS:
        raise errors.UserError(f"no chip {chip!r}: {errors.nearest(chip, CHIPS)}")
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    return topologies.get_topology_desc(platform="tpu", topology_name=CHIPS[chip]).devices[0]


def training_step(shape: Shape, bias: Any, fixed: Sequence[str] = ()) -> tuple[Any, tuple]:
    """Make a function that runs attention forward and backward, and the shapes of its arguments."""
    row = jax.ShapeDtypeStruct((1, shape.length, shape.heads, shape.width), jnp.bfloat16)
    number = jax.ShapeDtypeStruct((1, shape.length), jnp.int32)
    # Positions are constants, so the compiler drops the branch that is not taken.
    position = jnp.arange(shape.length, dtype=jnp.int32)[None] * (1 + shape.gaps)
    # CABLE's keys have running sums for each head, as high and low parts; its queries also have a weight.
    sums = (_number(1, shape.heads, shape.length),) * 2 if isinstance(bias, biases.CABLE) else None
    of_queries = sums and (sums[0], sums)
    if isinstance(bias, biases.Mixture):  # a query has a weight for each profile and head
        of_queries = (_number(1, shape.heads, shape.length),) * len(jax.tree.leaves(bias)[0])

    def loss(q: Any, k: Any, v: Any, bias: Any, i: Any, j: Any, start: Any, segment: Any) -> Any:
        bias = dataclasses.replace(bias, **{name: getattr(start, name) for name in fixed})
        queries, keys = (Tokens(position, None if shape.causal else segment, x) for x in (i, j))
        scoring = Scoring(bias, queries, keys, mask=Mask(causal=shape.causal))
        out = attention(q, k, v, scoring, backend="pallas_tpu", tiling=Tiling(skip="off"))
        return out.astype(jnp.float32).sum()

    return jax.grad(loss, tuple(range(6))), (row, row, row, bias, of_queries, sums, bias, number)


def splash_step(shape: Shape) -> tuple[Any, tuple]:
    """Make the same for tokamax's splash attention, without a bias and with our tile sizes."""
    # tokamax's public attention chooses kernel and tiles itself; only its internal functions let us set them.
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    side = min(512, shape.length)
    blocks = ("block_q", "block_kv", "block_kv_compute")
    config = splash_attention_kernel.SplashConfig(
        **dict.fromkeys((*blocks, *(f"{block}_dkv" for block in blocks[:2]), "block_kv_dkv_compute"), side)
    )
    mask = splash_attention_mask.CausalMask((shape.length, shape.length))
    splash = splash_attention_kernel.make_splash_mha_single_device(mask, config=config)
    row = jax.ShapeDtypeStruct((shape.heads, shape.length, shape.width), jnp.bfloat16)
    loss = lambda q, k, v: splash(q, k, v).astype(jnp.float32).sum()
    return jax.grad(loss, (0, 1, 2)), (row, row, row)


def measure(chip: str, name: str, shape: Shape, dump: Path) -> list[dict]:
    """Compile one bias and read the compiler's output, kernel by kernel: one record for each."""
    if name == SPLASH:
        return _compiled(chip, name, shape, dump)
    jax.clear_caches()  # drop kernels that are already traced
    with one_body(whole=True):
        whole = {record["kernel"]: record["bundles"] for record in _compiled(chip, name, shape, dump)}
    jax.clear_caches()
    with one_body(whole=False):
        records = _compiled(chip, name, shape, dump)
    return [{**record, "bundles_whole": whole[record["kernel"]]} for record in records]


def one_body(*, whole: bool) -> Any:
    """A context in which kernels have one of their two bodies: without a mask, or with one."""
    compute = lambda step, body: pl.when(step.needed)(lambda: body(whole, True))
    return mock.patch.object(tpu_grid.GridStep, "when_needed", compute)


STEPS_OF = {
    "alibi": {"encoding": "alibi"},
    "bam ladder": {"encoding": "bam", "init": "ladder"},
    "bam ladder, 2 key heads": {"encoding": "bam", "init": "ladder"},
}
"""The priors whose steps are counted: 8 query heads, as initialised for a context of 512."""


def count_steps(name: str, length: int) -> list[dict]:
    """Count tiles and steps of one text with random queries and keys: one record for each kernel."""
    options = dict(STEPS_OF[name])
    bias = spec(options.pop("encoding"), options).build(Dims(8, 512, 512), nnx.Rngs(0)).bias()
    position = Tokens(jnp.arange(length, dtype=jnp.int32)[None])
    keys = 2 if "key heads" in name else 8
    q, k = (
        jax.random.normal(jax.random.key(n), (1, length, heads, 64), jnp.bfloat16) for n, heads in ((0, 8), (1, keys))
    )

    def counts(q: Any, k: Any) -> list[dict]:
        grid, made = tpu_grid.TileGrid.of(q, k, k, Scoring(bias, position, position), Tiling()), []
        for hold_queries in (True, False):
            walk = tpu_grid.Walk.of(grid, hold_queries=hold_queries)
            of_one = walk.count.size * jnp.maximum(walk.count.max(), 1)
            _, steps = walk.segments()
            own = walk.pairs * (steps.sum() if walk.apart else walk.held * steps.max())
            made.append({"tiles": walk.count.sum(), "steps_of_one_grid": of_one, "steps": own})
        return made

    about = {"bias": name, "length": length}
    return [
        {**about, "walk": walk, **{what: int(n) for what, n in each.items()}}
        for walk, each in zip(("over keys", "over queries"), jax.jit(counts)(q, k), strict=True)
    ]


def _compiled(chip: str, name: str, shape: Shape, dump: Path) -> list[dict]:
    for old in dump.glob("*"):
        old.unlink()
    if name == SPLASH:
        f, arguments = splash_step(shape)
    else:
        f, arguments = training_step(shape, BIASES[name](shape.heads), ("loc",) if name == "ggd" else ())
    memory = compile_for(chip, f, *arguments).memory_analysis()
    records = []
    for kernel in SPLASH_KERNELS if name == SPLASH else KERNELS:
        (schedule,) = dump.glob(f"*{kernel}*schedule-analysis_final_bundles.txt")
        (utilisation,) = dump.glob(f"*{kernel}*final_hlo-static-per-bundle-utilization.txt")
        found = re.search(r"total scheduled bundles:\s+(\d+)", schedule.read_text())
        slots = _slots(utilisation.read_text())
        records.append(
            {
                "chip": chip,
                "bias": name,
                "kernel": kernel,
                **dataclasses.asdict(shape),
                "bundles": int(found[1]) if found else None,
                "spills": slots["VSTORE:SPILL"],
                "fills": slots["VLOAD:FILL"],
                "temporary_bytes": memory.temp_size_in_bytes,
            }
        )
    return records


def _slots(report: str) -> dict[str, int]:
    """Count the slots of each unit, summed over all bundles."""
    head, table = report.split("== UTILIZATION:")
    units = [unit.strip() for unit in head.splitlines()[1].split(",")]
    bundles = [[int(x) for x in line.split()] for line in table.splitlines() if line.strip()]
    totals = [sum(column) for column in zip(*bundles, strict=True)]
    return dict(zip(units, totals, strict=True))


def main(argv: Sequence[str]) -> None:
    """Run the command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.tpu_static", description=__doc__)
    parser.add_argument("--chips", default=",".join(CHIPS), help="of " + ", ".join(CHIPS))
    parser.add_argument("--biases", default=",".join(BIASES), help="of " + ", ".join(BIASES))
    parser.add_argument("--length", type=int, default=Shape.length, help="tokens of a row (4096)")
    parser.add_argument("--width", type=int, default=Shape.width, help="of a head (64)")
    parser.add_argument("--encoder", action="store_true", help="see both sides of rows that end in pads")
    parser.add_argument("--gaps", action="store_true", help="positions that leave gaps: every bias is a formula")
    parser.add_argument("--steps", action="store_true", help="count steps of grids, and compile nothing")
    parser.add_argument("--json", type=files.local_path, help="a file for the records")
    given = parser.parse_args(argv)
    if given.json is not None:
        files.keep_other(given.json, "python -m benchmarks.tpu_static")
    if given.steps:
        print(f"{'bias':30} {'length':>7} {'walk':12} {'tiles':>8} {'one grid':>9} {'steps':>8}")
        records = []
        for name in STEPS_OF:
            for length in (8_192, 32_768, 131_072):
                for record in count_steps(name, length):
                    print(
                        f"{name:30} {length:7} {record['walk']:12} {record['tiles']:8} {record['steps_of_one_grid']:9} "
                        f"{record['steps']:8}"
                    )
                    records.append(record)
        _write(given.json, argv, records, ())
        return
    for name in given.biases.split(","):
        if name not in BIASES:
            raise errors.UserError(f"no bias {name!r} here: {errors.nearest(name, BIASES)}")
    shape = Shape(length=given.length, width=given.width, causal=not given.encoder, gaps=given.gaps)
    with tempfile.TemporaryDirectory() as folder:
        # libtpu reads its arguments only when it is loaded.
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        run = functools.partial(measure, shape=shape, dump=Path(folder))
        records = []
        print(
            f"{'chip':5} {'bias':12} {'kernel':24} {'bundles':>8} {'/uniform':>8} {'whole':>8} {'spills':>7} {'fills':>7}"
        )
        beside = [SPLASH] if importlib.util.find_spec("tokamax") and shape.causal else []
        for chip in given.chips.split(","):
            plain: dict[str, int] = {}
            for name in [*given.biases.split(","), *beside]:
                for record in run(chip, name):
                    if name == "uniform":
                        plain[record["kernel"]] = record["bundles"]
                    ratio = f"{record['bundles'] / plain[record['kernel']]:.2f}" if record["kernel"] in plain else ""
                    print(
                        f"{chip:5} {name:12} {record['kernel']:24} {record['bundles']:8} {ratio:>8} "
                        f"{record.get('bundles_whole', ''):>8} {record['spills']:7} {record['fills']:7}"
                    )
                    records.append(record)
    _write(given.json, argv, records, ("libtpu", *beside))


def _write(path: Path | None, argv: Sequence[str], records: list[dict], packages: Sequence[str]) -> None:
    if path is not None:
        about = {
            "command": f"python -m benchmarks.tpu_static {shlex.join(argv)}",
            "versions": {name: version(name) for name in ("jax", "jaxlib", *packages)},
        }
        path.write_text(jsonl.by_lines({**about, "records": records}))


if __name__ == "__main__":
    errors.run(main)
