"""Settings: dataclasses whose fields are explained once, in the docstring under each field.

The explanations are read from the source text, so that listing settings imports no heavy library.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ultraedit.errors import InputError, unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One setting as a person sees it."""

    name: str
    kind: str
    default: str
    help: str


def describe(source: Path, class_name: str) -> list[Setting]:
    """Read the settings of a dataclass from its source file, without importing it."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    body = next(node.body for node in classes if node.name == class_name)
    found = []
    for node, follower in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.append(
                Setting(
                    node.target.id,
                    ast.unparse(node.annotation),
                    ast.unparse(node.value),
                    _docstring(follower),
                )
            )
    return found


def _docstring(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return " ".join(str(node.value.value).split()) if is_text else ""  # type: ignore[attr-defined]


def build(cls: type[T], values: dict[str, Any]) -> T:
    """Make a settings object, refusing names it does not have and values of another type."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in names:
            raise unknown_name("setting", name, names)
        if not _fits(value, hints[name]):
            raise InputError(f"{name} must be {_readable(hints[name])}, got {value!r}.")
    return cls(**values)


def parse(cls: type, name: str, text: str) -> Any:
    """Turn the text of a flag into a value of the field's type; what fits none stays text."""
    hint = get_type_hints(cls).get(name, str)
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        value = _WORDS.get(text.lower(), text) if option in (bool, type(None)) else text
        if option in (int, float):
            try:
                value = option(text)
            except ValueError:
                continue
        if _fits(value, option):
            return value
    return text


_WORDS = {"true": True, "yes": True, "false": False, "no": False, "none": None}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, type(None) if hint is None else hint)


def _readable(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin in (Union, UnionType):
        return " or ".join(_readable(option) for option in get_args(hint))
    names = {float: "a number", int: "a whole number", bool: "true or false", type(None): "nothing"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
