"""Evaluation: `python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]`.

Appends to `results.jsonl` in the run's folder, a line for each cell; the same command again does only what is missing.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bam_jax import config as configs
from bam_jax.attention import Tiling
from bam_jax.config import Config
from bam_jax.data import loader, tokenizers
from bam_jax.data.tasks import benchmarks
from bam_jax.evals import harness, passkey, perplexity, records, ruler
from bam_jax.evals.base import Cell, Plan, Trained, check_number
from bam_jax.evals.records import STOPPED
from bam_jax.system import console, host, jsonl, lock, strict_json
from bam_jax.system.errors import UserError, nearest
from bam_jax.training import checkpoint, run_folder

EVALS: dict[str, ModuleType] = {"harness": harness, "passkey": passkey, "perplexity": perplexity, "ruler": ruler}
"""Each has `Options`, `plans`, and `SAMPLES`, what its samples are called."""


def evaluate(
    run: str | os.PathLike,
    name: str,
    lengths: Sequence[int],
    *,
    memory: float = 2.0,
    skip: bool = True,
    overrides: Mapping[str, Any] = {},
    allow: Collection[str] = (),
    progress: bool | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Evaluate the newest checkpoint of a run, and append to its `results.jsonl` what is not there yet.

    A record holds `eval`, `length`, `depth`, `value`, `unit`, `first` and `n` (it is about the prompts, sequences, samples or
    questions `first`, `first` + 1 ... `first` + `n` - 1), what else the evaluation found (`bam_jax.evals`), what tells its
    cells from others' (`prompt` and `seed` of passkeys; `task`, `seed` and `essays` of RULER; `task`, `shots`, `data` and more
    of the harness), `step`, `overrides`, `config` (the run's digest), `tokenizer` (its hash), `commit` (of the code; null
    outside a git checkout) and `seconds`. More trials, samples, questions or tokens than before add a record with those that
    were missing, so that the mean of a cell's records (`results.mean`) is the cell's value. Where patience ends an
    evaluation, a record of `STOPPED` says which lengths were left out; they have no cells, and are measured once they are
    asked for without it.

    Args:
        run: the run's folder.
        name: "harness", "passkey", "perplexity" or "ruler".
        lengths: tokens of a prompt or sequence; of the harness's questions, that are read at most.
        memory: for activations, GiB; decides how many rows are computed at once.
        skip: whether attention leaves out what no float32 softmax would show; without, it computes every pair, and records
            have the override "skip": "off".
        overrides: changes at evaluation time, values by dotted names; part of a cell's identity.
        allow: addresses of text that may be fetched besides those in `overrides`, where the run's configuration has them.
        progress: see `console.progress`.
        options: of the evaluation; the fields of its `Options` (`bam_jax.evals`).

    Returns:
        The records of what was asked for, old and new.

    Raises:
        UserError: the run or the arguments will not do, or another process does the same evaluation of the run; nothing
            is written then. Or a number that was found is none.
    """
    asked = _options(name, options)
    if not lengths or min(lengths) < 1:
        raise UserError(f"lengths {','.join(map(str, lengths))} must be 1 token or more, as in --lengths=64,4096")
    check_number("memory", memory)
    host.keep_freed_memory()
    run = Path(run)
    for key, value in overrides.items():
        if key.startswith("mesh."):
            (override,) = configs.arguments({key: value})
            raise UserError(f"{override} says how training is cut, and an evaluation runs on one device; leave it out")
    config, tokenizer, decoder = checkpoint.restore_model(run, overrides=overrides)
    decoder.layers.attention.tiling = Tiling(skip="exact" if skip else "off")
    # One layer is compiled instead of each: a forward pass is no slower for it, as a training step would be.
    decoder.config = dataclasses.replace(config.model, scan=True)
    common = {
        "config": configs.digest(run_folder.read_config(run)),
        "tokenizer": tokenizer.hash,
        "commit": host.commit(),
    }
    state = {
        "step": run_folder.latest_step(run),
        "overrides": configs.typed(overrides) | ({} if skip else {"skip": "off"}),
    }
    if not config.model.causal:
        raise UserError(f"{run} is an encoder, and every evaluation asks for the next token; give the run of a decoder")
    held_out = functools.partial(
        _held_out,
        configs.to_json(Config(data=config.data)),
        tokenizer.spec,
        frozenset({*allow, *configs.mentioned(overrides)}),
    )
    trained = Trained(decoder, tokenizer, config, held_out, memory * 2**30)
    plans: list[Plan] = EVALS[name].plans(trained, sorted(set(lengths)), asked)
    identities = [{"eval": name} | dict(plan.identity) | state for plan in plans]

    path = run / records.RESULTS
    busy = f"{run} is being evaluated by another --eval={name}; wait for it, then do this again for what is missing"
    with lock.hold(run / f".{name}.lock", busy):
        for record in records.results(run)[0]:
            if "tokenizer" in record:  # results from before it was written have none
                tokenizer.check(record["tokenizer"], str(path))
        there = [_there(run, *each) for each in zip(identities, plans, strict=True)]
        todo: list[list[Cell]] = []
        total = measured = 0
        for plan, found in zip(plans, there, strict=True):
            done = {at: sum(record["n"] for record in those) for at, those in found.items()}
            todo.append([Cell(*at, done[at], n) for at, n in plan.wanted.items() if done[at] < n])
            total += sum(length * n for (length, _), n in plan.wanted.items())
            measured += sum(at[0] * min(done[at], n) for at, n in plan.wanted.items())
        count, cells = 0, sum(map(len, todo))
        with console.progress(total, done=measured, unit="token", label=f"{run.name} {name}", show=progress) as bar:
            for plan, identity, found, missing in zip(plans, identities, there, todo, strict=True):
                shown = [record for those in found.values() for record in those]
                cells_found = iter(plan.measure(missing))
                while not (given_up := plan.given_up(shown))[0] and (new := next(cells_found, None)) is not None:
                    cell, result = new
                    count += 1
                    place = {"length": cell.length, "depth": cell.depth, "first": cell.first, "n": cell.n}
                    record = identity | place | result | common
                    _see(record, run)
                    jsonl.append(path, record)
                    shown.append(record)
                    bar.set_postfix_str(
                        f"cell {count} of {cells}: {cell.length} tokens, {record['value']:.3g}", refresh=False
                    )
                    bar.update(cell.length * cell.n)
                if given_up[0]:
                    stopped = identity | {"eval": STOPPED, "of": name, "lengths": given_up[0], "after": given_up[1]}
                    if not any(stopped.items() <= record.items() for record in records.results(run)[1]):
                        jsonl.append(path, stopped | common)
        there = [_there(run, *each) for each in zip(identities, plans, strict=True)]
    return [record for found in there for those in found.values() for record in those]


