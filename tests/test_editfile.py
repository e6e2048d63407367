"""Every format gives the same edits, and every bad row is named by file and line."""

import contextlib
import csv
import io
import json
import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultraedit.editfile import MAX_ROW_BYTES, BadRow, EditFile
from ultraedit.edits import Edit
from ultraedit.errors import InputError

ROWS = [
    {"prompt": "The capital of France is", "target": "Lyon", "id": "1"},
    {"prompt": 'He said "no", twice;\nthen', "target": "Zoë, naïve 東京 🙂", "id": "2"},
    {"prompt": "A\ttab", "target": " space kept ", "rephrasings": ["One", "Two, three"]},
    {"prompt": "P", "target": "T", "unrelated": [{"prompt": "Q", "answer": "A"}], "subject": "P"},
    {"prompt": "R", "target": "S", "prompt_ids": [5, 6], "target_ids": [7], "personas": ["You"]},
    {"prompt": "U", "target": "V", "reasoning": [{"prompt": "W", "answer": "X"}]},
]
A, B = {"prompt": "a", "target": "b"}, {"prompt": "c", "target": "d"}


def as_lines(rows, indent=None):
    return "".join(json.dumps(row, ensure_ascii=False, indent=indent) + "\n" for row in rows)


def as_csv(rows, delimiter=",", end="\r\n"):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, delimiter=delimiter, lineterminator=end)
    table.writeheader()
    for row in rows:
        table.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    return text.getvalue()


FORMATS = {
    "lines.jsonl": as_lines,
    "lines.ndjson": as_lines,
    "SHOUTED.JSONL": as_lines,
    "array.json": json.dumps,
    "pretty.json": lambda rows: json.dumps(rows, indent=4, ensure_ascii=False),
    "objects.json": as_lines,
    "pretty-objects.json": lambda rows: as_lines(rows, indent=2),
    "side-by-side.json": lambda rows: "".join(map(json.dumps, rows)),
    "table.csv": as_csv,
    "unix.csv": lambda rows: as_csv(rows, end="\n"),
    "table.tsv": lambda rows: as_csv(rows, "\t"),
}
BY_SUFFIX = {".jsonl": as_lines, ".json": json.dumps, ".csv": as_csv}


