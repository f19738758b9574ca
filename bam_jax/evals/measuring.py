"""Measures the missing cells of an evaluation of a run, and appends a record for each cell to results.jsonl."""

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bam_jax import config as configs
from bam_jax.attention import Tiling
from bam_jax.config import Config, ModelConfig
from bam_jax.data import loader, tokenizers
from bam_jax.evals import records
from bam_jax.evals.base import Evaluation
from bam_jax.evals.plan import Plan, SampleRange, Trained, check_memory
from bam_jax.evals.records import STOPPED, Cell
from bam_jax.evals.registry import EVALUATIONS
from bam_jax.models.generate import tolerance
from bam_jax.parallel import agreement, processes, sharding
from bam_jax.system import console, files, git, jsonl, lock, resources
from bam_jax.system.errors import UserError
from bam_jax.training import bundled, checkpoint, remote, run_folder
from bam_jax.training.loggers import LOGGERS

_SOURCES = {"data.source", "data.held_out_source"}
"""Overrides that name the text of an evaluation, whatever the run was trained on."""


@dataclasses.dataclass(frozen=True)
class Started:
    """A plan, the fields that identify its records, and those records by length and depth, each sample once."""

    plan: Plan
    identity: Mapping[str, Any]
    cells: Mapping[tuple[int, float | None], list[Cell]]

    @property
    def records(self) -> list[Cell]:
        return [record for records in self.cells.values() for record in records]

    def missing(self) -> list[SampleRange]:
        done = {at: sum(record["n"] for record in records) for at, records in self.cells.items()}
        return [SampleRange(*at, done[at], n) for at, n in self.plan.wanted.items() if done[at] < n]


def evaluate(
    run: str | os.PathLike,
    evaluation: Evaluation,
    *,
    memory: float = 2.0,
    skip: bool = True,
    prune_cache: float | str = "off",
    allow: Collection[str] = (),
    progress: bool | None = None,
) -> list[Cell]:
    """Evaluate the newest checkpoint of a run, and append the missing records to its `results.jsonl`.

    A record contains `eval`, `length`, `depth`, `value`, `unit`, `first` and `n` (it covers the prompts, sequences, samples or
    questions `first`, `first` + 1 ... `first` + `n` - 1), the other results of the evaluation, the fields that identify its cells
    (`Evaluation.identity`), `step`, `overrides`, `config` (the run's digest), `tokenizer` (its hash), `commit` (of the code; null
    outside a git checkout) and `seconds`. If more trials, samples, questions or tokens are requested than before, only the
    missing ones are measured and added as another record. The value of a cell is the mean of its records (`Evaluation.mean`). If
    patience ends an evaluation, a record of `STOPPED` names the skipped lengths; an evaluation without patience measures them.

    With `prune_cache`, long texts are read through a cache that drops keys that a head's prior makes negligible ("exact"), or
    keys that together receive less than a given share of a row's attention; records name the share.

    Overrides `mesh.*` shard the model and its caches over devices (`sharding.take_mesh`), which may belong to several processes
    that all call this function. Records do not depend on the mesh, up to rounding; process 0 writes them.
    """
    resources.keep_freed_memory()
    run, name = bundled.find(run), evaluation.name
    if run.resolve().parent == bundled.FOLDER.resolve():
        raise UserError(
            f"{run.name} comes with bam_jax, and records would be written into it; evaluate a copy, which python -m "
            f"bam_jax.convert --run={run.name} --export=FOLDER makes"
        )
    evaluation = dataclasses.replace(evaluation, lengths=tuple(sorted(set(evaluation.lengths))))
    overrides, mesh = sharding.take_mesh(evaluation.overrides)
    evaluation = dataclasses.replace(evaluation, overrides=overrides)
    _check_arguments(evaluation, memory)
    prune_cache = tolerance(str(prune_cache))
    if mesh is None and jax.process_count() > 1:
        raise UserError(
            f"{jax.process_count()} processes evaluate a model on a mesh; give config.mesh.*, or --processes=1"
        )
    first = processes.is_first()
    progress = progress if first else False
    trained, state, source = _prepare(
        *(run, evaluation, mesh), memory=memory, skip=skip, prune_cache=prune_cache, allow=allow, progress=progress
    )
    plans = [(plan, {"eval": name} | dict(plan.identity) | state) for plan in evaluation.plans(trained)]
    with _records_of(run, name) as folder:
        _check_tokenizer(folder, trained.tokenizer)
        started = [_find(folder, plan, identity) for plan, identity in plans]
        total = sum(length * n for plan, _ in plans for (length, _), n in plan.wanted.items())
        missing = sum(samples.length * samples.n for each in started for samples in each.missing())
        label = f"{run.name} {name}"
        with console.progress(total, done=total - missing, unit="token", label=label, show=progress) as bar:
            with sharding.active(mesh):
                _measure(folder, started, source, bar)
        done = [record for plan, identity in plans for record in _find(folder, plan, identity).records]
        if missing and first:
            _log(run, evaluation, done)
    return done


