"""Edits from a file, checked before anything is done with them."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ultraedit.cli.screen import bar, counted
from ultraedit.editfile import BadRow, EditFile
from ultraedit.edits import Edit, in_turns
from ultraedit.errors import InputError, TurnError
from ultraedit.tokens import Encoder

_KEPT = 1000
"""Bad rows kept to be listed; more are only counted."""
_SHOWN = 20
_WINDOW = 256


@dataclass
class Checked:
    """A file of edits that was read once, whole, and must stay as it was."""

    file: EditFile
    encoder: Encoder
    limit: int | None
    good: int = 0
    bad: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.file.path.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._stamp = self._now()

    def __iter__(self) -> Iterator[Edit]:
        """Yield the good rows again; the model is asked about each only where some were bad."""
        rows = _rows(self.file, self.encoder) if self.bad else iter(self.file)
        edits = (row for row in rows if isinstance(row, Edit))
        for number, edit in enumerate(islice(edits, self.limit)):
            if number % _WINDOW == 0:
                self._refuse_changed()
            yield edit
        self._refuse_changed()

    def _refuse_changed(self) -> None:
        if self._now() != self._stamp:
            raise TurnError(f"{self.file.path} was changed while it was in use.")

    def _now(self) -> tuple[int, ...]:
        try:
            found = self.file.path.stat()
        except OSError:
            return ()
        return found.st_size, found.st_mtime_ns, found.st_ino

    def to_dict(self) -> dict[str, Any]:
        """Return what a receipt says about the file."""
        left_out = [str(row) for row in self.bad_rows]
        return {
            "file": self.file.path.name,
            "sha256": self.sha256,
            "edits": self.good,
            "left_out": self.bad,
            "left_out_rows": left_out,
        }


def check_rows(
    path: Path, encoder: Encoder, console: Console, *, skip_bad: bool, limit: int | None = None
) -> Checked:
    """Read a file of edits once and refuse it when a row is bad, unless bad rows are skipped."""
    checked = Checked(EditFile(path), encoder, limit)
    with bar(console, f"Checking {path.name}", None, "rows") as advance:
        _count(checked, advance)
    if checked.file.ignored_columns:
        names = ", ".join(sorted(checked.file.ignored_columns)[:8])
        console.print(f"[yellow]Columns that no edit has were left aside:[/] {escape(names)}")
    if checked.bad:
        _report(checked, console, skip_bad=skip_bad)
    if not checked.good:
        raise InputError(f"{path} holds no edits.")
    return checked


def _count(checked: Checked, advance: Callable[..., None]) -> None:
    for rows in in_turns(_rows(checked.file, checked.encoder), _WINDOW):
        for row in rows:
            if isinstance(row, Edit):
                checked.good += 1
            else:
                checked.bad += 1
                if len(checked.bad_rows) < _KEPT:
                    checked.bad_rows.append(row)
            if checked.good == checked.limit:
                break
        advance(len(rows))
        if checked.good == checked.limit:
            return


def _rows(file: EditFile, encoder: Encoder) -> Iterator[Edit | BadRow]:
    """Yield rows, with those that do not fit the model turned into bad ones."""
    for window in in_turns(file.numbered(), _WINDOW):
        edits = [row for _, row in window if isinstance(row, Edit)]
        problems = iter(encoder.problems(edits))
        for line, row in window:
            reason = next(problems) if isinstance(row, Edit) else None
            yield row if reason is None else BadRow(file.path.name, line, reason)


def _report(checked: Checked, console: Console, *, skip_bad: bool) -> None:
    shown = [f"  {row}" for row in checked.bad_rows[:_SHOWN]]
    if checked.bad > _SHOWN:
        shown.append(f"  … and {checked.bad - _SHOWN:,} more")
    listing = "\n".join(shown)
    if not skip_bad:
        raise InputError(
            f"Nothing was done, since {checked.bad:,} of {checked.bad + checked.good:,} rows "
            f"cannot be used:\n{listing}\nMend them, or leave them out with --skip-bad-rows."
        )
    console.print(f"[yellow]Left out {counted(checked.bad, 'row')}:[/]")
    console.print(listing, markup=False)
