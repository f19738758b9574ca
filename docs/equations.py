"""Equations of docstrings, written to be read in a terminal, as TeX for the site.

b(i, j) = -exp(log_scale) * abs(i - j) ** shape
"""

import re

_SAME = "alpha beta delta lambda mu nu pi psi sigma tau theta cos exp lim ln log max min sin sum"
_SIGNS = {
    "<=": r"\le",
    ">=": r"\ge",
    "+-": r"\pm",
    "+=": r"\mathrel{+}=",
    "||": r"\Vert",
    "...": r"\ldots",
    "..": r"\ldots",
}
TEX = {"eps": r"\varepsilon"} | _SIGNS | {name: rf"\{name}" for name in _SAME.split()}
"""Names and signs in TeX."""
_NAME = re.compile(r"[A-Za-z]+\d*(?:_(?:[A-Za-z0-9]+|\{[^}]*\}|\(\w\)))*(?:'s|')?")
_SIGN = re.compile(r"\.\.\.?|<=|>=|\|\||\+-|\+=")
_CODE = re.compile(r"[a-z]{2,}=|^\s*(python|make|pip) ")
_INDEX = 2
"""Letters that a subscript has at most; a longer one is a word."""


def is_equation(text: str) -> bool:
    """Tells an indented block of equations from one of code or commands."""
    return bool(re.search(r" (\+?=|<=?|\+-) ", text)) and not _CODE.search(text)


def tex_lines(text: str) -> list[str]:
    """The TeX of a line, where each equation of several has a line of its own."""
    starts, depth = [0], 0
    for at, sign in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(sign, 0)
        rest = re.sub(r"\([^()]*\)|\[[^]]*\]", "", text[at:])  # whose commas and signs of equality are within brackets
        if not depth and re.match(r"[,;]\s[^,;=]*\S \+?= ", rest):
            starts.append(at + 1)
    return [tex(text[start:end].strip()) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def tex(text: str) -> str:
    """The TeX of an expression.

    Names of one letter, Greek ones and functions are symbols, all others words. The sign `*` is a thin space, `abs(x)` is set as
    |x|, and `a . b` is a scalar product.

    Raises:
        ValueError: a bracket is not closed, or an exponent is neither a name nor a number.
    """
    made, at = "", 0
    while at < len(text):
        if call := re.match(r"(abs|sqrt)\(", text[at:]):
            inside, at = _group(text, at + call.end() - 1)
            made += rf"\left\lvert {tex(inside)}\right\rvert " if call[1] == "abs" else rf"\sqrt{{{tex(inside)}}}"
        elif power := re.match(r" ?(\*\*|\^) ?", text[at:]):
            exponent, at = _operand(text, at + power.end())
            made += f"^{{{tex(exponent)}}}"
        elif number := re.match(r"1e(-?\d+)", text[at:]):
            made, at = f"{made}10^{{{number[1]}}}", at + number.end()
        elif article := re.match(r"(an?(?= [a-z]{3})|sum(?= =))", text[at:]):
            made, at = made + rf"\text{{{article[1]}}}", at + article.end()
        elif name := _NAME.match(text, at):
            made, at = made + _name(name[0]), name.end()
        elif sign := _SIGN.match(text, at):
            made, at = made + TEX[sign[0]] + " ", sign.end()
        elif space := re.match(r" +", text[at:]):
            at += space.end()
            if len(space[0]) > 1:
                made += r"\quad "
            elif re.search(r"(?:[\w})'\]]|(?<!\\)[,;:])$", made) and re.match(r"[\w(\[]", text[at:]):
                made += r"\ " if made.endswith("}") or re.match(r"[A-Za-z]{2}", text[at:]) else " "
            else:
                made += " "
        else:
            made, at = made + {"*": r"\,", "%": r"\%", "{": r"\{", "}": r"\}"}.get(text[at], text[at]), at + 1
    return re.sub(r" \. ", r" \\cdot ", re.sub(r"<(?=p)", r"\\langle ", made).replace("}>", r"} \rangle "))


def _name(name: str) -> str:
    """A name with its subscripts: of log_slope_h the words log_slope and the index h."""
    base, *rest = re.split(r"_(?![^{]*\})", name)
    while rest and len(base) > 1 and base != "theta" and len(rest[0]) > _INDEX and rest[0][0] != "{":
        base += "_" + rest.pop(0)
    below = ",".join(map(_subscript, rest))
    return _word(base) + (f"_{{{below}}}" if below else "")


def _subscript(sub: str) -> str:
    if sub[0] == "{":
        return tex(sub[1:-1])
    return sub if len(sub) <= _INDEX or sub[0] == "(" else _word(sub)


def _word(word: str) -> str:
    if word in TEX:
        return TEX[word] + (" " if len(word) > 1 else "")
    if index := re.fullmatch(r"([A-Za-z])(\d+)", word):
        return f"{index[1]}_{{{index[2]}}}"
    return word if len(word.rstrip("'")) == 1 else rf"\text{{{word}}}".replace("_", r"\_")


def _group(text: str, start: int) -> tuple[str, int]:
    """The text within the bracket that opens at `start`, and the place behind it."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return text[start + 1 : at], at + 1
    raise ValueError(f"a bracket of {text!r} is not closed")


def _operand(text: str, at: int) -> tuple[str, int]:
    """An exponent that begins there: a bracket, or a name or number with its sign."""
    if text[at] == "(":
        return _group(text, at)
    operand = re.compile(r"-?(?:[A-Za-z]\w*|[\d.]+)").match(text, at)
    if not operand:
        raise ValueError(f"no exponent at {text[at:]!r}")
    return operand[0], operand.end()
