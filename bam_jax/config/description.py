"""The documentation of the configuration's fields: name, type, default, and the text below each field in `sections`."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from bam_jax.config import section, sections
from bam_jax.config.section import ConfigSection, is_section


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration."""

    name: str
    kind: type
    default: Any
    text: str

    @property
    def shown(self) -> str:
        """The default, as written on a command line."""
        return "''" if self.default == "" else str(self.default)


def fields(cls: type[ConfigSection] = sections.Config, prefix: str = "") -> Iterator[Field]:
    """All fields of a group in their order, then those of its subgroups."""
    texts, defaults = _texts(cls), cls()
    groups = []
    for name, kind in section.kinds(cls).items():
        if is_section(kind):
            groups.append((kind, f"{prefix}{name}."))
        else:
            yield Field(prefix + name, getattr(kind, "__origin__", kind), getattr(defaults, name), texts[name])
    for kind, name in groups:
        yield from fields(kind, name)


def to_text() -> str:
    """The fields for a terminal, each with its type and default, and its text below."""
    lines = ["fields of the configuration (--config.NAME=VALUE; type, default):"]
    for field in fields():
        lines.append(f"  {field.name}  ({field.kind.__name__}, {field.shown})")
        lines += textwrap.wrap(field.text, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def to_markdown() -> str:
    """The fields as a Markdown table."""
    rows = [
        f"| `{field.name}` | {field.kind.__name__} | `{field.shown}` | {field.text.replace('|', '&#124;')} |"
        for field in fields()
    ]
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])


def _texts(cls: type[ConfigSection]) -> dict[str, str]:
    """The texts below the fields of a group, each in one line."""
    (group,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(group, ast.ClassDef)
    found, name = {}, ""
    for statement in group.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = " ".join(text.split())
    return found
