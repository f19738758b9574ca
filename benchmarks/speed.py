"""Compare the speed of whole models in reading, embedding, training and decoding, and their memory.

    python -m benchmarks.speed --config=configs/quickstart.py --out=runs/speed.jsonl      # every encoding, SSMax off and on
    python -m benchmarks.speed --config=configs/lm_120m.py --config.model.vocab=32768 --cells=inference:512,memory:512 \\
        --contender='--config.encoding=bam --config.ssmax=on' --contender=--config.encoding=alibi
    python -m benchmarks.speed --config=configs/bert_base.py --config.model.vocab=30522 --cells=embedding:512 --dense

Cells are MEASURE:TOKENS. The default is the first three at the training context, and decoding at 1, 8 and 64 times that:

    inference   seconds for the logits of a batch of one
    memory      bytes of the gradient of a batch of one, as compiled, and the device's own peak if it reports one
    training    tokens per second of optimiser steps on a micro-batch of rows with TOKENS tokens
    decoding    tokens per second, one after another, a batch of one, after TOKENS tokens in the cache, running sums included
    latency     the same in seconds per token
    embedding   texts per second that an encoder embeds, a batch of one; the only measure of encoders

Parameters are random: nothing is trained. In each of the --rounds, every contender in turn warms up and is timed for several
calls, so a machine that slows down slows all of them. A value is the median over all calls, with quartiles. Ratios are to NoPE
without SSMax, which always takes part: 1.1 is a tenth more time or memory. With --dense, each model also runs with all logits of
a layer in memory, as in plain attention. With --torch, it also runs as a plain dense decoder in PyTorch, if that is installed,
for training only. Models run on one device. Records are written for all contenders as soon as a cell is done; running the same
command again does what is missing.
"""

from bam_jax.system import errors

if __name__ == "__main__":
    errors.before_imports()

import functools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.encodings import ENCODINGS
from bam_jax.experiments.benchmark import read_speeds
from bam_jax.system import files, git, jsonl
from bam_jax.system.errors import UserError, nearest
from bam_jax.system.machine import machine
from bam_jax.system.parent import end_with_parent
from benchmarks import torch_decoder, workloads
from benchmarks.workloads import Contender, Workload

MEASURES = {
    **{"inference": "s", "memory": "bytes", "training": "tokens/s", "decoding": "tokens/s", "latency": "s"},
    "embedding": "texts/s",
}
"""Units."""

ROUNDS = 5
"""Number of turns of each contender."""

CALLS = {"inference": 20, "memory": 0, "training": 2, "decoding": 2, "latency": 2, "embedding": 2}
"""Timed calls in each turn."""

DECODED = workloads.TOKENS * (CALLS["decoding"] + 1)
"""Tokens that a turn of decoding writes after its context."""

BASELINE = {"encoding": "nope", "encoding_options": {}, "ssmax": "off"}

DENSE = "reference"
"""The attention backend of contenders that keep all logits of a layer."""


def label(config: Config, backend: str = "auto") -> str:
    """Name a contender.

    >>> label(Config(encoding="rope", encoding_options={"base": 500000.0}, ssmax="on"), "reference")
    "rope {'base': 500000.0} SSMax, dense"
    """
    options = f" {config.encoding_options}" if config.encoding_options else ""
    how = {DENSE: ", dense", torch_decoder.BACKEND: ", torch"}.get(backend, "")
    return f"{config.encoding}{options}{' SSMax' if config.ssmax != 'off' else ''}{how}"


def race(entrants: Mapping[str, Workload], *, rounds: int, calls: int) -> dict[str, np.ndarray]:
    """Time the calls of every entrant by turns: seconds, [rounds x calls] of each."""
    seconds: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(rounds):
        for name, workload in entrants.items():
            state = workload.call(workload.start())
            for _ in range(calls):
                started = time.perf_counter()
                state = workload.call(state)
                seconds[name].append(time.perf_counter() - started)
            del state  # before the next one is created
    return {name: np.array(taken) for name, taken in seconds.items()}


