"""Evaluation: `python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]`.

Appends to `results.jsonl` in the run's folder, a line for each cell; the same command again does only what is missing.
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bam_jax import checkpoint, errors, host, log, records, results, strict_json
from bam_jax import config as configs
from bam_jax.attention import Tiling
from bam_jax.config import Config
from bam_jax.data import benchmarks, loader, tokenizers
from bam_jax.errors import UserError, nearest
from bam_jax.evals import harness, passkey, perplexity, ruler
from bam_jax.evals.base import Cell, Plan, Trained, check_number
from bam_jax.experiment import STOPPED

EVALS: dict[str, ModuleType] = {"harness": harness, "passkey": passkey, "perplexity": perplexity, "ruler": ruler}
"""Each has `Options`, `plans`, and `SAMPLES`, what its samples are called."""


def evaluate(
    run: str | os.PathLike,
    name: str,
    lengths: Sequence[int],
    *,
    memory: float = 2.0,
    skip: bool = True,
    overrides: Sequence[str] = (),
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
        overrides: "--config.a.b=value", changes at evaluation time; part of a cell's identity.
        allow: addresses of text that may be fetched besides those in `overrides`, where the run's configuration has them.
        progress: see `log.progress`.
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
    run = Path(run)
    for override in overrides:
        if override.startswith("--config.mesh."):
            raise UserError(f"{override} says how training is cut, and an evaluation runs on one device; leave it out")
    config, tokenizer, decoder = checkpoint.restore_model(run, overrides=overrides)
    decoder.layers.attention.tiling = Tiling(skip="exact" if skip else "off")
    # One layer is compiled instead of each: a forward pass is no slower for it, as a training step would be.
    decoder.config = dataclasses.replace(config.model, scan=True)
    common = {
        "config": configs.digest(checkpoint.read_config(run)),
        "tokenizer": tokenizer.hash,
        "commit": commit(),
    }
    changed = dict(each.removeprefix("--config.").split("=", 1) for each in overrides)
    state = {"step": checkpoint.latest(run), "overrides": changed | ({} if skip else {"skip": "off"})}
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
    with log.alone(run / f".{name}.lock", busy):
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
        with log.progress(total, done=measured, unit="token", label=f"{run.name} {name}", show=progress) as bar:
            for plan, identity, found, missing in zip(plans, identities, there, todo, strict=True):
                shown = [record for those in found.values() for record in those]
                cells_found = iter(plan.measure(missing))
                while not (given_up := plan.given_up(shown))[0] and (new := next(cells_found, None)) is not None:
                    cell, result = new
                    count += 1
                    place = {"length": cell.length, "depth": cell.depth, "first": cell.first, "n": cell.n}
                    record = identity | place | result | common
                    _see(record, run)
                    log.append(path, record)
                    shown.append(record)
                    bar.set_postfix_str(
                        f"cell {count} of {cells}: {cell.length} tokens, {record['value']:.3g}", refresh=False
                    )
                    bar.update(cell.length * cell.n)
                if given_up[0]:
                    stopped = identity | {"eval": STOPPED, "of": name, "lengths": given_up[0], "after": given_up[1]}
                    if not any(stopped.items() <= record.items() for record in records.results(run)[1]):
                        log.append(path, stopped | common)
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


def commit() -> str | None:
    """The git commit of this code, with "-dirty" if files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


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


def _names(record: Mapping[str, Any], asked: str | None) -> list[str]:
    """What a record is printed under: what was asked for, of which one of the harness's tasks may be a part."""
    if record["eval"] == "harness":
        return [
            name for name in (asked or harness.Options.tasks).split(",") if record["task"] in benchmarks.TASKS[name]
        ]
    return [record["task"] if "task" in record else ""]


def lengths_of(text: str, option: str = "--lengths") -> list[int]:
    """The numbers of tokens in an argument such as 64,4096.

    Args:
        text: what was given.
        option: whose argument it is.

    Raises:
        UserError: it is something else.

    >>> lengths_of("64,4096")
    [64, 4096]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option}={text} must be numbers of tokens with commas, as in {option}=64,4096") from error


def main(argv: Sequence[str]) -> None:
    """The command line; see the module's docstring.

    Args:
        argv: the arguments.

    Raises:
        UserError: see `evaluate`.
    """
    parser = errors.Parser(prog="python -m bam_jax.evaluate", description=__doc__)
    parser.add_argument("--run", required=True, help="the folder of a trained run")
    parser.add_argument("--eval", required=True, help=", ".join(EVALS))
    parser.add_argument("--lengths", required=True, help="tokens of a prompt, sequence or question, as in 64,4096")
    helps: dict[str, list[str]] = defaultdict(list)
    kinds: dict[str, type] = {}
    for name, module in EVALS.items():
        for field in dataclasses.fields(module.Options):
            default = "" if field.default is None else f" ({field.default})"
            helps[field.name].append(f"{name}: {field.metadata['help']}{default}")
            kinds[field.name] = str if field.default is None else type(field.default)
    for option, said in helps.items():
        parser.add_argument(f"--{option}", type=kinds[option], help="; ".join(said))
    parser.add_argument("--memory", type=float, default=2.0, help="for activations, GiB (2)")
    parser.add_argument(
        "--skip",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute no pair whose weight is below rounding",
    )
    configs.allow_option(parser)
    log.progress_option(parser)
    given, overrides = configs.parse(argv, parser)
    host.keep_freed_memory()
    found = evaluate(
        given.run,
        given.eval,
        lengths_of(given.lengths),
        memory=given.memory,
        skip=given.skip,
        overrides=overrides,
        allow=configs.allowed(given.allow),
        progress=given.progress,
        **{option: value for option in helps if (value := getattr(given, option)) is not None},
    )
    tables: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in found:
        for name in _names(record, given.tasks):
            tables[name, record["length"]].append(record)
    for (task, length), cells in sorted(tables.items()):
        n = sum(cell["n"] for cell in cells)
        value = results.mean(cells)
        what = f"{task} {cells[0]['unit']}".strip()
        print(f"{given.run}: {what} at {length} tokens: {value:.3f} ({n} {EVALS[given.eval].SAMPLES})")
    left_out = sorted(set(lengths_of(given.lengths)) - {length for _, length in tables})
    if left_out:
        why = (
            f"after {given.patience} lengths without any" if given.patience else "for which every question is too long"
        )
        print(f"{given.run}: not measured: {', '.join(map(str, left_out))} tokens, {why}")


if __name__ == "__main__":
    errors.run(main)
