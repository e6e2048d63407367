"""Writing that is whole or absent: everything is written beside its place and then renamed."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ultraedit.errors import InputError

OWN_FOLDER = "ultraedit"
"""Folder inside an edited model's directory that holds what is ours."""
RECEIPT = "receipt.json"
RECEIPT_FORMAT = "ultraedit-receipt-1"
"""Marks a directory as one that we wrote, and may therefore replace when asked."""


def check_output_files(paths: Sequence[Path | None], *, inputs: Sequence[Path] = ()) -> None:
    """Refuse, before any work is done, files that could not or must not be written afterwards."""
    seen: list[Path] = []
    for path in paths:
        if path is None or str(path) == "-":
            continue
        with _in_words(path):
            _check_output_file(path)
            for other in (*inputs, *seen):
                inside = other.is_dir() and path.resolve().is_relative_to(other.resolve())
                if inside or path.resolve() == other.resolve():
                    raise InputError(f"{path} is needed for something else; name another file.")
        seen.append(path)


def _check_output_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file to write.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent}; create it or name another file.")
    replaced = path.is_file() or not path.exists()
    places = [path.parent] * replaced + [path] * path.exists()
    if not all(os.access(place, os.W_OK) for place in places):
        raise InputError(f"{path} cannot be written: permission denied.")


def write_json(path: Path, content: Any) -> None:
    """Write `content` to a file whole or not at all; `-` is standard output."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        return
    with staged_file(path) as staging:
        staging.write_text(text, encoding="utf-8")


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` that takes its place when the block succeeds."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target  # a device or a pipe is written to, never replaced by a file
        return
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    os.close(handle)
    staging = Path(name)
    try:
        yield staging
        staging.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        staging.replace(target)
    finally:
        staging.unlink(missing_ok=True)


def check_output_directory(path: Path, *, overwrite: bool = False) -> None:
    """Refuse an output directory that holds something else or cannot be made."""
    target = _target(path)
    _refuse_occupied(target, overwrite=overwrite)
    place = target.parent
    with _in_words(path):
        while not place.exists():
            place = place.parent
        Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=place)).rmdir()


@contextmanager
def staged_directory(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `path` that takes its place when the block succeeds."""
    target = _target(path)
    with _in_words(path):
        made = _make_parents(target.parent)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=target.parent))
    try:
        yield staging
        made = []
        _open_up(staging)
        _take_place(staging, target, overwrite=overwrite)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in made:
            folder.rmdir()


def _target(path: Path) -> Path:
    """Return where a directory will really be; links on the way are followed, the last is not."""
    if path.name in ("", ".."):
        raise InputError(f"{str(path)!r} is no name for a new directory.")
    with _in_words(path):
        return path.parent.resolve() / path.name


def _refuse_occupied(target: Path, *, overwrite: bool) -> None:
    with _in_words(target):
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise InputError(f"{target} exists and is no plain directory; name another one.")
        if not target.exists():
            return
        if target.is_mount() or Path.cwd().is_relative_to(target):
            raise InputError(f"{target} is in use as a place; name a folder inside it.")
        if not any(target.iterdir()):
            return
    if not overwrite:
        raise InputError(
            f"{target} exists and is not empty; name another directory, or replace an earlier "
            "result with --overwrite."
        )
    held = {str(file.relative_to(target)) for file in target.rglob("*") if not file.is_dir()}
    if foreign := sorted(held - _own_files(target)):
        raise InputError(
            f"{target} holds {foreign[0]!r}, which was not written by ultraedit, so it is not "
            "replaced; name another directory."
        )


def _own_files(target: Path) -> set[str]:
    """Return the files an earlier result lists as its own."""
    try:
        content = json.loads((target / OWN_FOLDER / RECEIPT).read_text(encoding="utf-8"))
        return set(content["files"]) if content["format"] == RECEIPT_FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _make_parents(parent: Path) -> list[Path]:
    """Create missing folders and return them, innermost first, to be removed again on failure."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing


def _take_place(staging: Path, target: Path, *, overwrite: bool) -> None:
    """Rename a finished directory; where its place was taken meanwhile, put it beside."""
    try:
        _refuse_occupied(target, overwrite=overwrite)
        if target.exists():
            _replace(staging, target)
        else:
            staging.rename(target)
    except (InputError, OSError) as error:
        beside = free_name(target)
        try:
            staging.rename(beside)
        except OSError:
            raise error from None
        raise OSError(f"{error} The result is whole and lies at {beside} instead") from error


def free_name(target: Path) -> Path:
    """Return a name beside `target` that nothing has yet."""
    number = 1
    while (beside := target.with_name(f"{target.name}-{number}")).exists():
        number += 1
    return beside


def _replace(staging: Path, target: Path) -> None:
    away = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.old.", dir=target.parent))
    try:
        target.rename(away / "old")
        try:
            staging.rename(target)
        except OSError:
            (away / "old").rename(target)
            raise
    finally:
        shutil.rmtree(away, ignore_errors=True)


def _open_up(folder: Path) -> None:
    """Give files the permissions of ordinary ones; temporary ones are private."""
    mask = _umask()
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {reason}.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
