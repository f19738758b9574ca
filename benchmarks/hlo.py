"""Counts the launches, reads and writes of a compiled GPU program from its text.

A loop counts once per iteration, a conditional as its largest branch.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator

_NO_LAUNCH = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    line: str

    @property
    def launches(self) -> bool:
        """Whether it starts a kernel or a copy."""
        return self.operation not in _NO_LAUNCH and not self.operation.endswith("-done")

    def called(self, *keys: str) -> list[str]:
        """The computations that it calls under these keys."""
        found = re.findall(rf"\b(?:{'|'.join(keys)})=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", self.line)
        return [name.strip().lstrip("%") for several, one in found for name in (several or one).split(",")]


class Program:
    """A compiled program's computations."""

    def __init__(self, text: str):
        found = re.findall(r"^(ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
        self.computations = {name: list(_instructions(body)) for _, name, body in found}
        self.entry = next(name for entry, name, _ in found if entry)

    def launches(self) -> int:
        """Count the kernels that it starts."""
        return self._sum(self.entry, lambda each, _: each.launches)

    def traffic(self) -> int:
        """Count the bytes that its kernels read and write, if each reads its operands once.

        If a kernel takes a slice of an operand, only the slice is read; if it replaces a slice, only the slice is written.
        """
        return self._sum(self.entry, self._bytes)

    def loops(self) -> list[dict]:
        """The program's loops, inner loops first, with the total launches and traffic over all iterations."""
        return list(self._loops(self.entry, 1))

    def _loops(self, name: str, times: int) -> Iterator[dict]:
        for each in self.computations[name]:
            if each.operation == "while":
                (body,), rounds = each.called("body"), times * _rounds(each)
                yield from self._loops(body, rounds)
                source = re.search(r'op_name="([^"]*)"', each.line)
                yield {
                    "source": "" if source is None else source.group(1),
                    "rounds": rounds,
                    "launches": rounds * self._sum(body, lambda inner, _: inner.launches),
                    "traffic": rounds * self._sum(body, self._bytes),
                }
            elif each.operation == "call":
                yield from self._loops(each.called("to_apply")[0], times)

    def _sum(self, name: str, cost: Callable[[Instruction, dict[str, Instruction]], int]) -> int:
        """The sum of a cost over the instructions of a computation; the cost may look up other instructions by name."""
        known = {each.name: each for each in self.computations[name]}
        total = 0
        for each in known.values():
            if each.operation == "while":
                total += _rounds(each) * self._sum(each.called("body")[0], cost)
            elif each.operation == "call":
                total += self._sum(each.called("to_apply")[0], cost)
            elif each.operation == "conditional":
                branches = each.called("true_computation", "false_computation", "branch_computations")
                total += max(self._sum(branch, cost) for branch in branches)
            else:
                total += cost(each, known)
        return total

    def _bytes(self, each: Instruction, known: dict[str, Instruction]) -> int:
        """The bytes that an instruction reads and writes."""
        if not each.launches:
            return 0
        if each.operation in (
            "dynamic-slice",
            "dynamic-update-slice",
        ):  # outside a fusion: the slice is read and written
            return 2 * _size(each.shape if each.operation == "dynamic-slice" else known[each.operands[1]].shape)
        shape = each.shape
        if each.operation.endswith("-start") and each.operation != "all-reduce-start" and shape.startswith("("):
            shape = _parts(shape)[1]  # of (operands, results, state)
        whole = [_size(known[name].shape) for name in each.operands]
        if "fusion" not in each.operation:
            return _size(shape) + sum(whole)
        inside = self.computations[each.called("calls")[0]]
        reads = sum(min(size, part) for size, part in zip(whole, _read(inside, len(whole)), strict=True))
        replaced = [x for x in inside if x.operation == "dynamic-update-slice"]
        inner = {x.name: x for x in inside}
        saved = sum(_size(x.shape) - _size(inner[x.operands[1]].shape) for x in replaced)
        return int(reads) + max(0, _size(shape) - saved)


def _read(inside: Iterable[Instruction], count: int) -> list[float]:
    """An upper bound of the bytes that a fusion reads of each parameter: those of its slices, if it uses nothing else."""
    numbers = {}
    limits: list[float] = [0.0] * count
    for each in inside:
        if each.operation == "parameter":
            number = re.search(r"parameter\((\d+)\)", each.line)
            assert number is not None
            numbers[each.name] = int(number.group(1))
            continue
        for place, name in enumerate(each.operands):
            if name not in numbers:
                continue
            if each.operation in ("dynamic-slice", "gather") and place == 0:
                limits[numbers[name]] += _size(each.shape)
            elif not (each.operation == "dynamic-update-slice" and place == 0):  # which does not read the rest
                limits[numbers[name]] = math.inf
    return limits


def _rounds(loop: Instruction) -> int:
    found = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.line)
    if found is None:
        raise ValueError(f"a loop of unknown length: {loop.line.strip()[:200]}")
    return int(found.group(1))


def _instructions(body: str) -> Iterator[Instruction]:
    for line in body.splitlines():
        found = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\(((?:[^()]|\([^()]*\))*)\)", line)
        if found is not None:
            name, shape, operation, operands = found.groups()
            yield Instruction(name, shape, operation, tuple(re.findall(r"%([\w.\-]+)", operands)), line)


def _parts(shape: str) -> list[str]:
    """The parts of a tuple's shape."""
    depth, parts = 0, [""]
    for letter in shape[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _size(shape: str) -> int:
    """Bytes of the arrays in a shape."""
    arrays = re.findall(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]", shape)  # pred, without digits, has one byte per number
    return sum(int(bits or 8) // 8 * math.prod(int(n) for n in sizes.split(",") if n) for _, bits, sizes in arrays)