def measure(which: str, length: int, contenders: Mapping[str, Contender], *, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure one cell for every contender that supports so many positions; the first is the baseline of the ratios."""
    calls = CALLS[which]
    further = DECODED if which in ("decoding", "latency") else 0
    entrants = {name: one for name, one in contenders.items() if one.limit is None or length + further <= one.limit}
    if which == "memory":
        values = _measure_memory(length, entrants)
    else:
        values = _measure_time(which, length, entrants, rounds=rounds, calls=calls)
    base = next(iter(values.values()))["value"]
    return {name: {**value, "ratio": value["value"] / base} for name, value in values.items()}


def _measure_memory(length: int, entrants: Mapping[str, Contender]) -> dict[str, dict[str, Any]]:
    sizes = {name: workloads.gradient_memory(contender, length) for name, contender in entrants.items()}
    # A device reports only the highest peak so far. From small to large, each contender's own peak is the highest so far.
    by_size = sorted(sizes, key=lambda name: sizes[name][0])
    peaks = {name: sizes[name][1]() for name in by_size}
    return {name: {"value": float(size), "n": 1, "device_peak_bytes": peaks[name]} for name, (size, _) in sizes.items()}


def _measure_time(
    which: str, length: int, entrants: Mapping[str, Contender], *, rounds: int, calls: int
) -> dict[str, dict[str, Any]]:
    decoding = functools.partial(workloads.decoding, calls=calls + 1)
    make: dict[str, Callable[[Contender, int], Workload]] = {
        "inference": workloads.inference,
        "training": workloads.training,
        "decoding": decoding,
        "latency": decoding,
        "embedding": workloads.embedding,
    }
    in_torch = lambda contender: contender.backend == torch_decoder.BACKEND
    work = {
        name: torch_decoder.training(contender, length) if in_torch(contender) else make[which](contender, length)
        for name, contender in entrants.items()
    }
    values: dict[str, dict[str, Any]] = {}
    for name, seconds in race(work, rounds=rounds, calls=calls).items():
        samples = seconds / work[name].work if MEASURES[which] == "s" else work[name].work / seconds
        low, value, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
        values[name] = {"value": value, "low": low, "high": high, "n": len(samples)}
    return values


def compare(
    contenders: Mapping[str, Contender], cells: Sequence[tuple[str, int]], path: Path, *, rounds: int
) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Measure the cells missing from a file of records; records of another machine or other versions do not count."""
    about = {"machine": machine(), "commit": git.describe()}
    for which, length in cells:
        by_config = {
            record["config"]: record
            for record in read_speeds(path)
            if (record["measure"], record["length"], record["machine"]) == (which, length, about["machine"])
        }
        # Contenders of a cell are measured together or not at all: times from different hours are not comparable.
        if not contenders.keys() <= by_config.keys():
            jsonl.mend(path)
            by_config = {}
            for digest, values in measure(which, length, contenders, rounds=rounds).items():
                cell = {"eval": "speed", "measure": which, "length": length, "unit": MEASURES[which]}
                who = {"contender": label(contenders[digest].config, contenders[digest].backend), "config": digest}
                by_config[digest] = cell | who | values | about
            with jsonl.Writer(path) as writer:
                for record in by_config.values():
                    writer.write(record)
        yield which, length, [by_config[digest] for digest in contenders if digest in by_config]


def _line(record: Mapping[str, Any]) -> str:
    unit, value = record["unit"], record["value"]
    scale, unit = {"s": (1e3, "ms"), "bytes": (1e-6, "MB"), "tokens/s": (1.0, "tokens/s"), "texts/s": (1.0, "texts/s")}[
        unit
    ]
    text = f"  {record['contender']:48} {value * scale:12,.2f} {unit:8} {record['ratio']:6.2f} x"
    if "low" in record:
        return f"{text}  {record['low'] * scale:,.2f} to {record['high'] * scale:,.2f}"
    peak = record["device_peak_bytes"] if "device_peak_bytes" in record else None
    return text if peak is None else f"{text}  device: {peak / 1e6:,.2f} MB"


def _cells(text: str | None, context: int, *, encoder: bool) -> list[tuple[str, int]]:
    if text is None and encoder:
        return [("embedding", context)]
    if text is None:
        within = [(which, context) for which in ("inference", "memory", "training")]
        return within + [("decoding", far * context) for far in (1, 8, 64)]
    cells = []
    for part in text.split(","):
        which, _, length = part.partition(":")
        if which not in MEASURES:
            raise UserError(f"--cells={text}: no measure {which!r}; {nearest(which, MEASURES)}")
        if (which == "embedding") != encoder:
            named = ", ".join(name for name in MEASURES if (name == "embedding") == encoder)
            raise UserError(f"--cells={text}: {'encoders' if encoder else 'decoders'} have the measures {named}")
        if not length.isdecimal() or int(length) < 1:
            raise UserError(f"--cells={text}: {part!r} must be a measure and tokens, as in inference:512")
        cells.append((which, int(length)))
    return cells


def every_encoding() -> list[dict[str, Any]]:
    """The overrides for a contender of each encoding, with and without Scalable Softmax; NoPE comes first."""
    names = ["nope", *(name for name in ENCODINGS if name != "nope")]
    return [BASELINE | {"encoding": name, "ssmax": ssmax} for name in names for ssmax in ("off", "on")]


def enter(
    file: str, entrants: Sequence[Mapping[str, Any]], *, dense: bool = False, torch: bool = False
) -> dict[str, Contender]:
    """The contenders by the digests of their configurations; the first is the baseline, NoPE without Scalable Softmax.

    `dense` adds each with all logits in memory, under its digest and "-dense"; `torch` adds it in PyTorch, under "-torch".
    """
    entered = [configs.load(file, changes) for changes in entrants]
    plain = [config for config in entered if config.encoding == "nope" and config.ssmax == "off"]
    shared = {name: value for name, value in entrants[0].items() if not name.startswith("encoding_options")}
    first = plain[0] if plain else configs.load(file, {**shared, **BASELINE})
    if len({config.model.causal for config in entered}) > 1:
        raise UserError("encoders and decoders do different work; give --config.model.causal once, for all of them")
    everyone = {configs.digest(config): config for config in (first, *entered)}
    contenders = {digest: Contender(config) for digest, config in everyone.items()}
    if dense:
        contenders |= {f"{digest}-dense": Contender(config, DENSE) for digest, config in everyone.items()}
    if torch:
        for digest, config in everyone.items():
            torch_decoder.require(config)
            contenders[f"{digest}-torch"] = Contender(config, torch_decoder.BACKEND)
    return contenders


def measure_cells(
    contenders: Mapping[str, Contender], cells: Sequence[tuple[str, int]], path: Path, *, rounds: int = ROUNDS
) -> None:
    """Measure the cells missing from a file of records, and print all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = machine()
    print(
        f"{about['device']} ({about['devices']}), {about['processor']}, {about['cores']} cores, jax {jax.__version__}"
    )
    for which, length, cell in compare(contenders, cells, path, rounds=rounds):
        print(f"{which} at {length} tokens: median, ratio to NoPE, quartiles", flush=True)
        for record in cell:
            print(_line(record), flush=True)
        commits = {str(record["commit"] if "commit" in record else None) for record in cell} - {str(git.describe())}
        if commits:
            print(f"  measured before, with the code of commit {', '.join(sorted(commits))}", flush=True)


def main(argv: Sequence[str]) -> None:
    """Run the command line; see the module's docstring."""
    parser = errors.Parser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--config", required=True, help="a Python file with get_config()")
    parser.add_argument(
        "--contender",
        action="append",
        metavar="OVERRIDES",
        help="'--config.a.b=value ...' of one model; again for each (default: every encoding, with and without SSMax)",
    )
    parser.add_argument("--cells", help="MEASURE:TOKENS with commas; measures: " + ", ".join(MEASURES))
    parser.add_argument("--dense", action="store_true", help="let each run with all logits in memory as well")
    parser.add_argument("--torch", action="store_true", help="let each train as a plain decoder in PyTorch as well")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of all contenders ({ROUNDS})")
    parser.add_argument(
        "--out", type=files.local_path, default=Path("runs/speed.jsonl"), help="the records (runs/speed.jsonl)"
    )
    parser.add_argument("--parent", type=int, metavar="PROCESS", help="end with this one; a sweep gives it")
    given, shared = configs.parse(argv, parser)
    if given.parent is not None:
        end_with_parent(given.parent)
    if given.rounds < 1:
        raise UserError(f"--rounds={given.rounds} must be 1 or more")
    own = every_encoding()
    if given.contender is not None:
        own = [configs.from_arguments(shlex.split(contender)) for contender in given.contender]
    entrants = [shared | changes for changes in own]
    config = configs.load(given.config, entrants[0])
    cells = _cells(given.cells, config.context, encoder=not config.model.causal)
    if given.torch and any(which != "training" for which, _ in cells):
        raise UserError(f"--torch trains and does nothing else: give --cells=training:{config.context}")
    contenders = enter(given.config, entrants, dense=given.dense, torch=given.torch)
    measure_cells(contenders, cells, given.out, rounds=given.rounds)


if __name__ == "__main__":
    errors.run(main)