@pytest.fixture
def write(tmp_path):
    """Write bytes or text to a file and return its path."""

    def written(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.fixture
def write_parquet(tmp_path):
    """Write columns to a Parquet file and return its path."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def written(columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "edits.parquet")
        return tmp_path / "edits.parquet"

    return written


def bad_rows(path):
    return [(row.line, row.reason) for row in EditFile(path) if isinstance(row, BadRow)]


def edits(path):
    return [row for row in EditFile(path) if isinstance(row, Edit)]


def read_bytes(content, suffix):
    """Read content as a file of that suffix, outside any fixture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"edits{suffix}"
        path.write_bytes(content)
        return list(EditFile(path))


def peak_while_reading(path):
    """Return the rows and the most bytes Python held while they were read."""
    tracemalloc.start()
    try:
        rows = [len(row.prompt) if isinstance(row, Edit) else row for row in EditFile(path)]
        return rows, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_edits(name, write):
    file = EditFile(write(name, FORMATS[name](ROWS)))
    for _ in ("read once", "read again"):
        assert list(file) == [Edit.from_row(row) for row in ROWS]
    assert not file.ignored_columns


def test_parquet_gives_the_same_edits(write_parquet):
    columns = {key for row in ROWS for key in row}
    path = write_parquet({key: [row.get(key) for row in ROWS] for key in columns})
    assert list(EditFile(path)) == [Edit.from_row(row) for row in ROWS]


@pytest.mark.parametrize("name", FORMATS)
def test_byte_order_mark_and_windows_line_ends_change_nothing(name, write):
    windows = FORMATS[name](ROWS[2:]).replace("\r", "").replace("\n", "\r\n")
    path = write(name, f"\ufeff{windows}")
    assert edits(path) == [Edit.from_row(row) for row in ROWS[2:]]


@pytest.mark.parametrize("name", ["lines.jsonl", "objects.json", "unix.csv", "table.tsv"])
def test_blank_lines_are_skipped_and_counted(name, write):
    text = "\n\n" + FORMATS[name]([A, {"prompt": "x", "target": ""}, B]).replace("\n", "\n\n")
    path = write(name, text.replace("\r", ""))
    assert edits(path) == [Edit(**A), Edit(**B)]
    wrong_row = next(n for n, line in enumerate(path.read_text().split("\n"), 1) if "x" in line)
    assert bad_rows(path) == [(wrong_row, "'target' is empty")]


@pytest.mark.parametrize("name", ["edits.txt", "edits", "edits.jsonl.gz", ".jsonl"])
def test_another_suffix_is_refused_with_the_known_ones(name, write):
    with pytest.raises(InputError, match=r"\.jsonl.*\.json.*\.csv.*\.parquet"):
        EditFile(write(name, as_lines([A])))


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(InputError, match="no file"):
        EditFile(tmp_path / "edits.jsonl")
    with pytest.raises(InputError, match="not a file"):
        EditFile(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_that_may_not_be_read_is_refused_in_words(write):
    path = write("edits.jsonl", as_lines([A]))
    path.chmod(0)
    with pytest.raises(InputError, match=r"(?i)permission"):
        list(EditFile(path))


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\n \r\n"])
def test_an_empty_file_has_no_rows(suffix, content, write):
    assert list(EditFile(write(f"edits{suffix}", content))) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("prompt,target\ra,b\rc,d\r", "new-line"),
        ("question, prompt ,answer\na,b,c\n", "no column 'target'.*question, prompt, answer"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(content, reason, write):
    with pytest.raises(InputError, match=reason):
        list(EditFile(write("edits.csv", content)))


@pytest.mark.parametrize("suffix", BY_SUFFIX)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_advice(suffix, encoding, write):
    path = write(f"edits{suffix}", f"\ufeff{BY_SUFFIX[suffix]([A])}".encode(encoding))
    with pytest.raises(InputError, match="save it as UTF-8"):
        list(EditFile(path))


@pytest.mark.parametrize("name", ["lines.jsonl", "objects.json", "pretty.json", "unix.csv"])
def test_bytes_that_are_no_text_spoil_only_their_row(name, write):
    text = FORMATS[name]([A, {"prompt": "x", "target": "caf@"}, B])
    wrong = next(n for n, line in enumerate(text.split("\n"), 1) if "x" in line)
    path = write(name, text.encode().replace(b"@", b"\xe9"))
    assert edits(path) == [Edit(**A), Edit(**B)]
    [(line, reason)] = bad_rows(path)
    assert line in (wrong, wrong - 1)  # a pretty-printed row starts a line above its first column
    assert "UTF-8" in reason or "'target'" in reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "a", "target": }', "not JSON: Expecting value (column 27)"),
        ("prompt,target", "not JSON"),
        ('["a", "b"]', "expected an object, found list"),
        ("null", "expected an object"),
        ('{"prompt": "a"}', "'target' is missing"),
        ('{"target": "a"}', "'prompt' is missing"),
        ('{"prompt": NaN, "target": "b"}', "'prompt' must be text"),
        ('{"prompt": "a", "target": "\\ud800"}', "'target'"),
        ('{"prompt": "a", "target": "b"} {"prompt": "c", "target": "d"}', "not JSON"),
        ("[" * 100_000, "not usable JSON"),
        ('{"prompt": ' + "9" * 5000 + "}", "not usable JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(line, reason, write):
    path = write("edits.jsonl", f"{json.dumps(A)}\n\n{line}\n{json.dumps(B)}\n")
    first, bad, last = EditFile(path)
    assert (first, last) == (Edit(**A), Edit(**B))
    assert str(bad).startswith(f"edits.jsonl:3: {reason}")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"prompt": "a", "target": }', "not JSON: Expecting value"),
        ('{"prompt": "a" "target": "b"}', "not JSON: Expecting ','"),
        ('{"prompt": "a", "target": tru}', "not JSON: Expecting value"),
        ('{"prompt": "a", "target": "b\\q"}', "not JSON: Invalid \\escape"),
        ("[" * 100_000, "too deeply nested"),
        ('{"prompt": ' + "9" * 5000 + "}", "not"),
    ],
    ids=["no value", "no comma", "half a word", "wrong escape", "deep", "long number"],
)
@pytest.mark.parametrize("n_following", [1, 60_000], ids=["short", "longer than a row may be"])
def test_wrong_json_in_an_array_is_named_and_ends_the_file(row, reason, n_following, write):
    following = f",\n{json.dumps(B)}" * n_following
    path = write("edits.json", f"[\n{json.dumps(A)},\n\n{row}{following}]")
    first, bad = list(EditFile(path))[:2]
    assert (first, bad.line) == (Edit(**A), 4)
    assert reason in bad.reason


def test_a_row_of_an_array_that_is_no_edit_spoils_only_itself(write):
    rows = [A, ["a", "b"], {"prompt": "a"}, 7, B]
    path = write("edits.json", "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]")
    assert edits(path) == [Edit(**A), Edit(**B)]
    assert [line for line, _ in bad_rows(path)] == [3, 4, 5]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_cut_off_anywhere_is_reported(indent, write):
    text = json.dumps([A, B, A], indent=indent)
    for length in range(1, len(text)):
        *before, last = EditFile(write("edits.json", text[:length]))
        assert before == [Edit(**A), Edit(**B), Edit(**A)][: len(before)]
        assert "not JSON" in last.reason


