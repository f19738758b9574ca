"""Cases of `bench.accelerator`, run one after another; each one's outcome is a line of a folder's records."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from bam_jax.experiments.speed_records import Machine
from bam_jax.system import git, jsonl, strict_json
from bam_jax.system.errors import Stopped, UserError
from bam_jax.system.fields import Count, Line, Seconds
from benchmarks.attention_speed import REFUSALS, first_line

RECORDS = "records.jsonl"
"""The file of the records in the folder."""

TRIES = 2
"""Times that a case is begun which ends its process each time, before it counts as failed."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to find out, which takes seconds to minutes.

    Args:
        stage: the part of the command that it belongs to.
        name: one line, its own within the stage.
        run: finds it out; the outcome, of JSON values, has a `status` as `CaseFields` says.
        seconds: that it takes at least; it is not begun where fewer are left.
    """

    stage: str
    name: str
    run: Callable[[], dict[str, Any]]
    seconds: float = 0.0


class ChipMachine(Machine):
    """The machine, which has one or more devices of a platform."""

    platform: Literal["cpu", "gpu", "tpu"]
    devices: Count
    python: Line


class About(TypedDict):
    """The facts that all cases of a folder share.

    Args:
        machine: as `bench.machine` describes it.
        short: whether sizes are tiny.
        config: file of the model that is trained.
    """

    machine: ChipMachine
    short: bool
    config: str


class CaseFields(About):
    """A line of the records: a case that began, or its outcome, which has fields of its own as well.

    Failed and refused cases have a `reason`. What is refused is no failure: the backend says that it does not do it.
    """

    stage: Line
    case: Line
    status: Literal["started", "passed", "failed", "refused", "measured"]
    commit: Line | None
    seconds: NotRequired[Seconds]
    reason: NotRequired[Line]


def read(folder: Path) -> list[dict[str, Any]]:
    """Read all lines of a folder's records; a folder without records has none.

    Args:
        folder: of the command.

    Raises:
        UserError: a line is no such record; the message names the file and the line.
    """
    path = folder / RECORDS
    return [
        strict_json.check(record, CaseFields, f"{path}, line {number}", "remove that line")
        for number, record in enumerate(jsonl.read(path), start=1)
    ]


def outcomes(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Find the newest line of each case, by stage and name.

    A case that ended its process `TRIES` times has failed.

    Args:
        records: as `read` gives them.
    """
    newest = {(record["stage"], record["case"]): record for record in records}
    for key, record in newest.items():
        begun = sum(x["status"] == "started" and (x["stage"], x["case"]) == key for x in records)
        if record["status"] == "started" and begun >= TRIES:
            newest[key] = record | {
                "status": "failed",
                "reason": f"its process ended {begun} times before it did; --again=failed tries it again",
            }
    return newest


def missing(cases: Sequence[Case], records: Sequence[dict[str, Any]]) -> list[Case]:
    """The cases that have no outcome yet, those last that began before and ended their process.

    Args:
        cases: all that are wanted.
        records: as `read` gives them.
    """
    known = outcomes(records)
    begun = lambda case: (case.stage, case.name) in known
    wanted = [case for case in cases if not begun(case) or known[case.stage, case.name]["status"] == "started"]
    return sorted(wanted, key=begun)  # stable


def failed(cases: Sequence[Case], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcomes of the cases that failed.

    Args:
        cases: all that are wanted.
        records: as `read` gives them.
    """
    known = outcomes(records)
    wanted = {(case.stage, case.name) for case in cases}
    return [record for key, record in known.items() if key in wanted and record["status"] == "failed"]


def forget(folder: Path, stages: Sequence[str], *, only_failed: bool) -> None:
    """Remove records, so that their cases are run again.

    Args:
        folder: of the command.
        stages: whose records.
        only_failed: whether those of cases that did not fail stay.
    """
    known = outcomes(read(folder))

    def stays(record: dict[str, Any]) -> bool:
        keep = only_failed and known[record["stage"], record["case"]]["status"] != "failed"
        return record["stage"] not in stages or keep

    jsonl.keep(folder / RECORDS, stays)


def check_same(records: Sequence[dict[str, Any]], about: About, folder: Path) -> None:
    """Refuse to add to the records of another device, size or model.

    Args:
        records: as `read` gives them.
        about: what is measured now.
        folder: of the records.

    Raises:
        UserError: they are of another one.
    """
    facts = lambda x: {"device": x["machine"]["device"], "--short": x["short"], "--config": x["config"]}
    now = facts(about)
    for record in records:
        for name, value in facts(record).items():
            if value != now[name]:
                raise UserError(
                    f"--out={folder} holds records of {name}={value}, and this is {now[name]}; give another folder"
                )


def run_all(
    cases: Sequence[Case],
    folder: Path,
    about: About,
    deadline: float,
    check_device: Callable[[], Any] = lambda: None,
) -> None:
    """Run the cases that are missing, one after another, and add the outcome of each to the records at once.

    A case that raises one of `REFUSALS` has failed, with the first line of what was said.

    Args:
        cases: all that are wanted.
        folder: of the records.
        about: what they share.
        deadline: of `time.monotonic`.
        check_device: is called after a failure; it raises where the device answers no more, so that another process goes on.

    Raises:
        Stopped: the time is over before all have run.
    """
    commit, todo = git.describe(), missing(cases, read(folder))
    for number, case in enumerate(todo):
        if time.monotonic() + case.seconds >= deadline:
            raise Stopped(f"{folder}: {len(todo) - number} cases are left")
        head = {"stage": case.stage, "case": case.name, **about, "commit": commit}
        # A process that a kernel kills leaves this line alone: the next one takes the case last, and not forever.
        jsonl.append(folder / RECORDS, {**head, "status": "started"})
        started = time.monotonic()
        try:
            outcome = case.run()
        except REFUSALS as error:
            outcome = {"status": "failed", "reason": first_line(error)}
        if "reason" in outcome:  # what a compiler says may hold any characters
            outcome["reason"] = "".join(c if c.isprintable() else " " for c in outcome["reason"])
        seconds = round(time.monotonic() - started, 3)
        jsonl.append(folder / RECORDS, {**head, "seconds": seconds, **outcome})
        print(describe(case, outcome, seconds), flush=True)
        if outcome["status"] == "failed":
            check_device()


def describe(case: Case, outcome: dict[str, Any], seconds: float) -> str:
    """Say a case's outcome in one line.

    Args:
        case: which was run.
        outcome: what it gave.
        seconds: that it took.
    """
    reason = f": {outcome['reason']}" if "reason" in outcome else ""
    said = f": {outcome['summary']}" if "summary" in outcome else ""
    return f"{case.stage:12} {case.name:48} {outcome['status']}{said}{reason} ({seconds:.1f} s)"
