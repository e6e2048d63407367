"""The failures a caller must tell apart; everything else is a built-in exception."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """What was given cannot be used; nothing was changed."""


class EditError(RuntimeError):
    """The edits did not take."""


class TurnError(EditError):
    """A turn failed and was taken back: model and method are as they were before it."""


class NothingMovedError(EditError):
    """A run went through, but no edited prompt answers differently: it was no success."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with the nearest match and the full list."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"There is no {kind} {name!r}.{hint} Known: {', '.join(names)}.")
