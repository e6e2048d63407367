"""An edit: a prompt, the answer it shall have from now on, and the probes that test it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, TypeVar

from ultraedit.errors import InputError

T = TypeVar("T")

Text = str | tuple[int, ...]
"""Text, or the token ids it was already turned into."""

Family = str
"""One of the five kinds of probe, in the order of every table."""

FAMILIES: tuple[Family, ...] = (
    "efficacy",
    "generalization",
    "specificity",
    "personas",
    "reasoning",
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question asked of the model, and the answer it should give."""

    prompt: Text
    answer: Text

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _text(self.prompt, "prompt"))
        object.__setattr__(self, "answer", _text(self.answer, "answer"))


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of knowledge: after it, the model answers `prompt` with `target`."""

    prompt: Text = ""
    """The question or the beginning of a sentence."""
    target: Text = ""
    """The answer it shall have."""
    subject: str | None = None
    """What the prompt is about, as it stands in the prompt; only some methods need it."""
    rephrasings: tuple[Text, ...] = ()
    """Other ways to ask for the same answer (generalization)."""
    unrelated: tuple[Probe, ...] = ()
    """Questions whose answers must stay as they are (specificity)."""
    personas: tuple[Text, ...] = ()
    """The same question asked in somebody's voice (personas)."""
    reasoning: tuple[Probe, ...] = ()
    """Multi-hop questions whose answers follow from the edit (reasoning)."""
    id: str = ""
    """A name for the edit; made from prompt and target when none is given."""
    prompt_ids: tuple[int, ...] | None = None
    """The prompt as token ids; used in place of `prompt`, and then no tokenizer is needed."""
    target_ids: tuple[int, ...] | None = None
    """The target as token ids; used in place of `target`."""

    def __post_init__(self) -> None:
        for name in ("prompt", "target"):
            ids = getattr(self, f"{name}_ids")
            if ids is None:
                object.__setattr__(self, name, _text(getattr(self, name), name))
            else:
                object.__setattr__(self, f"{name}_ids", _ids(ids, f"{name}_ids"))
                if getattr(self, name) != "":
                    object.__setattr__(self, name, _text(getattr(self, name), name))
        if isinstance(self.subject, (list, tuple)):
            raise InputError("'subject' must be text, not token ids")
        if self.subject is not None:
            _text(self.subject, "subject")
        for name in ("rephrasings", "personas"):
            texts = tuple(_text(text, name) for text in _listed(getattr(self, name), name))
            object.__setattr__(self, name, texts)
        for name in ("unrelated", "reasoning"):
            probes = tuple(_probe(value, name) for value in _listed(getattr(self, name), name))
            object.__setattr__(self, name, probes)
        object.__setattr__(self, "id", _identity(self))

    @property
    def question(self) -> Probe:
        """The edit itself as a probe: its prompt and the answer it shall have."""
        return Probe(
            self.prompt if self.prompt_ids is None else self.prompt_ids,
            self.target if self.target_ids is None else self.target_ids,
        )

    def probes(self) -> Iterator[tuple[Family, Probe]]:
        """Yield every probe with its family; efficacy is the edit itself."""
        target = self.question.answer
        yield "efficacy", self.question
        for prompt in self.rephrasings:
            yield "generalization", Probe(prompt, target)
        for probe in self.unrelated:
            yield "specificity", probe
        for prompt in self.personas:
            yield "personas", Probe(prompt, target)
        for probe in self.reasoning:
            yield "reasoning", probe

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Edit:
        """Build an edit from a row of a file; columns it does not know are left aside."""
        if not isinstance(row, Mapping):
            raise InputError(f"expected an edit or a dictionary, found {row}")
        for name in ("prompt", "target"):
            if row.get(name) is None and row.get(f"{name}_ids") is None:
                raise InputError(f"{name!r} is missing")
        return cls(**{key: row[key] for key in COLUMNS if row.get(key) is not None})


COLUMNS = tuple(field.name for field in fields(Edit))
"""The columns a file of edits may have."""


def as_edits(items: Iterable[Edit | Mapping[str, Any]]) -> list[Edit]:
    """Return edits from edits or plain dictionaries, naming the one that is wrong."""
    if isinstance(items, (Edit, Mapping, str)):
        raise InputError("A turn is a list of edits; put a single edit into a list.")
    edits = []
    for number, item in enumerate(items, 1):
        try:
            edits.append(item if isinstance(item, Edit) else Edit.from_row(item))
        except InputError as error:
            raise InputError(f"Edit {number} of the turn cannot be used: {error}.") from error
    return edits


def in_turns(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut a stream into lists of `size`; the last may be shorter."""
    if isinstance(items, (Edit, Mapping, str)) or not isinstance(items, Iterable):
        raise InputError("Edits come as a list or another stream; put a single edit into a list.")
    stream = iter(items)
    while turn := list(islice(stream, size)):
        yield turn


def _text(value: Any, name: str) -> Text:
    if isinstance(value, (list, tuple)):
        return _ids(value, name)
    if not isinstance(value, str):
        raise InputError(f"{name!r} must be text or token ids, not {type(value).__name__}")
    if not value.strip():
        raise InputError(f"{name!r} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name!r} holds bytes that are no text (at {error.start})") from error
    return value


def _ids(values: Any, name: str) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)):
        raise InputError(f"{name!r} must be a list of token ids, not {type(values).__name__}")
    if not values:
        raise InputError(f"{name!r} is empty")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"{name!r} must hold token ids (whole numbers from 0), not {value!r}")
    return tuple(values)


def _listed(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, (str, Mapping, Probe)):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name!r} must be a list, not {type(value).__name__}")
    return value


def _probe(value: Any, name: str) -> Probe:
    if isinstance(value, Probe):
        return value
    if isinstance(value, Mapping):
        answer = value.get("answer")
        value = (value.get("prompt"), value.get("target") if answer is None else answer)
    if not isinstance(value, (list, tuple)) or len(value) != 2 or None in value:
        raise InputError(f"{name!r} must hold pairs of 'prompt' and 'answer'")
    try:
        return Probe(*value)
    except InputError as error:
        raise InputError(f"{name!r} has a probe whose {error}") from error


def _identity(edit: Edit) -> str:
    """Return the given id, or one made from the content: equal edits have equal ids."""
    if edit.id != "":
        if not isinstance(edit.id, (str, int)) or isinstance(edit.id, bool):
            raise InputError(f"'id' must be text or a number, not {type(edit.id).__name__}")
        return str(_text(str(edit.id), "id"))
    question = edit.question
    content = json.dumps([question.prompt, question.answer]).encode()
    return hashlib.sha256(content).hexdigest()[:12]
