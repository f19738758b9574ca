"""Commands that ask for more memory than there is: a process with a limit on its address space says so in one line, status 2.

Another refusal, such as one of an argument, is a failure: none of these commands is refused before it asks for the memory.
"""

from collections.abc import Callable
from pathlib import Path

from endurance import commands, made
from endurance.figures import Figure, Outcome

LIMIT = 8 * 2**30
"""Bytes of address space of a command; the threads and libraries of one that needs little take some 3 GiB of it."""
LACK = "error: not enough memory ("
"""The beginning of the line."""
CASES: dict[str, Callable[[Path, Path], tuple[str, list[str]]]] = {
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


def measure(seed: int, count: int, folder: Path) -> Outcome:
    """Starts so many commands; see `figures.Figure`."""
    failures, said = [], {}
    for number, name in enumerate(list(CASES)[:count]):
        out = folder / f"{number}"
        out.mkdir()
        module, argv = CASES[name](made.common() / "run", out)
        ended = commands.start(module, argv, limit=LIMIT)
        wrong = commands.complaint(ended, (2,))
        if not wrong and LACK not in ended.err:
            wrong = f"refused for something else: {ended.err[:300]!r}"
        if wrong:
            failures.append(f"{name}: {wrong}")
        said[name] = ended.err.strip()
    return Outcome(len(said), failures, {"said": said})


FIGURE = Figure(
    what=f"commands that need more than {LIMIT // 2**30} GiB where there is no more: one line that says so, status 2",
    unit="commands",
    wanted=len(CASES),
    part=len(CASES),
    short=1,
    minutes=5,
    measure=measure,
)
