"""Commands that have less memory than they want: a process with a limit on its address space says so in one line, status 2.

Some ask for more than there is; another refusal, such as one of an argument, is a failure of theirs. Each command that writes
runs with several limits as well: it ends well ("ended well") or with the line, without a traceback, and within ten minutes.
"""

from collections.abc import Callable
from pathlib import Path

from endurance import commands, made, writers
from endurance.figures import Figure, Outcome

LIMIT = 8 * 2**30
"""Bytes of address space of a command that asks for too much; threads and libraries of one that needs little take some 3 GiB."""
LIMITS = (1024, 3072, 4096, 6144)
"""MiB of address space of a command that needs little."""
LACK = "error: not enough memory ("
"""The beginning of the line."""
LARGE: dict[str, Callable[[Path, Path], tuple[str, list[str]]]] = {
    "a batch that is too large": lambda run, out: (
        "bam_jax.train",
        [made.configuration(out, batch=2**22), f"--workdir={out / 'new'}", "--no-progress"],
    ),
    "a model that is too large": lambda run, out: (
        "bam_jax.train",
        [
            made.configuration(out, model={"layers": 2, "width": 2**15, "heads": 2, "hidden": 2**15}),
            *(f"--workdir={out / 'new'}", "--no-progress"),
        ],
    ),
    "a text that is too long": lambda run, out: (
        "bam_jax.evaluate",
        [f"--run={run}", "--eval=passkey", f"--lengths={2**30}", "--depths=1", "--memory=1e9", "--no-progress"],
    ),
    "more tokens to write than fit": lambda run, out: (
        "bam_jax.generate",
        [f"--run={run}", "--prompt=a", f"--tokens={2**28}"],
    ),
    "heads of too many keys": lambda run, out: ("bam_jax.heads", [f"--run={run}", f"--keys={2**30}", "--tokens=16"]),
}
CASES = [*LARGE, *((name, limit) for name in writers.WRITERS for limit in LIMITS)]


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Starts so many commands; see `figures.Figure`."""
    failures, said, well = [], {}, {}
    for number, case in enumerate(CASES[seed * PART :][:count]):
        out = folder / f"{number}"
        if case in LARGE:
            out.mkdir()
            module, argv = LARGE[case](made.common() / "run", out)
            ended = commands.start(module, argv, limit=LIMIT)
            wrong = commands.complaint(ended, (2,))
            if not wrong and LACK not in ended.err:
                wrong = f"refused for something else: {ended.err[:300]!r}"
            said[case] = ended.err.strip()
        else:
            name, limit = case
            writer = writers.WRITERS[name]
            writer.begin(out)
            ended = commands.start(writer.module, writer.argv(out, writers.inputs()), limit=limit * 2**20)
            wrong = commands.complaint(ended, (0, 1, 2) if name == "sweep" else (0, 2))
            well[f"{name}, {limit} MiB"] = "yes" if ended.status == 0 else "no"
        if wrong:
            failures.append(f"{case}: {wrong}")
    groups = {"said": said, "ended_well": well}
    return Outcome(len(said) + len(well), failures, {name: group for name, group in groups.items() if group})


PART = 12
FIGURE = Figure(
    what="commands that may have less memory than they want: one line that says so, status 2, or what they are to do",
    unit="commands",
    wanted=len(CASES),
    part=PART,
    short=1,
    minutes=15,
    measure=measure,
)
