"""Compile the GPU kernels for an H100, without one, and count their resources.

For each kernel it counts registers, spills, shared memory and the instructions per logit. For a whole call it counts kernel
launches and the bytes that they read and write. Nothing runs. If tokamax is installed (the extra `bench`), its kernels are
counted as well.

    python -m benchmarks.gpu_static --out=benchmarks/records/gpu_static.json
    python -m benchmarks.gpu_static --bias uniform ggd alibi cable sandwich --out=benchmarks/records/gpu_static.json

It needs the plugin of the extra `compilers`, but no GPU; `make test-compilers` creates an environment with the plugin.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bam_jax import biases
from bam_jax.attention import Mask, Scoring, Tiling, Tokens, attention
from bam_jax.attention.logits import tile
from bam_jax.attention.logits.scoring import Differentiable, Residuals
from bam_jax.attention.pallas import gpu, strips
from bam_jax.attention.pallas.gpu_formula import LOWERED
from bam_jax.preflight import chips
from bam_jax.system import extras, files, jsonl
from benchmarks import hlo, sass

NOTE = "Compiled on a CPU for an H100 by `python -m benchmarks.gpu_static`. Nothing ran on a chip."
HEADS, KEY_HEADS, LENGTH = 16, 4, 8192
CALL = 144, 512, HEADS, 48
"""[B, T, H, D] of a whole call: a layer of the papers' models of 120M parameters."""


def _number(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _integers(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


_head = functools.partial(_number, HEADS)
BIASES = {
    "uniform": biases.Uniform(),
    "alibi": biases.ALiBi(_head()),
    "ggd": biases.GeneralisedGaussian(_head(), _head(), _head()),
    "kerple_log": biases.KerpleLog(_head(), _head()),
    "kerple_power": biases.KerplePower(_head(), _head()),
    "additive_decay": biases.AdditiveDecay(_head(), _head(), _head()),
    "gaussian": biases.Gaussian(_head()),
    "student_t": biases.StudentT(_head(), _head()),
    "fire": biases.FIRE(_head(32), _head(), _number(32), _number(32), _number(), _number()),
    "t5": biases.T5(_head(32), starts=biases.t5_starts()),
    "sandwich": biases.Sandwich(_head()),
    "t5_bidirectional": biases.T5(_head(32), starts=biases.t5_starts(16), bidirectional=True),
    "difference": biases.Difference(),
    "distance": biases.Difference(symmetric=True),
    "cable": biases.CABLE(),
    "k_cable": biases.KCABLE(),
    "contextual": biases.ContextualGaussian(_head(), _head()),
    "inkling": biases.Mixture(biases.Band(_number(16, 1024))),
    "bam_mixture": biases.Mixture(biases.GeneralisedGaussian(_number(8), _number(8), _number(8))),
}
"""Every bias that the kernels support, with abstract parameters."""
WHOLE = "uniform", "alibi", "ggd"
"""The biases for which a whole call is measured."""


def compile_for_h100(f: Callable, *arguments: Any) -> Any:
    """Compile a function for one H100, which need not be present."""
    (device,) = chips.gpus("h100", 1)
    here = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments)
    described = jax.sharding.AbstractDevice(device_kind=device.device_kind, num_cores=None, platform="cuda")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=described)):
        return jax.jit(f).lower(*shapes).compile()