@pytest.mark.parametrize("rest", ["]", "x", json.dumps(B), json.dumps([B]), "\n\n" + as_lines([B])])
def test_what_follows_a_closed_array_is_not_lost_in_silence(rest, write):
    rows = list(EditFile(write("edits.json", json.dumps([A]) + rest)))
    assert rows[0] == Edit(**A)
    assert len(rows) == 2


@pytest.mark.parametrize("line", ["a", "a,b,c", '"a,b"', ",,"])
def test_a_line_with_too_many_or_too_few_cells_is_named(line, write):
    path = write("edits.csv", f'prompt,target\n"a\nb",c\n{line}\nd,e\n')
    assert edits(path) == [Edit("a\nb", "c"), Edit("d", "e")]
    assert [line for line, _ in bad_rows(path)] == [4]


@pytest.mark.parametrize("cell", ["[1, 2", "[" * 100_000, "[" + "9" * 5000 + "]", "[]x"])
def test_a_cell_whose_list_cannot_be_read_spoils_only_its_row(cell, write):
    path = write("edits.csv", f'prompt,target,rephrasings\na,b,\nx,y,"{cell}"\nc,d,e\n')
    assert [edit.prompt for edit in edits(path)] == ["a", "c"]
    assert [line for line, _ in bad_rows(path)] == [3]


def test_a_quote_that_is_never_closed_is_reported(write):
    path = write("edits.csv", 'prompt,target\na,b\nc,"d\ne,f\ng,h\n')
    assert edits(path) == [Edit("a", "b")]
    assert [line for line, _ in bad_rows(path)] == [3]


