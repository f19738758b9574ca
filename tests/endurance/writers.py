"""The commands that write, on small inputs."""

import dataclasses
import functools
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from endurance import commands, flipped, made

from bam_jax.experiments.experiment_json import DESCRIPTION
from bam_jax.experiments.sweep import Sweep
from bam_jax.system import files, jsonl

VARYING = "seconds tokens_per_second time peak_bytes started ended command commit machine crc32".split()
"""Fields of records that differ between runs; the checksum is that of the others."""
CLAIMS = """
paper = "{paper}"
[tables]
table1 = {{ file = "{file}", title = "Table 1" }}
[[claim]]
place = "1"
says = "it reads"
checks = [{{ is = "bound", table = "table1", columns = "16", rows = "{row}", least = 0.9 }}]
"""


@dataclasses.dataclass(frozen=True)
class Writer:
    """A command that writes a folder, `out`, from inputs, `given`."""

    template: str
    left: Callable[[Path], Mapping[str, object]]  # what it leaves in the folder, by name
    copied: tuple[str, ...] = ()  # inputs that lie in the folder it writes

    def command(self, out: Path) -> list[str]:
        return commands.fill(self.template, out=out, given=inputs())

    def begin(self, out: Path) -> None:
        """Makes the folder that it writes."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name in self.copied:
            shutil.copytree(inputs() / name, out / name)


def records(folder: Path) -> dict[str, str]:
    """The records of all runs, each line without the fields that vary; a line that cannot be read stays as "torn"."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        if "checkpoints" in path.parts:  # which ones a run keeps depends on where it was stopped; the last is compared
            continue
        for number, line in enumerate(path.read_bytes().splitlines()):
            try:
                record = {key: value for key, value in json.loads(line).items() if key not in VARYING}
            except ValueError:
                record = "torn"
            found[f"{path.relative_to(folder)}:{number}"] = json.dumps(record, sort_keys=True)
    return found


def trained(folder: Path) -> dict[str, str]:
    """The records of runs, and the bits of their models."""
    runs = [path.parent for path in folder.rglob("config.json")]
    return {**records(folder), **{f"{run.name}: model": flipped.model(run) for run in runs}}


def _files(out: Path) -> dict[str, bytes]:
    """All files except the drafts that killed processes leave, which are removed a day later."""
    return {name: bits for name, bits in commands.contents(out).items() if not name.endswith(files.DRAFT)}


def _rankings(out: Path) -> dict[str, bytes]:
    return {name: bits for name, bits in _files(out).items() if name.endswith((".run", ".npy"))}


WRITERS = {
    "prepare": Writer(
        "bam_jax.data.prepare --source={given}/text --out={out}/data --tokenizer=byte --shard-tokens=50000 --workers=2",
        _files,
    ),
    "train": Writer("bam_jax.train --config={given}/long.py --workdir={out}/run --no-progress", trained),
    "evaluate": Writer(
        "bam_jax.evaluate --run={out}/decoder --eval=perplexity --lengths=2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 --tokens=64 "
        "--no-progress",
        records,
        ("decoder",),
    ),
    "sweep": Writer("bam_jax.sweep {given}/tabled.py --runs={out}/runs --jobs=2", trained),
    "retrieve": Writer(
        "bam_jax.retrieve --run={given}/encoder --corpus={given}/corpus.jsonl --queries={given}/queries.jsonl --lengths=8,16 "
        "--out={out}/ranked --no-progress",
        _rankings,
    ),
    "export": Writer("bam_jax.convert --run={given}/decoder --export={out}/exported", trained),
    "import": Writer(
        "bam_jax.convert --layout=bam --source={given}/theirs --run={out}/run --config.data.tokenizer=byte", trained
    ),
    "report": Writer("bam_jax.report {out}/runs", _files, ("runs",)),
    "tables": Writer("bam_jax.tables {given}/tabled.py --runs={given}/runs --out={out}/tables", _files),
    "claims": Writer(
        "bam_jax.claims {given}/claims.toml --runs={given}/runs --scale=toy --out={out}/claims.md", _files
    ),
    "figures": Writer("bam_jax.figures priors --run={given}/decoder --out={out}/priors", _files),
}


@functools.cache
def inputs() -> Path:
    """The folder of the commands' inputs; a process makes it once."""
    given = made.common() / "inputs"
    (given / "text").mkdir(parents=True)
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("ba", "lo", "mi", "re", "sta", "un") for b in ("", "der", "kin", "ta", "son", "ver")]
    text = lambda n: " ".join(draw.choices(words, k=n))
    for number in range(40):
        (given / "text" / f"{number:02}.txt").write_text("\n\n".join(text(300) for _ in range(10)))
    lines = [{"docid": f"d{n}", "text": text(20)} for n in range(4000)]
    (given / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = [
        {"query_id": f"q{n}", "query": lines[n]["text"][:60], "positive_passages": [{"docid": f"d{n}"}]}
        for n in range(0, 500, 5)
    ]
    (given / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    values = made.values(given)
    masked = {"model": values["model"] | {"causal": False}, "data": values["data"] | {"task": "masked"}}
    kinds = {
        "long": {"steps": 60, "checkpoint_every": 5},
        "encoder": {"encoding": "alibi", **masked},
        "decoder": {"steps": 4},
    }
    for name, changes in kinds.items():
        (given / f"{name}.py").write_text(made.to_file({**values, **changes}))
    for name in ("encoder", "decoder"):
        made.well(
            "bam_jax.train --config={given}/{name}.py --workdir={given}/{name} --no-progress", given=given, name=name
        )
    made.well("bam_jax.convert --layout=bam --run={given}/decoder --export={given}/theirs", given=given)
    tabled = made.experiment("Tabled", given / "decoder.py", "One", "Two", lengths=(4, 8, 12, 16))
    (given / "tabled.py").write_text(tabled)
    (given / "claims.toml").write_text(CLAIMS.format(paper="Tabled", file="tabled", row="One"))
    for row in ("one-seed0", "two-seed0"):  # in this process; a sweep of both starts one for each
        made.well("bam_jax.sweep {given}/tabled.py --runs={given}/runs --only={row}", given=given, row=row)
    runs = given / "runs"
    (runs / DESCRIPTION).write_text(jsonl.document(Sweep.load([str(given / "tabled.py")], runs=runs).describe(), 2))
    return given