@contextlib.contextmanager
def _records_of(run: Path, name: str) -> Iterator[Path]:
    """The folder for records: in process 0 the run's, locked; in the others a temporary one with process 0's records."""
    if processes.is_first():
        busy = f"{run} is being evaluated by another --eval={name}; wait for it, then do this again for what is missing"
        with remote.uploading(run), lock.hold(run / f".{name}.lock", busy):
            path = run / records.RESULTS
            agreement.contents_from_first(path.read_bytes() if path.exists() else b"")
            yield run
    else:
        with tempfile.TemporaryDirectory() as folder:
            files.write_atomically(Path(folder, records.RESULTS), agreement.contents_from_first(b""))
            yield Path(folder)


def check_run(run: str | os.PathLike) -> None:
    """Raises: UserError: the run has no configuration or no checkpoint."""
    if files.is_remote(run):
        run_folder.read_config(remote.fetch(os.fspath(run), weights=False))
    else:
        run_folder.trained_step(bundled.find(run))


def _check_arguments(evaluation: Evaluation, memory: float) -> None:
    lengths = evaluation.lengths
    if not lengths or min(lengths) < 1:
        raise UserError(f"lengths {','.join(map(str, lengths))} must be 1 token or more, as in --lengths=64,4096")
    check_memory(memory)
    if "seed" in evaluation.overrides:
        raise UserError(
            f"--config.seed={evaluation.overrides['seed']} is the seed of training, which is done; "
            "prompts have one of their own, --seed"
        )


def _prepare(
    run: Path,
    evaluation: Evaluation,
    mesh: Mesh | None,
    *,
    memory: float,
    skip: bool,
    prune_cache: float | str,
    allow: Collection[str],
    progress: bool | None,
) -> tuple[Trained, dict[str, Any], dict[str, Any]]:
    own = run_folder.read_config(run)
    step = agreement.from_first(run_folder.trained_step(run))  # read once: training may save another one
    config, tokenizer, decoder = checkpoint.restore_model(run, overrides=evaluation.overrides, step=step, mesh=mesh)
    for stack in decoder.stacks():
        stack.attention.tiling = Tiling(skip="exact" if skip else "off")
    decoder.prune_cache = prune_cache
    # Compile one layer instead of each: this would slow down a training step, but not a forward pass.
    decoder.config = dataclasses.replace(config.model, scan=True)
    source = {"config": configs.digest(own), "tokenizer": tokenizer.hash, "commit": git.describe()}
    overrides = configs.typed(evaluation.overrides) | ({} if skip else {"skip": "off"})
    if prune_cache not in ("off", "exact"):  # these two give the same results
        overrides |= {"prune_cache": prune_cache}
    if config.model.causal == evaluation.encoder:
        known = ", ".join(name for name, kind in EVALUATIONS.items() if kind.encoder != config.model.causal)
        what = "a decoder" if config.model.causal else "an encoder"
        raise UserError(f"{run} is {what}, which is not asked for --eval={evaluation.name}; give one of {known}")
    addresses = frozenset({*allow, *configs.mentioned(evaluation.overrides)})
    named = loader.texts_of(config).keys() != loader.texts_of(own).keys() or _SOURCES & evaluation.overrides.keys()
    if evaluation.unseen and not named:
        _check_text(run, own, tokenizer.spec, addresses)
    held_out = functools.partial(_held_out, _text_of(config), tokenizer.spec, addresses)
    kept = run if jax.process_count() == 1 else None
    trained = Trained(decoder, tokenizer, config, held_out, memory * 2**30, folder=kept, progress=progress)
    return trained, {"step": step, "overrides": overrides}, source


def _text_of(config: Config) -> str:
    """The fields that determine which text a run reads, as JSON: the same for models of all sizes."""
    return configs.to_json(Config(data=config.data, model=ModelConfig(causal=config.model.causal)))


def _check_text(run: Path, own: Config, spec: str, allow: frozenset[str]) -> None:
    """Raise UserError if a run's text has changed since its training, because other documents would then be held out."""
    known = checkpoint.trained_data(run)
    apart = all(part.held_out_source for part in loader.texts_of(own).values())
    if known is None or apart or known == _trained_data(_text_of(own), spec, allow):
        return
    raise UserError(
        f"the text of {run} is another than it was trained on: files have come, gone or changed, so that what is held out "
        "now may have been trained on; put them back, or name text that it never saw with --config.data.held_out_source=FOLDER"
    )


@functools.lru_cache(maxsize=1)
def _trained_data(text: str, spec: str, allow: frozenset[str]) -> int:
    return loader.trained_data(configs.from_json(text), tokenizers.tokenizer(spec), allow)


