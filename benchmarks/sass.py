"""Count the instructions that a Hopper kernel issues for each logit, from its disassembly."""

import collections
import re
from collections.abc import Iterator
from typing import NamedTuple

_PIPES = {
    "special": ("MUFU",),
    "fused": ("FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "IMAD"),
    "memory": ("LD", "LDG", "LDL", "LDS", "LDSM", "ST", "STG", "STL", "STS", "STSM", "SHFL", "SYNCS", "BAR"),
    "tensor": ("HGMMA",),
}
"""Instructions by the pipe that executes them. A quarter of a multiprocessor issues one fused instruction per cycle, and one
special function, such as exp2, per 8 cycles. All others are "other"; integers, comparisons and conversions take 2 cycles each."""


class _Instruction(NamedTuple):
    name: str
    operands: str
    conditional: bool


def per_logit(disassembly: str, columns: int | None = None) -> dict[str, float]:
    """Count a thread's instructions for one tile, in total and by pipe, divided by its number of logits.

    It counts the shortest path through the loop over tiles, which tiles without hidden pairs take. Some kernels have a separate
    loop for such tiles.

    Args:
        columns: columns of a tile; None: those of the first product, that of queries and keys.
    """
    code, labels = _parse(disassembly)
    paths = [_shortest(code, labels, *loop) for loop in _loops(code, labels)]
    products = lambda path: [code[n].name for n in path if code[n].name.startswith("HGMMA")]
    whole = max(len(products(path)) for path in paths)
    path = min((path for path in paths if len(products(path)) == whole), key=len)
    first = re.match(r"HGMMA\.64x(\d+)x", products(path)[0])
    assert first is not None
    logits = (columns or int(first.group(1))) // 2  # of 64 rows, in 128 threads
    of = {name: pipe for pipe, names in _PIPES.items() for name in names}
    counts = collections.Counter(of.get(code[n].name.split(".")[0], "other") for n in path)
    counted = {pipe: round(counts[pipe] / logits, 2) for pipe in (*_PIPES, "other")}
    return {"instructions": round(len(path) / logits, 1), **counted}


def _parse(body: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions, and the index of the instruction after each label."""
    code: list[_Instruction] = []
    labels = {}
    for line in body.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label.group(1)] = len(code)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\b(.*)", line):
            code.append(_Instruction(found.group(2), found.group(3), found.group(1) is not None))
    return code, labels


def _target(instruction: _Instruction, labels: dict[str, int]) -> int | None:
    """The target of a branch."""
    found = re.search(r"\.L_x_\d+", instruction.operands) if instruction.name.split(".")[0] == "BRA" else None
    return None if found is None else labels.get(found.group())


def _loops(code: list[_Instruction], labels: dict[str, int]) -> Iterator[tuple[int, int]]:
    """The first and the last instruction of each innermost loop with products."""
    inner: list[tuple[int, int]] = []
    found = [(start, end) for end, x in enumerate(code) if (start := _target(x, labels)) is not None and start <= end]
    for start, end in sorted(found, key=lambda x: x[1] - x[0]):
        holds = any(start <= a and b <= end for a, b in inner)
        if not holds and any(x.name.startswith("HGMMA") for x in code[start : end + 1]):
            inner.append((start, end))
            yield start, end


def _shortest(code: list[_Instruction], labels: dict[str, int], start: int, end: int) -> list[int]:
    """The instructions on the shortest path through a loop, parts of which the compiler may have moved after its end."""
    came_from: dict[int, int | None] = {start: None}
    reached = collections.deque([start])
    while end not in came_from:
        n = reached.popleft()
        ahead = [_target(code[n], labels)]
        if code[n].name.split(".")[0] not in ("BRA", "EXIT") or code[n].conditional:
            ahead.append(n + 1)
        for m in ahead:
            if m is not None and m not in came_from:
                came_from[m] = n
                reached.append(m)
    path = [end]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
