"""Change what a language model knows, edit after edit, for as long as the model lives."""

from importlib import import_module

__version__ = "0.1.0"

# Public names and where they live; imported on first use so that importing the package is instant.
_HOMES = {
    "Edit": "edits",
    "Probe": "edits",
    "EditFile": "editfile",
    "Editor": "editor",
    "Receipt": "receipt",
    "evaluate": "evaluation",
    "load_model": "models",
    "InputError": "errors",
    "EditError": "errors",
    "TurnError": "errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ultraedit' has no attribute {name!r}")
    return getattr(import_module(f"ultraedit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
