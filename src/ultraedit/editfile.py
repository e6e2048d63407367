"""Files of edits, read as a stream: JSONL, JSON, CSV and Parquet in bounded memory.

Every row becomes an `Edit` or a `BadRow` that says where it stands and what is wrong with it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ultraedit.edits import COLUMNS, Edit
from ultraedit.errors import InputError

MAX_ROW_BYTES = 1 << 20
"""A longer row is reported, not read: it is a damaged file, or no edit."""

_CHUNK_BYTES = 1 << 14

_NOT_UTF8 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no edit."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


Row = tuple[int, dict[str, Any] | str]
"""A line number, and the row's columns or the reason why there are none."""


class EditFile:
    """A file of edits that can be read again and again, one row at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.ignored_columns: set[str] = set()
        """Columns met so far that no edit has."""
        if not self.path.exists():
            raise InputError(f"There is no file {path}.")
        if not self.path.is_file():
            raise InputError(f"{path} is not a file of edits.")
        if not os.access(self.path, os.R_OK):
            raise InputError(f"{path} cannot be read: permission denied.")
        suffix = self.path.suffix.lower()
        if suffix not in _READERS:
            raise InputError(
                f"{path}: a file of edits ends in {', '.join(_READERS)}, not {suffix!r}."
            )
        self._read = _READERS[suffix]

    def __iter__(self) -> Iterator[Edit | BadRow]:
        """Yield every row as an edit or as what is wrong with it."""
        return (row for _, row in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Edit | BadRow]]:
        """Yield every row with the line it starts on."""
        seen = _SeenIds()
        for line, row in self._read(self.path):
            try:
                yield line, self._edit(row, seen)
            except InputError as error:
                yield line, BadRow(self.path.name, line, str(error))

    def _edit(self, row: dict[str, Any] | str, seen: _SeenIds) -> Edit:
        if isinstance(row, str):
            raise InputError(row)
        self.ignored_columns.update(key for key in row if key not in COLUMNS)
        edit = Edit.from_row(row)
        if row.get("id") not in (None, "") and not seen.add(edit.id):
            raise InputError(f"the id {edit.id!r} stands on an earlier row too")
        return edit


class _SeenIds:
    """The ids met so far, on disk beyond a small cache: two million of them take no memory."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA cache_size = -32768")
        self._db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def add(self, name: str) -> bool:
        """Remember `name`; return whether it is new."""
        cursor = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (name,))
        return cursor.rowcount == 1


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield numbered lines without their ends; None stands for a line that is too long."""
    _skip_mark(file, path)
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


def _skip_mark(file: BinaryIO, path: Path) -> None:
    start = file.read(3)
    if start[:2] in _NOT_UTF8:
        raise InputError(f"{path} is UTF-16; save it as UTF-8 and try again.")
    file.seek(3 if start == b"\xef\xbb\xbf" else 0)


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in _lines(file, path):
            if line is None:
                yield number, f"the line is longer than {MAX_ROW_BYTES:,} bytes"
            elif line.strip():
                yield number, _json_row(line)


def _json_row(line: bytes) -> dict[str, Any] | str:
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} (column {error.colno})"
    except (ValueError, RecursionError) as error:
        return f"not usable JSON: {error}"
    return _object(row)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return row


def _object(row: Any) -> dict[str, Any] | str:
    return row if isinstance(row, dict) else f"expected an object, found {type(row).__name__}"


def _read_json(path: Path) -> Iterator[Row]:
    """Read a JSON array of objects, or objects one after another, holding one row at a time."""
    with path.open("rb") as file:
        text = _Window(file, path)
        if in_array := text.peek() == "[":
            text.take(1)
        while (character := text.peek()) and not (in_array and character == "]"):
            line = text.line
            try:
                yield line, _object(text.value())
            except json.JSONDecodeError as error:
                yield line, f"not JSON: {error.msg}; the rest of the file was not read"
                return
            if text.peek() == ",":
                text.take(1)
        if in_array and not character:
            yield text.line, "not JSON: the array is never closed"
        elif in_array:
            text.take(1)
            if text.peek():
                yield text.line, "not JSON: text follows the array; it was not read"


class _Window:
    """A part of a JSON text that moves on as values are taken from its front."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        _skip_mark(file, path)
        decoder = getincrementaldecoder("utf-8")(errors="surrogateescape")
        pieces = iter(lambda: file.read(_CHUNK_BYTES), b"")
        self._chunks = (decoder.decode(piece) for piece in pieces)
        self._decode = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
        self._text = ""
        self.line = 1

    def peek(self) -> str:
        """Return the next character that is no white space, or nothing at the end."""
        while True:
            blank = re.match(r"\s*", self._text)
            self.take(blank.end() if blank else 0)
            if self._text or not self._grow():
                return self._text[:1]

    def take(self, length: int) -> None:
        """Move past the next `length` characters."""
        self.line += self._text.count("\n", 0, length)
        self._text = self._text[length:]

    def value(self) -> Any:
        """Return the next JSON value and move past it."""
        while True:
            try:
                value, end = self._decode(self._text)
            except json.JSONDecodeError as error:
                # What is wrong well before the end of the window does not come from its end.
                cut_off = error.msg.startswith("Unterminated") or error.pos > len(self._text) - 12
                if not cut_off or not self._grow():
                    raise
            except (ValueError, RecursionError) as error:
                deep = isinstance(error, RecursionError)
                reason = "too deeply nested" if deep else f"not usable: {error}"
                raise json.JSONDecodeError(reason, "", 0) from error
            else:
                self.take(end)
                return value

    def _grow(self) -> bool:
        """Read on, by as much as is held: a row is parsed a few times at most, not once a line."""
        if len(self._text) > MAX_ROW_BYTES:
            raise json.JSONDecodeError(f"a row is longer than {MAX_ROW_BYTES:,} bytes", "", 0)
        wanted = max(2 * len(self._text), 4096)
        parts = [self._text]
        size = len(self._text)
        for chunk in self._chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= wanted:
                break
        grown = len(parts) > 1
        self._text = "".join(parts)
        return grown


