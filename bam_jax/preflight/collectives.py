"""The collective operations of a compiled program, read from its HLO text: how often they run and what devices send."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")
"""The kinds of `Collective`."""

_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?%?([\w.-]+)")
_PART = re.compile(r"(async_collective_fusion|fused_)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}|\b(?:true|false)_computation=(%?[\w.-]+)")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)[a-z\d]*\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of the program, as often as a run of it meets it.

    Args:
        kind: one of `KINDS`.
        bytes: that each device sends, in all its runs together: of n devices in a ring (n - 1) / n of the gathered, scattered
            or exchanged array, twice that of one that is reduced for all, the whole of one that is passed on.
        times: how often it runs.
    """

    kind: str
    bytes: float
    times: int


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str


@dataclasses.dataclass(frozen=True)
class _Part:
    """The key of one asynchronous collective, which several computations hold.

    Its start, its end and what goes on meanwhile are fused computations, and each of them holds the instruction. The channel
    alone does not tell: all collectives of `jax.shard_map` have the same.
    """

    channel: str
    kind: str
    bytes: float


type Key = str | _Part


def collectives(text: str, devices: int) -> tuple[list[Collective], list[str]]:
    """Collect the collectives of a program, those in loops as often as the loops turn.

    The compiler says how often a loop turns; where it does not, the loop's condition compares a counter with the number, which
    scans count up from 0. Of the branches of a condition the one that sends most counts.

    Args:
        text: of `jax.stages.Compiled.as_text`.
        devices: of the program, the group of a collective that names none.

    Returns:
        The collectives, and the names of loops with some whose turns the text does not tell: they are counted for one turn.
    """
    computations, entry = _computations(text)
    reader = _Reader(computations, devices)
    return list(reader.total(entry).values()), sorted(reader.unknown)


class _Reader:
    """Sums up computations, each once."""

    def __init__(self, computations: dict[str, list[_Instruction]], devices: int):
        self.computations, self.devices = computations, devices
        self.done: dict[str, dict[Key, Collective]] = {}
        self.unknown: set[str] = set()

    def total(self, name: str) -> dict[Key, Collective]:
        """Collectives of a computation, each once."""
        if name not in self.done:
            found: dict[Key, Collective] = {}
            for instruction in self.computations[name]:
                found |= self.collect(instruction, name)
            self.done[name] = found
        return self.done[name]

    def collect(self, instruction: _Instruction, inside: str) -> dict[Key, Collective]:
        """Collectives of one instruction, and of the computations that it calls."""
        kind = instruction.opcode.removesuffix("-start")
        if kind in KINDS:
            collective = self._collective(kind, instruction, inside)
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            if channel and _PART.match(inside):
                return {_Part(channel[1], kind, collective.bytes): collective}
            return {instruction.name: collective}
        within = lambda key: f"{instruction.name}/{key}"  # a computation may be called more than once
        if kind == "while":
            body = self.total(_named("body", instruction))
            turns = self._turns(instruction, inside) if body else 0
            return {
                within(key): Collective(each.kind, each.bytes * turns, each.times * turns) for key, each in body.items()
            }
        if kind == "conditional":
            branches = [self.total(name) for name in _branches(instruction.rest)]
            most = max(branches, key=lambda branch: sum(each.bytes for each in branch.values()))
            return {within(key): each for key, each in most.items()}
        merged: dict[Key, Collective] = {}
        for called in _CALLED.findall(instruction.rest):
            found = self.total(called)
            merged |= {key if isinstance(key, _Part) else within(key): each for key, each in found.items()}
        return merged

    def _collective(self, kind: str, instruction: _Instruction, inside: str) -> Collective:
        shapes = [_bytes(*found) for found in _SHAPE.findall(instruction.shape)]
        if instruction.opcode.endswith("-start") and kind != "all-reduce":  # operands, results, and counters of no size
            shapes = [size for size in shapes if size > 4] or shapes
            shapes = shapes[len(shapes) // 2 :]
        size, members = float(sum(shapes)), self._group(instruction.rest)
        if kind == "all-reduce" and inside.startswith("all-reduce-scatter"):  # how TPUs write one
            return Collective("reduce-scatter", size * (members - 1) / members, 1)
        share = {
            "all-gather": (members - 1) / members,
            "reduce-scatter": members - 1,  # of the part that is left
            "all-reduce": 2 * (members - 1) / members,
            "collective-permute": 1,
            "all-to-all": (members - 1) / members,
        }
        return Collective(kind, size * share[kind], 1)

    def _group(self, rest: str) -> int:
        """The number of devices that take part together."""
        if named := re.search(r"replica_groups=\w+\[([^\]]*)\] \{([^}]*)\}", rest):
            sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
            return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", named[2]))
        if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
            return int(counted[1])
        if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
            return listed[1].count(",") + 1
        return self.devices

    def _turns(self, loop: _Instruction, inside: str) -> int:
        """The number of a loop's turns; 1 for one that the text does not tell of, which is noted."""
        if known := re.search(r'known_trip_count":?\{"n":"(\d+)"', loop.rest):
            return int(known[1])
        condition = {each.name: each for each in self.computations[_named("condition", loop)]}
        compared = [each for each in condition.values() if each.opcode == "compare" and "direction=LT" in each.rest]
        for each in compared:
            limit = condition[_operands(each.rest)[1]]
            if limit.opcode == "get-tuple-element":  # a number that was carried in
                (index,) = re.findall(r"index=(\d+)", limit.rest)
                limit = self._carried(loop, int(index), inside)
            if limit.opcode == "constant" and (number := re.match(r"(\d+)\)", limit.rest)):
                return int(number[1])
        self.unknown.add(loop.name)
        return 1

    def _carried(self, loop: _Instruction, index: int, inside: str) -> _Instruction:
        """The instruction that makes the number `index` of those that a loop begins with."""
        instructions = {each.name: each for each in self.computations[inside]}
        start = instructions[_operands(loop.rest)[0]]
        source = instructions[_operands(start.rest)[index]]
        while source.opcode in ("copy", "bitcast"):
            source = instructions[_operands(source.rest)[0]]
        return source


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Instructions of each computation, and the name of the one that is run."""
    found: dict[str, list[_Instruction]] = {}
    entry = ""
    for name, line in _lines(text):
        if line is None:
            found[name.removeprefix("ENTRY ")] = []
            entry = name.removeprefix("ENTRY ") if name.startswith("ENTRY ") else entry
        elif match := _INSTRUCTION.match(line):
            found[name.removeprefix("ENTRY ")].append(_Instruction(*match.groups()))
    return found, entry


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """Each line with its computation, which comes first without one."""
    name = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = (head[1] or "") + head[2]
            yield name, None
        elif line.startswith("}"):
            name = ""
        elif name:
            yield name, line


def _named(what: str, instruction: _Instruction) -> str:
    (name,) = re.findall(rf"\b{what}=%?([\w.-]+)", instruction.rest)
    return name


def _branches(rest: str) -> list[str]:
    """Names of the computations of a condition's branches."""
    names = [name for pair in _BRANCHES.findall(rest) for name in ",".join(pair).split(",")]
    return [name.strip().removeprefix("%") for name in names if name]


def _operands(rest: str) -> list[str]:
    """Names before the parenthesis that closes an instruction's operands."""
    return re.findall(r"%([\w.-]+)", rest.partition(")")[0])


def _bytes(letters: str, bits: str, dims: str) -> int:
    width = 8 if letters == "pred" else int(bits)
    return math.prod(int(n) for n in dims.split(",") if n) * width // 8
