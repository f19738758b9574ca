"""Bytes of a file that are no longer what they were."""

import functools
import json

WEIRD = [
    *("null", "true", "-1", "0", "1", "2.5", "1e308", "-1e308", "5e-324", "1e999", "NaN", "-Infinity"),
    *(f"{2**53}", f"{2**63 - 1}", f"{2**63}", "1" * 5000, "[]", "{}", "[1]", '{"a": 1}', '""', '"x"', '"../x"'),
    *(r'"$\\frac{1$"', r'"\ud800"', r'"\u0000"', '"stopped"', '"passkey"', "[" * 1000 + "]" * 1000, "[" * 100_000),
]
"""JSON, and what is none, that stands in place of a value."""
INSERTED = (
    b"[" * 20_000,
    b'{"text":' * 20_000,
    b"9" * 5000,
    b"\xff\xfe",
    b"\0" * 10**5,
    b"x" * 3 * 10**6,
    b"\n" * 10**5,
    b'{"text": 1e999}\n{"text": "\\ud800"}',
    b" = T = \n\n" * 9999,
)
KINDS = "flip flip cut end insert repeat line all field field field gone".split()


def places(value, path=()):
    """Every path to a value within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


def spoilt(contents, chance):
    """Other bytes than a file's, after one to three kinds of damage."""
    made, left = contents, chance.randint(1, 3)
    while left > 0 or made == contents:
        left -= 1
        at = chance.randrange(len(made) + 1)
        match chance.choice(KINDS):
            case "flip" if at < len(made):
                made = made[:at] + bytes([made[at] ^ 1 << chance.randrange(8)]) + made[at + 1 :]
            case "cut":
                made = made[:at] + made[at + chance.randint(1, 99) :]
            case "end":
                made = made[:at]
            case "insert":
                made = made[:at] + chance.choice([*INSERTED, chance.randbytes(9)]) + made[at:]
            case "repeat":
                made = made[:at] + made[: chance.randint(0, 9999)] + made[at:]
            case "line" if made:  # twice, gone, or another's
                lines = made.splitlines(keepends=True)
                number = chance.randrange(len(lines))
                lines[number : number + 1] = chance.choice([[lines[number]] * 2, [], [lines[number - 1]]])
                made = b"".join(lines)
            case "all":
                made = chance.choice([chance.randbytes(200), b"", b"null", b"[]", b"{}\n"])
            case "field" | "gone" as kind:
                made = _field_changed(made, kind, chance)
    return made


def _field_changed(contents, kind, chance):
    """A line of JSON, the head of weights, or the file as a whole, with another value in one place; anything else as it is."""
    end = 8 + int.from_bytes(contents[:8], "little")
    if contents[8:9] == b"{" and end <= len(contents):  # safetensors: the size of its head, that, and the arrays
        head = _field_changed(contents[8:end], kind, chance)
        return len(head).to_bytes(8, "little") + head + contents[end:]
    pieces = [contents] if contents.startswith(b"{\n") else contents.splitlines(keepends=True)
    number = chance.randrange(max(1, len(pieces)))
    try:
        tree = json.loads(pieces[number])
        *above, key = chance.choice(places(tree)[1:])
    except (ValueError, IndexError, RecursionError):
        return contents
    parent = functools.reduce(lambda each, step: each[step], above, tree)
    if kind == "gone":
        del parent[key]
    else:
        parent[key] = "<here>"
    pieces[number] = json.dumps(tree).replace('"<here>"', chance.choice(WEIRD), 1).encode() + b"\n"
    return b"".join(pieces)
