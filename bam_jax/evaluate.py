"""Evaluation: `python -m bam_jax.evaluate --run=runs/x --eval=passkey --lengths=64,4096 [--config.a.b=value ...]`.

Appends to `results.jsonl` in the run's folder, a line for each cell; the same command again does only what is missing.
"""

import argparse
import dataclasses
import functools
import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bam_jax import checkpoint, errors, host, log
from bam_jax import config as configs
from bam_jax.config import Config
from bam_jax.data import loader, tokenizers
from bam_jax.errors import UserError, nearest
from bam_jax.evals import passkey, perplexity
from bam_jax.evals.base import Cell

RESULTS = "results.jsonl"
EVALS = ("passkey", "perplexity")
PROMPTS = ("paper", "toy")
IDENTITY = ("eval", "length", "depth", "prompt", "seed", "step", "overrides")
"""What tells one cell from another; cells that agree in these are samples of the same thing."""


def evaluate(
    run: str | os.PathLike,
    name: str,
    lengths: Sequence[int],
    *,
    depths: int = 20,
    trials: int = 1,
    prompt: str | None = None,
    seed: int = 0,
    tokens: int = 2**15,
    memory: float = 2.0,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """Evaluate the newest checkpoint of a run, and append to its `results.jsonl` what is not there yet.

    A record holds `eval`, `length`, `depth`, `value`, `unit`, `n` (prompts or sequences), what else the evaluation found
    (`bam_jax.evals`), `prompt` and `seed` (passkey), `step`, `overrides`, `config` (the run's digest), `tokenizer` (its
    hash), `commit` (of the code; null outside a git checkout) and `seconds`. More trials or tokens than before add a
    record with those that were missing, so that the mean of a cell's records, weighted by `n`, is the cell's value.

    Args:
        run: the run's folder.
        name: "passkey" or "perplexity".
        lengths: tokens of a prompt or sequence.
        depths: number of equally spaced depths of the key, 0 to 1.
        trials: prompts at each depth.
        prompt: "toy" or "paper"; None: toy for the character tokenizer, paper for others.
        seed: of the prompts.
        tokens: of text for the perplexity at each length; at least one sequence is measured.
        memory: for activations, GiB; decides how many rows are computed at once.
        overrides: "--config.a.b=value", changes at evaluation time; part of a cell's identity.
        progress: whether to show a progress bar on stderr; None means only on a terminal.

    Returns:
        The records of what was asked for, old and new.

    Raises:
        UserError: the run or the arguments will not do; nothing is written then.
    """
    _check(name, lengths, prompt, depths=depths, trials=trials, seed=seed, tokens=tokens, memory=memory)
    run = Path(run)
    config, tokenizer, decoder = checkpoint.restore_model(run, overrides=overrides)
    # One layer is compiled instead of each: a forward pass is no slower for it, as a training step would be.
    decoder.config = dataclasses.replace(config.model, scan=True)
    common = {
        "config": configs.digest(checkpoint.read_config(run)),
        "tokenizer": tokenizer.hash,
        "commit": commit(),
    }
    identity = {
        "eval": name,
        "prompt": (prompt or ("toy" if tokenizer.name == "char" else "paper")) if name == "passkey" else None,
        "seed": seed if name == "passkey" else None,
        "step": checkpoint.latest(run),
        "overrides": dict(each.removeprefix("--config.").split("=", 1) for each in overrides),
    }
    stream = np.zeros(0, np.int32)
    if identity["prompt"] != "paper":
        stream = _held_out(configs.to_json(Config(data=config.data)), tokenizer.spec)
    if name == "passkey":
        places = [round(float(depth), 6) for depth in np.linspace(0, 1, depths)]
        wanted = {(length, depth): trials for length in sorted(set(lengths)) for depth in places}
    else:
        wanted = {(length, None): perplexity.available(stream, length, tokens) for length in sorted(set(lengths))}

    path = run / RESULTS
    for record in log.read(path):
        if "tokenizer" in record:  # results from before it was written have none
            tokenizer.check(record["tokenizer"], str(path))
    done: dict[tuple, int] = defaultdict(int)
    for record in _matching(path, identity, wanted):
        done[record["length"], record["depth"]] += record["n"]
    cells = [Cell(*at, done[at], stop) for at, stop in wanted.items() if done[at] < stop]
    size = lambda at, n: at[0] * n
    with log.progress(
        sum(size(at, n) for at, n in wanted.items()),
        done=sum(size(at, min(done[at], n)) for at, n in wanted.items()),
        unit="token",
        label=f"{run.name} {name}",
        show=progress,
    ) as bar:
        if name == "passkey":
            prompts = passkey.paper(tokenizer, seed)
            if identity["prompt"] == "toy":
                prompts = passkey.toy(stream, tokenizer, seed)
            measured = passkey.evaluate(decoder, cells, prompts, memory=memory * 2**30)
        else:
            measured = perplexity.evaluate(decoder, cells, stream, window=config.context, memory=memory * 2**30)
        for count, (cell, result) in enumerate(measured, start=1):
            if count == 1:
                _mend(path)
            record = identity | {"length": cell.length, "depth": cell.depth, "n": cell.n} | result | common
            with log.Writer(path) as writer:
                writer.write(record)
            bar.set_postfix_str(f"cell {count} of {len(cells)}: {cell.length} tokens, {record['value']:.3g}")
            bar.update(size((cell.length, cell.depth), cell.n))
    return list(_matching(path, identity, wanted))


def commit() -> str | None:
    """The git commit of this code, with "-dirty" if files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


def _check(name: str, lengths: Sequence[int], prompt: str | None, **numbers: float) -> None:
    if name not in EVALS:
        raise UserError(f"unknown evaluation {name!r}; {nearest(name, EVALS)}")
    if prompt is not None and prompt not in PROMPTS:
        raise UserError(f"unknown prompt {prompt!r}; {nearest(prompt, PROMPTS)}")
    if not lengths or min(lengths) < 1:
        raise UserError(f"lengths {','.join(map(str, lengths))} must be 1 token or more, as in --lengths=64,4096")
    for option, value in numbers.items():
        if not (value >= 0 if option == "seed" else value > 0):
            raise UserError(f"--{option}={value} must be {'0 or more' if option == 'seed' else 'more than 0'}")


def _matching(path: Path, identity: dict[str, Any], wanted: dict[tuple, int]) -> list[dict[str, Any]]:
    return [
        record
        for record in log.read(path)
        if all(record[key] == value for key, value in identity.items())
        and (record["length"], record["depth"]) in wanted
    ]


def _mend(path: Path) -> None:
    """Cut off a last line that a killed process left torn: the next would be appended to it."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        log.keep(path, lambda record: True)


@functools.lru_cache(maxsize=1)
def _held_out(text: str, spec: str) -> np.ndarray:
    """The held-out tokens of a configuration as JSON, kept: a sweep evaluates a run several times in one process."""
    return loader.held_out(configs.from_json(text), tokenizers.tokenizer(spec))


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
    parser.add_argument("--eval", required=True, help=" or ".join(EVALS))
    parser.add_argument("--lengths", required=True, help="tokens of a prompt or sequence, as in 64,4096")
    parser.add_argument("--depths", type=int, default=20, help="equally spaced places of the key (20)")
    parser.add_argument("--trials", type=int, default=1, help="prompts at each depth (1)")
    parser.add_argument("--prompt", help="toy (the default for the tokenizer char) or paper")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (0)")
    parser.add_argument("--tokens", type=int, default=2**15, help="of text for each perplexity (32768)")
    parser.add_argument("--memory", type=float, default=2.0, help="for activations, GiB (2)")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help="default: only on a terminal")
    given, overrides = configs.parse(argv, parser)
    host.keep_freed_memory()
    records = evaluate(
        given.run,
        given.eval,
        lengths_of(given.lengths),
        depths=given.depths,
        trials=given.trials,
        prompt=given.prompt,
        seed=given.seed,
        tokens=given.tokens,
        memory=given.memory,
        overrides=overrides,
        progress=given.progress,
    )
    for length in sorted({record["length"] for record in records}):
        cells = [record for record in records if record["length"] == length]
        n = sum(cell["n"] for cell in cells)
        value = sum(cell["value"] * cell["n"] for cell in cells) / n
        what = "prompts" if given.eval == "passkey" else "sequences"
        print(f"{given.run}: {cells[0]['unit']} at {length} tokens: {value:.3f} ({n} {what})")


if __name__ == "__main__":
    errors.run(main)