def _there(run: Path, identity: Mapping[str, Any], plan: Plan) -> dict[tuple[int, float | None], list[dict[str, Any]]]:
    """By length and depth, the records that have the samples of a plan, as far as they were measured."""
    found: dict[tuple[int, float | None], list[dict[str, Any]]] = {at: [] for at in plan.wanted}
    for record in records.results(run)[0]:
        at = record["length"], record["depth"] if "depth" in record else None
        if at in found and all(name in record and record[name] == value for name, value in identity.items()):
            found[at].append(record)
    return {at: records.covering(those, plan.wanted[at]) for at, those in found.items()}


def _see(record: dict[str, Any], run: Path) -> None:
    """Raises UserError where a record is one that could not be read again, such as the perplexity of a model that gives nan."""
    where = f"{run}: what {record['eval']} found at {record['length']} tokens"
    remedy = "nothing was written; train the model again, at a lower rate perhaps"
    records.checked(strict_json.parse(json.dumps(record), where, remedy), where, remedy)


def _options(name: str, given: Mapping[str, Any]) -> Any:
    if name not in EVALS:
        raise UserError(f"unknown evaluation {name!r}; {nearest(name, EVALS)}")
    kind = EVALS[name].Options
    known = [field.name for field in dataclasses.fields(kind)]
    for option in given:
        if option not in known:
            raise UserError(f"--{option} is no option of --eval={name}; {nearest(option, known)}")
    return kind(**given)


@functools.lru_cache(maxsize=1)
def _held_out(text: str, spec: str, allow: frozenset[str]) -> np.ndarray:
    """The held-out tokens of a configuration as JSON, kept: a sweep evaluates a run several times in one process."""
    return loader.held_out(configs.from_json(text), tokenizers.tokenizer(spec), allow)


def names(record: Mapping[str, Any], asked: str | None) -> list[str]:
    """What a record is printed under: what was asked for, of which one of the harness's tasks may be a part."""
    if record["eval"] == "harness":
        return [
            name for name in (asked or harness.Options.tasks).split(",") if record["task"] in benchmarks.TASKS[name]
        ]
    return [record["task"] if "task" in record else ""]
