"""Equations of docstrings as the site sets them."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("equations", ROOT / "docs" / "equations.py")
equations = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(equations)


def blocks():
    """Every indented block of the package's docstrings, but examples: where it stands, and its text."""
    for path in sorted((ROOT / "bam_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                for block in re.findall(r"\n\n((?:    .+\n?)+)", text):
                    if ">>>" not in block:
                        yield f"{path.name}: {getattr(node, 'name', 'module')}", block


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("-abs(i - j) ** shape", r"-\left\lvert i - j\right\rvert ^{\text{shape}}"),
        ("base ** (-2 n / D) / w1", r"\text{base}^{-2 n / D} / w_{1}"),
        ("exp(log_slope_h)", r"\exp (\text{log\_slope}_{h})"),
        ("e^theta_alpha d^-R", r"e^{\theta _{\alpha }}\ d^{-R}"),
        ("-ln Z_cont", r"-\ln  Z_{\text{cont}}"),
        ("x_{n + D/2}", r"x_{n + D/2}"),
        ("<p_cont, p_pos>", r"\langle p_{\text{cont}}, p_{\text{pos}} \rangle "),
        ("q_i . k_j <= a d", r"q_{i} \cdot k_{j} \le  a d"),
        ("keys of a head", r"\text{keys}\ \text{of}\ \text{a}\ \text{head}"),
        ("x_t += 2 pi", r"x_{t} \mathrel{+}=  2\ \pi "),
        ("j - eps", r"j - \varepsilon "),
        ("g * abs(S), 1e-5", r"g \, \left\lvert S\right\rvert , 10^{-5}"),
    ],
)
def test_what_is_written_has_its_tex(written, expected):
    assert equations.tex(written) == expected


def test_each_of_several_equations_is_a_line():
    written = "  f(i, j) = g(a, b = c), a row,  f(h, k) = [0, 1];   c > 0 "
    assert equations.tex_lines(written) == [
        "f(i, j) = g(a, b = c), \\text{a}\\ \\text{row},",
        "f(h, k) = [0, 1];\\quad c > 0",
    ]


def test_code_and_commands_are_no_equations():
    found = {block.strip().split("\n")[0]: equations.is_equation(block) for _, block in blocks()}
    assert found["b(i, j) = -slope * abs(i - j)"]
    assert not [
        line for line, equation in found.items() if equation and re.match(r"python |make |nnx?\.|prior =", line)
    ]
    assert sum(found.values()) > 50


@pytest.mark.parametrize(("where", "block"), [pair for pair in blocks() if equations.is_equation(pair[1])])
def test_every_equation_of_the_package_is_tex(where, block):
    """Brackets close, commands are known ones, and no sign of the terminal's spelling is left."""
    for line in block.splitlines():
        for made in equations.tex_lines(line):
            assert made.replace(r"\{", "").count("{") == made.replace(r"\}", "").count("}")
            assert not re.search(r"\*|_(?!\{)(?<!\\_)|\babs\b", made), made
            assert set(re.findall(r"\\([a-z]+)", made)) <= {
                *("text", "quad", "left", "right", "lvert", "rvert", "sqrt", "cdot", "langle", "rangle"),
                *(name for tex in equations.TEX.values() for name in re.findall(r"\\([a-z]+)", tex)),
            }
