"""Commands with less memory than they want, in a process with limited address space.

Some ask for more than there is, and must end with status 2 and one line that says so; any other refusal is a failure. Each
command that writes also runs with several limits. It must succeed ("ended well") or end with that line, within ten minutes and
without a traceback.
"""

from pathlib import Path

from endurance import commands, made, writers
from endurance.figures import FIGURES, Outcome

WHAT = "commands short of memory: success, or one line that says so"
LIMIT = 8 * 2**30  # bytes of address space of a command that asks for too much; threads and libraries take some 3 GiB
LIMITS = (1024, 3072, 4096, 6144)  # MiB of address space of a command that needs little
LACK = "error: not enough memory ("  # the beginning of the line
TRAIN = "bam_jax.train --config={folder}/small.py --workdir={out}/new --no-progress "
LARGE = {
    "a batch that is too large": f"{TRAIN} --config.batch={2**22}",
    "a model that is too large": f"{TRAIN} --config.model.layers=2 --config.model.width={2**15} --config.model.hidden={2**15}",
    "a text that is too long": f"bam_jax.evaluate --run={{folder}}/run --eval=passkey --lengths={2**30} --depths=1 --memory=1e9 "
    "--no-progress",
    "more tokens to write than fit": f"bam_jax.generate --run={{folder}}/run --prompt=a --tokens={2**28}",
    "heads of too many keys": f"bam_jax.heads --run={{folder}}/run --keys={2**30} --tokens=16",
}
CASES = [*LARGE, *((name, limit) for name in writers.WRITERS for limit in LIMITS)]


def measure(seed: int, count: int, folder: Path) -> Outcome:
    outcome, said, well = Outcome(), {}, {}
    for number, case in enumerate(CASES[seed * FIGURES["out_of_memory"].part :][:count]):
        out = folder / f"{number}"
        if case in LARGE:
            out.mkdir()
            ended = commands.start(commands.fill(LARGE[case], folder=made.common(), out=out), LIMIT)
            wrong = commands.complaint(ended, (2,))
            if not wrong and LACK not in ended.err:
                wrong = f"refused for something else: {ended.err[:300]!r}"
            said[case] = ended.err.strip()
        else:
            name, limit = case
            writer = writers.WRITERS[name]
            writer.begin(out)
            ended = commands.start(writer.command(out), limit * 2**20)
            wrong = commands.complaint(ended, (0, 1, 2) if name == "sweep" else (0, 2))
            well[f"{name}, {limit} MiB"] = "yes" if ended.status == 0 else "no"
        outcome.add(f"{case}", wrong)
    outcome.more = {name: group for name, group in (("said", said), ("ended_well", well)) if group}
    return outcome
