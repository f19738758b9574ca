"""The folder of rankings: what stands in it of the same ranking, and that it is nobody else's."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bam_jax.retrieval.results import Setting
from bam_jax.system import files, jsonl, regular, strict_json
from bam_jax.system.errors import UserError
from bam_jax.system.fields import Count, Finite, Line, Natural

METRICS = "metrics.json"
EMBEDDINGS = "embeddings"

_REMEDY = "move it, or give another --out"
_EMBEDDINGS_OF_LENGTH = re.compile(r"[0-9a-f]+-\d+")


class Interval(TypedDict):
    """The mean of a measure over the queries, and the ends of its interval."""

    mean: Finite
    low: Finite
    high: Finite


class Result(TypedDict):
    """The measures of one ranking, as `results.summarise` gives them, and the commit of the code that made it."""

    scorer: Line
    length: Count
    commit: NotRequired[Line | None]
    ndcg_10: Interval
    recall_100: Interval
    mrr_10: Interval


class Origin(TypedDict):
    """The things that all rankings of a folder have in common: a step of a run, and a problem."""

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
    """The contents of `METRICS`; older ones say the commit once."""

    results: list[Result]
    commit: NotRequired[Line | None]


def read_results(out: Path, origin: Origin) -> dict[Setting, Mapping[str, Any]]:
    """The results that stand in a folder, which more of the same origin may join."""
    path = out / METRICS
    regular.list_tree(out / EMBEDDINGS)
    if not path.exists():
        others = sorted(each.name for each in out.iterdir() if each.name[0] != "." and not _holds_embeddings(each))
        if others:
            raise UserError(f"--out={out} holds something else than rankings: {files.shortened(others, 3)}; {_REMEDY}")
        return {}
    found: Ranked = strict_json.check(jsonl.parse(regular.read(path), str(path), _REMEDY), Ranked, str(path), _REMEDY)
    differences = ", and of ".join(_differences(found, origin))
    if differences:
        raise UserError(f"{path} is of another ranking: of {differences}; give another --out")
    older = {"commit": found["commit"]} if "commit" in found else {}
    return {Setting(each["scorer"], each["length"]): {**older, **each} for each in found["results"]}


def write_results(out: Path, origin: Origin, results: Mapping[Setting, Mapping[str, Any]]) -> None:
    """Writes results, with their origin."""
    listed = [{**setting._asdict(), **result} for setting, result in results.items()]
    files.write_atomically(out / METRICS, jsonl.document({**origin, "results": listed}, 1))


def _holds_embeddings(path: Path) -> bool:
    """True of a folder with embeddings, which a command that was killed leaves, and nothing besides."""
    return (
        path.name == EMBEDDINGS
        and path.is_dir()
        and all(_EMBEDDINGS_OF_LENGTH.fullmatch(each.name) for each in path.iterdir())
    )


def _differences(found: Origin, ours: Origin) -> Iterator[str]:
    """The ways in which what was ranked is not what is to be, in the words of the command's arguments."""
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
    """The changes of a run's configuration, as they are typed."""
    typed = [f"--config.{name}={value}" for name, value in origin["overrides"].items()]
    return " ".join(typed) or "the run's own configuration"
