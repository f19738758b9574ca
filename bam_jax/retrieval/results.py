"""A folder of rankings of one problem: TREC run files and their measures."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from bam_jax.retrieval.metrics import TITLES, Measures, bootstrap_interval, measure
from bam_jax.retrieval.problem import Problem
from bam_jax.retrieval.ranking import Best
from bam_jax.system import files, jsonl, regular, typed_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Natural


class Setting(NamedTuple):
    """A name in `ranking.SCORERS`, and the number of tokens at which texts were cut."""

    scorer: str
    length: int


def measure_rankings(problem: Problem, best: Best) -> Measures:
    ranked = [best.names(number) for number in range(len(problem.queries))]
    return measure(ranked, [query.grades for query in problem.queries])


def write_run(path: Path, problem: Problem, best: Best, tag: str) -> None:
    """Writes rankings as trec_eval reads them: query, Q0, document, rank, score, tag. Nine digits keep a float32 exactly."""
    lines = [
        f"{query.id} Q0 {name} {rank} {score:.9g} {tag}\n"
        for number, query in enumerate(problem.queries)
        for rank, (name, score) in enumerate(best.ranking(number), 1)
    ]
    files.write_atomically(path, "".join(lines))


def summarise(measures: Measures) -> dict[str, dict[str, float]]:
    """The mean of each measure over the queries, with its bootstrap interval."""
    interval = lambda values: dict(zip(("low", "high"), bootstrap_interval(values), strict=True))
    return {name: {"mean": float(values.mean()), **interval(values)} for name, values in measures._asdict().items()}


def table(found: Mapping[Setting, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| tokens | ranked by | {' | '.join(TITLES.values())} |"
    yield f"|{' --- |' * (2 + len(TITLES))}"
    for setting, summary in sorted(found.items(), key=lambda item: (item[0].length, item[0].scorer)):
        cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**summary[name]) for name in TITLES]
        yield f"| {setting.length} | {setting.scorer} | {' | '.join(cells)} |"


METRICS = "metrics.json"
EMBEDDINGS = "embeddings"

_REMEDY = "move it, or give another --out"
_EMBEDDINGS_OF_LENGTH = re.compile(r"[0-9a-f]+-\d+")


class Interval(TypedDict):
    """The mean of a measure over the queries with its interval."""

    mean: Finite
    low: Finite
    high: Finite


class Result(TypedDict):
    """The measures of one ranking (`summarise`), and the commit of the code."""

    scorer: Line
    length: Count
    commit: NotRequired[Line | None]
    ndcg_10: Interval
    recall_100: Interval
    mrr_10: Interval


class Origin(TypedDict):
    """What all rankings of a folder share: a step of a run, and a problem."""

    run: str
    config: str
    step: Natural
    overrides: dict
    tokenizer: str
    data_hash: str
    queries: Count
    documents: Count
    corpus: str


class Ranked(Origin):
    """The contents of `METRICS`; older files have a single commit."""

    results: list[Result]
    commit: NotRequired[Line | None]


def read_results(out: Path, origin: Origin) -> dict[Setting, Mapping[str, Any]]:
    path = out / METRICS
    regular.list_tree(out / EMBEDDINGS)
    if not path.exists():
        others = sorted(each.name for each in out.iterdir() if each.name[0] != "." and not _holds_embeddings(each))
        if others:
            raise UserError(f"--out={out} holds something else than rankings: {files.shortened(others, 3)}; {_REMEDY}")
        return {}
    found: Ranked = typed_json.check(jsonl.parse(regular.read(path), str(path), _REMEDY), Ranked, str(path), _REMEDY)
    differences = ", and of ".join(_differences(found, origin))
    if differences:
        raise UserError(f"{path} is of another ranking: of {differences}; give another --out")
    older = {"commit": found["commit"]} if "commit" in found else {}
    return {Setting(each["scorer"], each["length"]): {**older, **each} for each in found["results"]}


def write_results(out: Path, origin: Origin, results: Mapping[Setting, Mapping[str, Any]]) -> None:
    listed = [{**setting._asdict(), **result} for setting, result in results.items()]
    files.write_atomically(out / METRICS, jsonl.document({**origin, "results": listed}, 1))


def _holds_embeddings(path: Path) -> bool:
    """Whether a folder contains nothing but embeddings, as a killed command leaves it."""
    folder = path.name == EMBEDDINGS and path.is_dir()
    return folder and all(_EMBEDDINGS_OF_LENGTH.fullmatch(each.name) for each in path.iterdir())


def _differences(found: Origin, ours: Origin) -> Iterator[str]:
    """The differences from earlier rankings, in the command's terms."""
    if (found["config"], found["tokenizer"]) != (ours["config"], ours["tokenizer"]):
        if found["run"] == ours["run"]:
            yield f"run {found['run']} when it had another configuration or tokenizer"
        else:
            yield f"run {found['run']}, not {ours['run']}"
    if found["step"] != ours["step"]:
        yield f"step {found['step']}, not {ours['step']}"
    if found["overrides"] != ours["overrides"]:
        yield f"{_changes(found)}, not {_changes(ours)}"
    if found["data_hash"] != ours["data_hash"]:
        if found["corpus"] == ours["corpus"]:
            yield f"other documents, queries or judgements than now, of corpus {found['corpus']}"
        else:
            yield f"corpus {found['corpus']}, not {ours['corpus']}"


def _changes(origin: Origin) -> str:
    typed = [f"--config.{name}={value}" for name, value in origin["overrides"].items()]
    return " ".join(typed) or "the run's own configuration"
