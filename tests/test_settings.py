"""Settings are explained where they are declared and refused in words where they are wrong."""

import contextlib
from dataclasses import dataclass, fields
from inspect import getsourcefile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultraedit.errors import InputError, unknown_name
from ultraedit.methods.ultraedit import UltraEditConfig
from ultraedit.settings import build, describe, parse

EXAMPLE = '''
from dataclasses import dataclass

raise RuntimeError("a file of settings is read, not run")

@dataclass
class Other:
    name: str = "other"
    """Not this one."""

@dataclass
class Config:
    """Settings."""

    rate: float = 1e-6
    """How far to go;
    over two lines."""
    kind: Literal["a", "b"] = "a"
    """Which one."""
    size: int | None = None
    """How many."""
    silent: bool = False
    last: bool = True
'''


@dataclass(frozen=True)
class Config:
    """Settings of every type that there is."""

    rate: float = 1e-6
    count: int = 1
    limit: int | None = None
    name: str = "x"
    kind: Literal["exact", "authors"] = "exact"
    quick: bool = False


WRONG = {
    "rate": ("a number", ["fast", None, True, [1.0]]),
    "count": ("a whole number", [1.5, "1", True, None]),
    "limit": ("a whole number or nothing", ["none", 1.5, False, []]),
    "name": ("str", [1, None, ["x"]]),
    "kind": ("'exact' or 'authors'", ["Exact", 1, None, ["exact"]]),
    "quick": ("true or false", [1, 0, "true", None]),
}
RIGHT = {
    "rate": [1e-6, 1, 0],
    "count": [0, -3, 10**20],
    "limit": [None, 3],
    "name": ["", "x"],
    "kind": ["exact", "authors"],
    "quick": [True, False],
}
WRONG_CASES = [
    pytest.param(name, value, words, id=f"{name}-{value}")
    for name, (words, values) in WRONG.items()
    for value in values
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG_CASES)
def test_a_value_of_another_type_is_refused_in_words(name, value, words):
    with pytest.raises(InputError) as refusal:
        build(Config, {name: value})
    assert str(refusal.value) == f"{name} must be {words}, got {value!r}."


@pytest.mark.parametrize("name", RIGHT)
def test_a_value_of_the_right_type_is_kept(name):
    for value in RIGHT[name]:
        assert getattr(build(Config, {name: value}), name) == value


def test_settings_left_out_keep_their_defaults():
    assert build(Config, {}) == Config()


@pytest.mark.parametrize(
    ("wrong", "right"), [("cuont", "count"), ("rates", "rate"), ("quickly", "quick")]
)
def test_an_unknown_name_lists_the_near_match_and_all_names(wrong, right):
    with pytest.raises(InputError) as refusal:
        build(Config, {wrong: 1})
    assert f"no setting {wrong!r}" in str(refusal.value)
    assert f"Did you mean {right!r}?" in str(refusal.value)
    assert "count, kind, limit, name, quick, rate" in str(refusal.value)


def test_a_name_like_no_other_is_refused_without_a_guess():
    message = str(unknown_name("method", "zzz", ["rect", "memit"]))
    assert message == "There is no method 'zzz'. Known: memit, rect."


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 0}, "lr must be a positive number, got 0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"lr": float("inf")}, "lr must be a positive number, got inf"),
        ({"normalised_share": 1.5}, "from 0 to 1, got 1.5"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens must be at least 1, got 0"),
        ({"micro_batch_edits": -2}, "micro_batch_edits must be at least 1, got -2"),
    ],
)
def test_a_value_that_is_impossible_is_refused_by_name(values, words):
    with pytest.raises(InputError, match=words):
        build(UltraEditConfig, values)


def test_every_setting_of_ultraedit_is_explained_where_it_is_declared():
    source = Path(getsourcefile(UltraEditConfig))
    described = describe(source, "UltraEditConfig")
    assert [setting.name for setting in described] == [f.name for f in fields(UltraEditConfig)]
    for setting in described:
        assert setting.help.endswith("."), f"{setting.name} has no help"
        assert "\n" not in setting.help


def test_the_described_defaults_are_the_ones_that_hold():
    source = Path(getsourcefile(UltraEditConfig))
    for setting in describe(source, "UltraEditConfig"):
        kept = getattr(UltraEditConfig(), setting.name)
        assert setting.default.strip("'") == str(kept) or float(setting.default) == kept


def test_settings_are_read_without_running_their_file(tmp_path):
    source = tmp_path / "config.py"
    source.write_text(EXAMPLE, encoding="utf-8")
    rows = [(s.name, s.kind, s.default, s.help) for s in describe(source, "Config")]
    assert rows == [
        ("rate", "float", "1e-06", "How far to go; over two lines."),
        ("kind", "Literal['a', 'b']", "'a'", "Which one."),
        ("size", "int | None", "None", "How many."),
        ("silent", "bool", "False", ""),
        ("last", "bool", "True", ""),
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-6", 1e-6),
        ("rate", "2", 2.0),
        ("rate", "-0.5", -0.5),
        ("count", "12", 12),
        ("limit", "12", 12),
        ("limit", "none", None),
        ("limit", "None", None),
        ("name", "12", "12"),
        ("name", "true", "true"),
        ("kind", "authors", "authors"),
        ("quick", "true", True),
        ("quick", "False", False),
        ("quick", "Yes", True),
        ("quick", "no", False),
    ],
)
def test_the_text_of_a_flag_becomes_a_value_of_the_fields_type(name, text, value):
    parsed = parse(Config, name, text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert getattr(build(Config, {name: parsed}), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("rate", "fast"), ("count", "1.5"), ("kind", "Exact"), ("quick", "1"), ("limit", "few")],
)
def test_a_text_that_does_not_fit_is_refused_by_build_and_not_by_parse(name, text):
    with pytest.raises(InputError, match=f"{name} must be"):
        build(Config, {name: parse(Config, name, text)})


@settings(deadline=None)
@given(st.sampled_from([*RIGHT, "unheard of"]), st.text(max_size=9) | st.just("[" * 100_000))
def test_any_text_of_any_flag_is_taken_or_refused(name, text):
    with contextlib.suppress(InputError):
        build(Config, {name: parse(Config, name, text)})


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_setting_shows_can_be_given_back_as_a_flag(name):
    for value in RIGHT[name]:
        assert parse(Config, name, str(value)) == value
