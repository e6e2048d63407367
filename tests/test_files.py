"""What is written is whole or absent, and nothing that is not ours is replaced."""

import json
import os
import stat
from pathlib import Path

import pytest

from ultraedit.errors import InputError
from ultraedit.files import (
    OWN_FOLDER,
    RECEIPT,
    RECEIPT_FORMAT,
    check_output_directory,
    check_output_files,
    staged_directory,
    write_json,
)

CONTENT = {"name": "Zoë 東京", "values": [1, 2.5, None], "nested": {"a": True}}
UNWRITABLE = {"not a number": float("nan"), "a set": {1}, "half a character": "\ud800"}


@pytest.fixture(autouse=True)
def umask():
    """Make the modes of new files the same on every machine."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def tree(folder):
    """Return every path below a folder with its text, to see whether anything changed."""
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in paths}


def fail_inside(path, error):
    """Fail when half of a directory is written."""
    with staged_directory(path) as staging:
        (staging / "folder").mkdir()
        (staging / "folder" / "weights").write_text("half")
        raise error


def test_json_is_written_so_that_people_can_read_it(tmp_path):
    write_json(tmp_path / "result.json", CONTENT)
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    assert json.loads(text) == CONTENT
    assert "Zoë 東京" in text
    assert text.endswith("}\n")
    assert list(tmp_path.iterdir()) == [tmp_path / "result.json"]


def test_a_dash_writes_to_standard_output(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(Path("-"), CONTENT)
    assert json.loads(capsys.readouterr().out) == CONTENT
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("wrong", UNWRITABLE.values(), ids=UNWRITABLE)
@pytest.mark.parametrize("before", [{}, {"result.json": "the old result"}], ids=["new", "old"])
def test_a_content_that_fails_leaves_everything_as_it_was(wrong, before, tmp_path):
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "result.json", {"good": 1, "bad": wrong})
    assert tree(tmp_path) == before


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("old")
    old.chmod(0o604)
    write_json(new, CONTENT)
    write_json(old, CONTENT)
    assert (mode(new), mode(old)) == (0o640, 0o604)


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "result.json"
    link.symlink_to(tmp_path / "far" / "real.json")
    for value in (1, 2):
        write_json(link, value)
        assert link.is_symlink()
        assert (tmp_path / "far" / "real.json").read_text() == f"{value}\n"


def test_a_device_is_written_to_and_not_replaced():
    write_json(Path(os.devnull), CONTENT)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    check_output_files([Path(os.devnull)])


@pytest.mark.parametrize("letter", ["x", "é", "東", "🙂"])
def test_the_longest_names_can_be_written(letter, tmp_path):
    name = letter * (255 // len(letter.encode()))
    write_json(tmp_path / name, CONTENT)
    with staged_directory(tmp_path / "parent" / name) as staging:
        (staging / "a").write_text("a")
    assert tree(tmp_path / "parent" / name) == {"a": "a"}


def test_a_file_that_could_not_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "a-file").write_text("")
    with pytest.raises(InputError, match="is a directory"):
        check_output_files([tmp_path])
    with pytest.raises(InputError, match=f"no folder {tmp_path / 'missing'}"):
        check_output_files([tmp_path / "missing" / "result.json"])
    with pytest.raises(InputError, match="no folder"):
        check_output_files([tmp_path / "a-file" / "result.json"])


def test_a_file_that_can_be_written_is_accepted_and_not_touched(tmp_path):
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        check_output_files([tmp_path / name])
    check_output_files([Path("-")])
    assert tree(tmp_path) == {"old.json": "old"}


@pytest.mark.parametrize("check", [lambda path: check_output_files([path]), check_output_directory])
def test_a_name_too_long_for_the_disk_is_refused_in_words(check, tmp_path):
    for path in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "result"):
        with pytest.raises(InputError):
            check(path)


@pytest.mark.parametrize("name", ["old.json", "new.json", "directory"])
def test_a_place_that_may_not_be_written_is_refused(name, tmp_path):
    (tmp_path / "old.json").write_text("old")
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        is_folder = name == "directory"
        check = check_output_directory if is_folder else lambda path: check_output_files([path])
        with pytest.raises(InputError, match=r"(?i)permission"):
            check(tmp_path / name)
    finally:
        tmp_path.chmod(0o700)


def test_a_directory_appears_only_when_the_block_succeeds(tmp_path):
    target = tmp_path / "new" / "parents" / "model"
    with staged_directory(target) as staging:
        (staging / "weights").write_text("w")
        assert not target.exists()
        assert staging.parent == target.parent
    assert tree(tmp_path) == {
        "new": "",
        "new/parents": "",
        "new/parents/model": "",
        "new/parents/model/weights": "w",
    }
    assert mode(target) == 0o750


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_behind_not_even_new_parents(error, tmp_path):
    (tmp_path / "kept").mkdir()
    before = tree(tmp_path)
    with pytest.raises(error):
        fail_inside(tmp_path / "kept" / "new" / "model", error)
    assert tree(tmp_path) == before


def earlier_result(folder: Path) -> Path:
    """Make a directory that says of itself that we wrote it."""
    (folder / OWN_FOLDER).mkdir(parents=True)
    (folder / "old").write_text("old")
    receipt = {"format": RECEIPT_FORMAT, "files": ["old", f"{OWN_FOLDER}/{RECEIPT}"]}
    (folder / OWN_FOLDER / RECEIPT).write_text(json.dumps(receipt))
    return folder


def test_an_old_result_is_replaced_whole_and_only_on_success(tmp_path):
    target = earlier_result(tmp_path / "model")
    before = tree(tmp_path)
    with pytest.raises(RuntimeError):
        fail_inside(target, RuntimeError)
    assert tree(tmp_path) == before
    with staged_directory(target, overwrite=True) as staging:
        (staging / "new").write_text("new")
        assert (target / "old").exists()
    assert tree(tmp_path) == {"model": "", "model/new": "new"}


def test_an_old_result_comes_back_when_the_new_one_cannot_take_its_place(tmp_path):
    target = earlier_result(tmp_path / "model")
    before = tree(tmp_path)
    with pytest.raises(OSError, match="No such file"), staged_directory(target) as staging:
        staging.rmdir()
    assert tree(tmp_path) == before


def take_its_place(target: Path, *, by_a_file: bool) -> None:
    with staged_directory(target) as staging:
        (staging / "weights").write_text("w")
        if by_a_file:
            target.touch()
        else:
            target.mkdir()
            (target / "precious").touch()


@pytest.mark.parametrize("by_a_file", [True, False])
def test_what_took_the_place_meanwhile_stays_and_the_result_lies_beside(by_a_file, tmp_path):
    target = tmp_path / "model"
    with pytest.raises(OSError, match="model-1 instead"):
        take_its_place(target, by_a_file=by_a_file)
    assert (tmp_path / "model-1" / "weights").read_text() == "w"
    assert target.is_file() or (target / "precious").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/.."])
def test_a_path_without_a_name_of_its_own_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no name for a new directory"):
        check_output_directory(Path(name))


def test_the_working_directory_is_never_replaced(tmp_path, monkeypatch):
    target = earlier_result(tmp_path / "model")
    monkeypatch.chdir(target)
    with pytest.raises(InputError, match="in use"):
        check_output_directory(target, overwrite=True)


def test_the_check_and_the_writing_mean_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").touch()
    (tmp_path / "link").symlink_to(tmp_path / "other" / "deep")
    with staged_directory(Path("link/../victim")) as staging:
        (staging / "a").write_text("a")
    assert (tmp_path / "victim" / "precious").exists()
    assert (tmp_path / "other" / "victim" / "a").exists()


def test_files_that_are_read_or_written_already_are_not_written_over(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "edits.jsonl").touch()
    inputs = [tmp_path / "edits.jsonl", tmp_path / "model"]
    for name in ("edits.jsonl", "model/config.json", "model/../edits.jsonl"):
        with pytest.raises(InputError, match="needed for something else"):
            check_output_files([tmp_path / name], inputs=inputs)
    with pytest.raises(InputError, match="needed for something else"):
        check_output_files([tmp_path / "one.json", tmp_path / "one.json"])


def test_a_relative_directory_and_one_through_a_link_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (Path("here"), Path("link/inside"), Path("real/../there")):
        check_output_directory(path)
        with staged_directory(path) as staging:
            (staging / "a").write_text("a")
        assert tree(path) == {"a": "a"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_new_or_empty_directory_is_accepted_and_not_touched(overwrite, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new", tmp_path / "deep" / "er" / "new"):
        check_output_directory(path, overwrite=overwrite)
    assert tree(tmp_path) == {"empty": ""}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_or_a_link_is_no_output_directory(overwrite, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "broken"):
        with pytest.raises(InputError, match="no plain directory"):
            check_output_directory(tmp_path / name, overwrite=overwrite)
    with pytest.raises(InputError, match="cannot be written"):
        check_output_directory(tmp_path / "file" / "below", overwrite=overwrite)


def test_only_our_own_results_are_replaced_and_only_when_asked(tmp_path):
    ours, theirs = earlier_result(tmp_path / "ours"), tmp_path / "theirs"
    (theirs / OWN_FOLDER).mkdir(parents=True)
    (theirs / "thesis.tex").write_text("years of work")
    for path in (ours, theirs):
        with pytest.raises(InputError, match="not empty"):
            check_output_directory(path)
    check_output_directory(ours, overwrite=True)
    (ours / "notes.txt").touch()
    for path, name in ((theirs, "thesis.tex"), (ours, "notes.txt")):
        with pytest.raises(InputError, match=f"{name}.*not written by ultraedit"):
            check_output_directory(path, overwrite=True)


def test_a_parent_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be written"),
        staged_directory(tmp_path / "file" / "below" / "model"),
    ):
        pytest.fail("there is no place to write to")
    assert tree(tmp_path) == {"file": ""}