def operand_shapes(
    name: str, width: int, *, length: int = LENGTH, dtype: str = "bfloat16", packed: bool = False
) -> tuple:
    """Make shapes of q, k, v and a scoring with one of `BIASES`."""
    own = lambda: (_number(1, HEADS, length), _number(1, HEADS, length))
    i: Any = None
    j: Any = None
    if name in ("difference", "distance", "cable", "k_cable", "contextual"):
        i, j = own(), own()
        i = (_number(1, HEADS, length), i) if name in ("cable", "k_cable") else i
    if isinstance(bias := BIASES[name], biases.Mixture):  # a query has a weight for each profile and head
        i = (_number(1, HEADS, length),) * len(jax.tree.leaves(bias.profiles)[0])
    row = _integers(1, length)
    side = lambda x: Tokens(row, row if packed else None, x)
    mask = Mask(causal=name != "t5_bidirectional", window=length // 2 if packed else None)
    scoring = Scoring(bias, side(i), side(j), _number(1, HEADS, length) if packed else None, mask)
    x = lambda heads: jax.ShapeDtypeStruct((1, length, heads, width), dtype)
    return x(HEADS), x(KEY_HEADS), x(KEY_HEADS), scoring


def kernels(q: Any, k: Any, v: Any, scoring: Scoring, *, in_strips: bool = False) -> dict[str, tuple[Callable, tuple]]:
    """Separate the kernels: by name, a function that runs only this one and the shapes of the function's arguments.

    A function returns the results of one kernel, so XLA removes the others as unused. The bias comes in strips or is a formula.
    """
    shift = jnp.zeros((), jnp.int32) if in_strips else None
    tiling = Tiling()
    out, lse, d_out = _number(*q.shape), _number(q.shape[0], q.shape[2], q.shape[1]), q
    wanted = Differentiable.of(scoring).flags(lambda _: True)
    residuals = Residuals(q, k, v, scoring, out, lse, wanted)

    def forward(q: Any, k: Any, v: Any, scoring: Scoring) -> tuple:
        operands = q, k, v, scoring, tiling
        one_query = q.shape[1] == 1  # no kernel computes a single query
        return gpu.forward(*operands) if one_query else gpu.tiled_forward(*operands, shift)

    # A bias in strips with many parameters has a separate kernel for their gradients.
    many = in_strips and sum(tile.Parameters.of(scoring.bias).sizes) > gpu.FEW

    def query_gradients(residuals: Residuals, d_out: Any) -> tuple:
        dq, _, _, d_scoring = gpu.tiled_backward(residuals, d_out, tiling, shift)
        return dq, None if many else d_scoring.bias, d_scoring.temperature, d_scoring.queries.coordinate

    def bias_gradients(residuals: Residuals, d_out: Any) -> Any:
        return gpu.tiled_backward(residuals, d_out, tiling, shift).scoring.bias

    def key_gradients(residuals: Residuals, d_out: Any) -> tuple:
        _, dk, dv, d_scoring = gpu.tiled_backward(residuals, d_out, tiling, shift)
        return dk, dv, d_scoring.keys.coordinate

    return {
        "forward": (forward, (q, k, v, scoring)),
        "query_gradients": (query_gradients, (residuals, d_out)),
        "key_gradients": (key_gradients, (residuals, d_out)),
        **({"bias_gradients": (bias_gradients, (residuals, d_out))} if many else {}),
    }


def forms(name: str) -> list[bool]:
    """Whether one of `BIASES` comes in strips: [True], [False], or both if it depends on the positions."""
    scoring = operand_shapes(name, 64)[3]
    formula, relative = tile.unsupported(scoring, LOWERED) is None, strips.of_offsets(scoring) and name != "uniform"
    return [in_strips for in_strips, can in ((True, relative), (False, formula)) if can]


def tokamax_kernels(width: int) -> dict[str, tuple[Callable, tuple]]:
    """The same for tokamax's Hopper kernels, causal and without a bias."""
    # tokamax's public attention uses these kernels only if a chip is present.
    from tokamax._src.ops.attention import pallas_mosaic_gpu_kernel_sm90 as ahead
    from tokamax._src.ops.attention import pallas_mosaic_gpu_vjp_common as common
    from tokamax._src.ops.attention import pallas_mosaic_gpu_vjp_kernel_sm90 as back

    kind = jnp.dtype(jnp.bfloat16)
    q, k = (jax.ShapeDtypeStruct((LENGTH, heads, width), kind) for heads in (HEADS, KEY_HEADS))
    row = _number(HEADS, LENGTH)
    shared = {"logits_scale": width**-0.5, "logits_soft_cap": None, "is_causal": True}

    def forward(q: Any, k: Any, v: Any) -> Any:
        config = ahead.Config(block_q=64, block_kv=128, num_stages=2)
        rest = {"out_dtype": kind, "normalize_output": True, "return_residuals": True, "use_stable_softmax": True}
        return ahead.flash_attention_kernel(
            q, k, v, None, None, None, None, **shared, **rest, rescale_threshold=1.0, config=config
        )

    def backward(q: Any, k: Any, v: Any, top: Any, total: Any, out: Any, d_out: Any) -> Any:
        tiles = {f"block_{side}_{kernel}": 64 for side in ("q", "kv") for kernel in ("dq", "dkv")}
        config = common.Config(num_stages=2, **tiles)
        return back.flash_attention_vjp_kernel(
            q, k, v, (top, total), out, d_out, None, None, None, None, **shared, ds_dtype=None, config=config
        )

    operands = q, k, k, row, row, q, q
    return {
        "forward": (forward, (q, k, k)),
        "query_gradients": (lambda *x: backward(*x)[0], operands),
        "key_gradients": (lambda *x: backward(*x)[1:3], operands),
    }


def known_columns(name: str, width: int) -> dict[str, int]:
    """Columns of each kernel's tiles, if its first product mixes profiles instead of multiplying queries and keys."""
    if not isinstance(BIASES[name], biases.Mixture):
        return {}
    backward = dict.fromkeys(("query_gradients", "key_gradients", "bias_gradients"), gpu.BACKWARD_WIDTH)
    return {"forward": gpu.forward_width(width, mixed=True)} | backward


def measure(
    kernels: dict[str, tuple[Callable, tuple]], columns: Mapping[str, int] | None = None, **setting: Any
) -> Iterator[dict]:
    """Compile each kernel and yield its setting and counts.

    The counts are registers per thread, bytes spilled per thread, bytes of shared memory, and a thread's instructions per logit
    of a tile, in total and by pipe; see `sass.per_logit`, which uses the `columns` of a kernel.
    """
    for kernel, (f, arguments) in kernels.items():
        with _captured_output() as captured:
            compile_for_h100(f, *arguments)
        number = len(re.findall(r"Used \d+ registers", captured[0]))
        if not number:  # compiled before: with strips, many biases have the same kernel
            continue
        assert number == 1, "one kernel at a time"
        last = lambda pattern, text=captured[0]: int(re.findall(pattern, text)[-1])
        yield {
            **setting,
            "kernel": kernel,
            "registers": last(r"Used (\d+) registers"),
            "spill_stores": last(r"(\d+) bytes spill stores"),
            "spill_loads": last(r"(\d+) bytes spill loads"),
            "shared_memory": last(r"smem_scratch_bytes=(\d+)"),
            **sass.per_logit(captured[0], (columns or {}).get(kernel)),
        }


def measure_call(name: str, *, packed: bool = False) -> Iterator[dict]:
    """Compile a causal call without and with gradients; count launches, GB read and written, and GB of temporary memory.

    Rows are packed with several documents, or contain one text each.
    """
    batch, length, heads, width = CALL
    x = jax.ShapeDtypeStruct((batch, length, heads, width), jnp.bfloat16)

    def forward(tokens: Tokens, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return attention(q, k, v, Scoring(bias, tokens, tokens), backend="pallas_gpu")

    def both(tokens: Tokens, d_out: Any, *operands: Any) -> Any:
        out, vjp = jax.vjp(functools.partial(forward, tokens), *operands)
        return out, vjp(d_out)

    position, segment = (_integers(rows, length) for rows in (1, batch))
    tokens = Tokens(position, segment if packed else None, consecutive=True)
    operands = x, x, x, BIASES[name]
    for gradients, f, arguments in ((False, forward, (tokens, *operands)), (True, both, (tokens, x, *operands))):
        with _captured_output():  # the disassembly of each kernel
            compiled = compile_for_h100(f, *arguments)
        program = hlo.Program(compiled.as_text())
        yield {
            "bias": name,
            "packed": packed,
            "gradients": gradients,
            "launches": program.launches(),
            "traffic": round(program.traffic() / 1e9, 2),
            "temporary": round(compiled.memory_analysis().temp_size_in_bytes / 1e9, 2),
        }


@contextlib.contextmanager
def _captured_output() -> Iterator[list[str]]:
    """A list that afterwards contains what this process wrote to standard output and error.

    The compiler bypasses `sys.stdout` and writes to the file descriptors, so these are redirected to a file.
    """
    captured: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(stream) for stream in (1, 2)]
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield captured
        finally:
            sys.stdout.flush()
            for stream, old in zip((1, 2), kept, strict=True):
                os.dup2(old, stream)
                os.close(old)
            file.seek(0)
            captured.append(file.read().decode())


def _find_disassembler() -> None:
    """Put the directory of `nvdisasm` into the PATH, where the compiler looks for it."""
    try:
        installed = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise errors.UserError(f"the disassembler for GPUs is missing: {extras.remedy('compilers')}") from error
    folder = next(pathlib.Path(str(file.locate())).parent for file in installed if file.name == "nvdisasm")
    os.environ["PATH"] = os.pathsep.join((str(folder), os.environ["PATH"]))


def main(argv: Sequence[str]) -> None:
    """Compile every kernel with every bias, print a table and write it as JSON."""
    parser = errors.Parser(prog="python -m benchmarks.gpu_static", description=__doc__)
    parser.add_argument("--out", type=files.local_path, required=True, help="JSON file to write")
    parser.add_argument("--bias", choices=BIASES, nargs="+", default=list(BIASES), help="which biases")
    options: argparse.Namespace = parser.parse_args(argv)
    files.keep_other(options.out, NOTE)
    jax.config.update("jax_platforms", "cpu")
    os.environ.update(MOSAIC_GPU_DUMP_PTXAS="1", MOSAIC_GPU_DUMP_RESOURCES="1", MOSAIC_GPU_DUMP_SASS="1")
    _find_disassembler()
    records: list[dict] = []
    calls: list[dict] = []

    def add(record: dict, records: list[dict]) -> None:
        print("  ".join(f"{key} {value}" for key, value in record.items()), flush=True)
        records.append(record)

    for name, (width, packed) in itertools.product(options.bias, ((64, False), (128, False), (64, True), (48, False))):
        for in_strips in forms(name):
            each = kernels(*operand_shapes(name, width, packed=packed), in_strips=in_strips)
            setting = {"bias": name, "head_width": width, "packed": packed, "strips": in_strips}
            for record in measure(each, known_columns(name, width), **setting):
                add(record, records)
    for width in (64, 128) if importlib.util.find_spec("tokamax") else ():
        for record in measure(tokamax_kernels(width), bias="none, tokamax", head_width=width):
            add(record, records)
    for name, packed in itertools.product((name for name in options.bias if name in WHOLE), (False, True)):
        for record in measure_call(name, packed=packed):
            add(record, calls)
    shape = {"heads": HEADS, "key_heads": KEY_HEADS, "length": LENGTH, "dtype": "bfloat16", "call": CALL}
    head = {"note": NOTE, "jax": jax.__version__, **shape}
    options.out.write_text(jsonl.by_lines({**head, "kernels": records, "calls": calls}))


if __name__ == "__main__":
    errors.run(main)