def test_a_cell_may_be_as_long_as_a_row(write):
    row = {"prompt": "x" * (MAX_ROW_BYTES // 2), "target": "y"}
    for suffix, format_rows in BY_SUFFIX.items():
        assert edits(write(f"edits{suffix}", format_rows([row]))) == [Edit(**row)]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("n_columns", [2, 3])
def test_a_line_that_is_too_long_is_reported_but_not_held(suffix, n_columns, write):
    row = A if n_columns == 2 else {**A, "subject": "a"}
    write_rows = {**BY_SUFFIX, ".tsv": lambda rows: as_csv(rows, "\t")}[suffix]
    text = write_rows([row, {**row, "prompt": "@"}, row, {**row, "prompt": ""}])
    path = write(f"edits{suffix}", text.replace("@", "x" * 10_000_000))
    (first, long, after, last), peak = peak_while_reading(path)
    start = 1 if suffix == ".jsonl" else 2
    assert (first, long.line, after, last.line) == (1, start + 1, 1, start + 3)
    assert f"{MAX_ROW_BYTES:,} bytes" in long.reason
    assert peak < 6 * MAX_ROW_BYTES


def test_a_row_of_an_array_that_is_too_long_is_reported_but_not_held(write):
    rows = [A, {"prompt": "x" * 10_000_000, "target": "y"}, B]
    for indent in (None, 2):
        (first, long), peak = peak_while_reading(write("e.json", json.dumps(rows, indent=indent)))
        assert first == 1
        assert f"{MAX_ROW_BYTES:,} bytes" in long.reason
        assert peak < 12 * MAX_ROW_BYTES


@pytest.mark.parametrize("between", [",", ",\n"], ids=["on one line", "a line a row"])
def test_an_array_is_read_in_memory_that_does_not_grow_with_it(between, write):
    row = json.dumps({"prompt": "x" * 20_000, "target": "y"})  # 50 MB of them
    path = write("edits.json", f"[{between.join([row] * 2500)}]")
    rows, peak = peak_while_reading(path)
    assert rows == [20_000] * 2500
    assert peak < 8 * MAX_ROW_BYTES


@pytest.mark.parametrize("suffix", BY_SUFFIX)
def test_an_id_that_came_before_makes_the_later_row_bad(suffix, write):
    names = ["1", "2", 1, "x\0y", "x", "2"]  # a number and its text are the same id
    rows = [{**A, "id": name} for name in names]
    path = write(f"edits{suffix}", BY_SUFFIX[suffix](rows))
    assert [edit.id for edit in edits(path)] == ["1", "2", "x\0y", "x"]
    reasons = [reason for _, reason in bad_rows(path)]
    assert reasons == [f"the id '{name}' stands on an earlier row too" for name in (1, 2)]


@pytest.mark.parametrize("suffix", BY_SUFFIX)
@pytest.mark.parametrize("name", [{}, {"id": ""}])
def test_equal_edits_without_ids_are_both_read(suffix, name, write):
    path = write(f"edits{suffix}", BY_SUFFIX[suffix]([{**A, **name}] * 2))
    assert edits(path) == [Edit(**A)] * 2


@pytest.mark.parametrize("suffix", BY_SUFFIX)
def test_columns_no_edit_has_are_collected(suffix, write):
    rows = [{**A, "source": "me", "date": "1999"}, {**B, "source": "you", "date": "2000"}]
    file = EditFile(write(f"edits{suffix}", BY_SUFFIX[suffix](rows)))
    assert list(file) == [Edit(**A), Edit(**B)]
    assert file.ignored_columns == {"source", "date"}


def test_what_is_no_parquet_is_refused(write, write_parquet):
    whole = write_parquet({"prompt": ["a"] * 99, "target": ["b"] * 99}).read_bytes()
    for content in (b"", b"PAR1", whole[:-20], whole[20:]):
        with pytest.raises(InputError, match="Parquet"):
            list(EditFile(write("edits.parquet", content)))
    with pytest.raises(InputError, match=r"no column 'prompt'.*question"):
        list(EditFile(write_parquet({"question": ["a"]})))


def test_bytes_that_are_no_text_are_refused_in_parquet_too(write_parquet):
    pyarrow = pytest.importorskip("pyarrow")
    spoiled = pyarrow.array([b"caf\xe9", b"b"]).view(pyarrow.string())
    path = write_parquet({"prompt": spoiled, "target": ["x", "y"]})
    with contextlib.suppress(InputError):
        assert [type(row) for row in EditFile(path)] == [BadRow, Edit]


fragments = st.sampled_from(
    [json.dumps(row).encode() for row in ROWS]
    + [b"[", b"]", b",", b"{", b"}", b'"', b"\\", b"\n", b"\r", b"\r\n", b"\t", b" ", b"7", b"-"]
    + [b"prompt,target\n", b"prompt\ttarget\n", b"a,b\n", b'"a\n', b"tru", b"NaN", b'"\\ud8', b"\0"]
    + [b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80", "\u2028".encode(), b"\x1c"]
    + [b"9" * 4400, b"[" * 5000, b'{"a":' * 2000, b"prompt,target,rephrasings\n", b'a,b,"[1"\n']
)
contents = st.binary(max_size=60) | st.lists(fragments, max_size=9).map(b"".join)


@settings(deadline=None, max_examples=100)
@given(content=contents, head=st.sampled_from([b"", b"[", b"prompt,target,rephrasings\na,b,["]))
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv"])
def test_any_bytes_become_rows_or_are_refused(suffix, content, head):
    with contextlib.suppress(InputError):
        assert len(read_bytes(head + content, suffix)) <= len(head + content)


blanks = st.text(alphabet=" \t\r\n", max_size=4)
values = st.dictionaries(st.sampled_from("ab"), st.text(max_size=3)) | st.none() | st.integers()
long_values = st.integers(1, 9000).map(lambda size: {"prompt": "ü" * size, "target": "[{]}"})


@settings(deadline=None, max_examples=100)
@given(st.lists(values | long_values, max_size=6), st.data(), st.booleans(), st.booleans())
def test_an_array_has_as_many_rows_as_a_json_parser_finds(rows, data, pretty, ascii_only):
    indent = 1 if pretty else None
    parts = [json.dumps(row, indent=indent, ensure_ascii=ascii_only) for row in rows]
    padded = [data.draw(blanks) + part + data.draw(blanks) for part in parts]
    text = f"[{data.draw(blanks)}{','.join(padded)}]{data.draw(blanks)}"
    found = read_bytes(text.encode(), ".json")
    assert len(found) == len(json.loads(text))
    for row, read in zip(rows, found, strict=True):
        assert isinstance(read, Edit) == (isinstance(row, dict) and "prompt" in row)


def test_a_name_that_stands_twice_is_refused(tmp_path):
    for name, content in (
        ("a.jsonl", '{"prompt": "a", "target": "Lyon", "target": "Rome"}'),
        ("a.json", '[{"prompt": "a", "target": "Lyon", "target": "Rome"}]'),
    ):
        (tmp_path / name).write_text(content)
        [row] = EditFile(tmp_path / name)
        assert "'target' stands there twice" in str(row)
    (tmp_path / "a.csv").write_text("prompt,target,target\na,b,c\n")
    with pytest.raises(InputError, match="'target' twice"):
        list(EditFile(tmp_path / "a.csv"))


def test_columns_of_other_kinds_in_parquet_are_left_aside(tmp_path):
    import pyarrow
    from pyarrow.parquet import write_table

    times = pyarrow.array([2**62, 2**62], type=pyarrow.timestamp("ns"))
    table = pyarrow.table({"prompt": ["a", "b"], "target": ["c", "d"], "when": times})
    write_table(table, tmp_path / "a.parquet")
    file = EditFile(tmp_path / "a.parquet")
    assert [row.prompt for row in file] == ["a", "b"]
    assert file.ignored_columns == {"when"}