def _decoded(line: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, which every text field refuses by name.
    return line.decode("utf-8", errors="surrogateescape")


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        csv.field_size_limit(MAX_ROW_BYTES)
        lines = (_TOO_LONG if line is None else _decoded(line) for _, line in _lines(file, path))
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = next(([name.strip() for name in row] for row in rows if row), [])
        except csv.Error as error:
            raise InputError(f"{path} is not CSV: {error}.") from error
        _check_header(header, path)
        while True:
            line = rows.line_num + 1
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, f"not CSV: {error}"
                continue
            if any(_TOO_LONG in cell for cell in cells):
                yield line, f"a line is longer than {MAX_ROW_BYTES:,} bytes"
            elif cells:
                yield line, _csv_row(header, cells)


_TOO_LONG = "\udfff"
"""Stands for a line that is too long: no decoded line can hold it."""


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise InputError(f"{path} is empty; a CSV file starts with a line of column names.")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"{path} has the column {twice[0]!r} twice.")
    for name in ("prompt", "target"):
        if name not in header and f"{name}_ids" not in header:
            raise InputError(
                f"{path} has no column {name!r}; its columns are: {', '.join(header)[:200]}."
            )


def _csv_row(header: list[str], cells: list[str]) -> dict[str, Any] | str:
    if len(cells) != len(header):
        return f"{len(cells)} cells where the header has {len(header)}"
    try:
        return {
            name: _csv_cell(name, cell)
            for name, cell in zip(header, cells, strict=True)
            if cell or name in ("prompt", "target")
        }
    except (ValueError, RecursionError) as error:
        return f"a cell holds a list that is not JSON: {error}"


def _csv_cell(name: str, cell: str) -> Any:
    """Read a list, which stands in its cell as JSON; one text alone needs no brackets."""
    lists = name.endswith("_ids") or name in ("rephrasings", "unrelated", "personas", "reasoning")
    return json.loads(cell) if lists and cell.lstrip().startswith(("[", "{")) else cell


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError("Parquet files need pyarrow: pip install 'ultraedit[parquet]'.") from error
    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            _check_header(names, path)
            known = [name for name in names if name in COLUMNS]
            others = dict.fromkeys(name for name in names if name not in COLUMNS)
            line = 0
            for batch in file.iter_batches(batch_size=1024, columns=known):
                for row in batch.to_pylist():
                    line += 1
                    yield line, {**row, **others}
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
