"""The table of methods: a name and where it lives; a method is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ultraedit.errors import unknown_name
from ultraedit.settings import Setting, describe

if TYPE_CHECKING:
    from ultraedit.methods.base import Method

METHODS = {
    "ultraedit": ("UltraEdit", "closed form, training-free, subject-free, memory-free"),
}
"""For each name, which is also the name of its file: the class, and what it is in a few words."""


def method_class(name: str) -> type[Method]:
    """Import a method by name."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return getattr(import_module(f"{__name__}.{name}"), METHODS[name][0])


def method_settings(name: str) -> list[Setting]:
    """Return the settings of a method without importing it."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return describe(Path(__file__).with_name(f"{name}.py"), f"{METHODS[name][0]}Config")