@functools.lru_cache(maxsize=1)
def _held_out(text: str, spec: str, allow: frozenset[str]) -> np.ndarray:
    """The held-out tokens of a configuration as JSON, cached: a sweep evaluates a run several times in one process."""
    return loader.held_out(configs.from_json(text), tokenizers.tokenizer(spec), allow)


def _check_tokenizer(run: Path, tokenizer: tokenizers.Tokenizer) -> None:
    """Raise UserError if results come from another tokenizer; the oldest results do not name theirs."""
    for record in records.read_results(run)[0]:
        if "tokenizer" in record:
            tokenizer.check(record["tokenizer"], str(run / records.RESULTS))


def _find(run: Path, plan: Plan, identity: Mapping[str, Any]) -> Started:
    """The plan with its records."""
    found: dict[tuple[int, float | None], list[Cell]] = {at: [] for at in plan.wanted}
    for record in records.read_results(run)[0]:
        at = record["length"], record.get("depth")
        if at in found and identity.items() <= record.items():
            found[at].append(record)
    return Started(plan, identity, {at: records.cover(found[at], wanted) for at, wanted in plan.wanted.items()})


def _measure(run: Path, started: Iterable[Started], source: Mapping[str, Any], bar: console.Bar) -> None:
    path = run / records.RESULTS
    started = list(started)
    count, total = 0, sum(len(each.missing()) for each in started)
    for each in started:
        known, remaining = each.records, each.missing()
        measured = iter(each.plan.measure(remaining))
        # Patience does not end the loop while a length shorter than the skipped ones is still to be measured.
        while {samples.length for samples in remaining} - {*each.plan.left_out(known)[0]}:
            begun = time.perf_counter()
            samples, result = next(measured)
            result.setdefault("seconds", round(time.perf_counter() - begun, 3))
            remaining.remove(samples)
            count += 1
            place = {"length": samples.length, "depth": samples.depth, "first": samples.first, "n": samples.n}
            record = {**each.identity, **place, **result, **source}
            # Refuse a record that could not be read again, such as a perplexity of NaN.
            where = f"{run}: what {record['eval']} found at {record['length']} tokens"
            records.checked(record, where, "it was not written; train the model again, at a lower rate perhaps")
            jsonl.append(path, record)
            known.append(record)
            text = f"cell {count} of {total}: {samples.length} tokens, {record['value']:.3g}"
            bar.set_postfix_str(text, refresh=False)
            bar.update(samples.length * samples.n)
            if not remaining:
                next(measured, None)  # all is written: embeddings kept for resuming can be deleted
        _note_stop(run, each, known, source)


def _note_stop(run: Path, started: Started, known: Iterable[Cell], source: Mapping[str, Any]) -> None:
    """Append, once, a record of the lengths that patience skips."""
    lengths, after = started.plan.left_out(known)
    if not lengths:
        return
    stopped = {**started.identity, "eval": STOPPED, "of": started.identity["eval"], "lengths": lengths, "after": after}
    if not any(stopped.items() <= record.items() for record in records.read_results(run)[1]):
        jsonl.append(run / records.RESULTS, {**stopped, **source})


def _means(evaluation: Evaluation, measured: Sequence[Cell]) -> Iterator[tuple[str, int, float, list[Cell]]]:
    """The heading, the length and the mean of each task and length, with its cells."""
    cells: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for record in measured:
        for heading in evaluation.headings(record):
            cells[heading, record["length"]].append(record)
    for (heading, length), found in sorted(cells.items()):
        yield (
            heading,
            length,
            evaluation.mean([each["value"] for each in found], [*map(evaluation.weight, found)]),
            found,
        )


def summarise(run: str | os.PathLike, evaluation: Evaluation, measured: Sequence[Cell]) -> Iterator[str]:
    """A line with the mean of each task and length, and one with the lengths that were skipped."""
    lengths = set()
    for heading, length, value, found in _means(evaluation, measured):
        n = sum(record["n"] for record in found)
        name = f"{heading} {found[0]['unit']}".strip()
        yield f"{run}: {name} at {length} tokens: {value:.3f} ({n} {evaluation.sample_noun})"
        lengths.add(length)
    if left_out := sorted({*evaluation.lengths} - lengths):
        yield f"{run}: not measured: {', '.join(map(str, left_out))} tokens, {evaluation.why_left_out()}"


def _log(run: Path, evaluation: Evaluation, measured: Sequence[Cell]) -> None:
    """Write the means to the logger of the run's training, under names such as "passkey/4096 tokens" at the checkpoint's step."""
    config = run_folder.read_config(run)
    if config.logger and measured:
        changes = ", ".join(f"{name}={value}" for name, value in sorted(evaluation.overrides.items()))
        record: dict[str, Any] = {"step": measured[0]["step"]}
        for heading, length, value, _ in _means(evaluation, measured):
            name = "/".join(filter(None, (evaluation.name, heading, changes, f"{length} tokens")))
            record[name] = value
        with contextlib.closing(LOGGERS[config.logger](config, run)) as logger:
            logger.write(record)
