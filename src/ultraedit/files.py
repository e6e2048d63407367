"""Writing that is whole or absent: everything is written beside its place and then renamed."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ultraedit.errors import InputError

OWN_FOLDER = "ultraedit"
"""Folder inside an edited model's directory that holds what is ours, and marks it as ours."""


@contextmanager
def _said_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error


def check_output_file(path: Path) -> None:
    """Refuse, before any work is done, a file that could not be written afterwards."""
    if str(path) == "-":
        return
    with _said_in_words(path):
        is_directory, has_folder = path.is_dir(), path.parent.is_dir()
    if is_directory:
        raise InputError(f"{path} is a directory; name a file to write.")
    if not has_folder:
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
    elif path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a device or a pipe must not be replaced by a file
    else:
        with staged_file(path) as staging:
            staging.write_text(text, encoding="utf-8")


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` that takes its place when the block succeeds."""
    target = path.resolve()
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
    with _said_in_words(path):
        is_else = path.is_symlink() or (path.exists() and not path.is_dir())
    if is_else:
        raise InputError(f"{path} exists and is not a directory; name another one for --out.")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise InputError(
                f"{path} exists and is not empty; name another directory, or replace an earlier "
                "result with --overwrite."
            )
        if not (path / OWN_FOLDER).is_dir():
            raise InputError(
                f"{path} was not written by ultraedit, so --overwrite leaves it alone; "
                "name another directory."
            )
    with staged_directory(path, check_only=True):
        pass


@contextmanager
def staged_directory(path: Path, *, check_only: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `path` that takes its place when the block succeeds."""
    target = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link at the end
    place = target.parent
    while check_only and not place.exists():
        place = place.parent
    try:
        made = _make_parents(place)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=place))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error
    try:
        yield staging
        if not check_only:
            _take_place(staging, target)
            made = []
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in made:
            folder.rmdir()


def _make_parents(parent: Path) -> list[Path]:
    """Create missing folders and return them, innermost first, to be removed again on failure."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing


def _take_place(staging: Path, target: Path) -> None:
    staging.chmod(0o777 & ~_umask())
    for path in staging.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.old.", dir=target.parent)) / "old"
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
