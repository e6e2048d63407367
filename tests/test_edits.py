"""What an edit accepts, what it refuses and why, and which probes it asks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultraedit.edits import COLUMNS, FAMILIES, Edit, Probe, as_edits, in_turns
from ultraedit.errors import InputError

GOOD = {"prompt": "The capital of France is", "target": "Lyon"}

NOT_A_TEXT = {
    "none": None,
    "number": 7,
    "float": 1.5,
    "bool": True,
    "mapping": {"a": 1},
    "bytes": b"Lyon",
    "empty": "",
    "spaces": "  ",
    "white space": " \t\n\u00a0",
    "no ids": [],
    "bool as id": [1, True],
    "negative id": [3, -1],
    "text among ids": [1, "2"],
    "float as id": [1.0],
    "none as id": [None],
    "lone surrogate": "Ly\ud800on",
}

NOT_A_LIST_OF_IDS = {
    "text": "1 2",
    "number": 7,
    "bool": False,
    "mapping": {"0": 1},
    "empty": [],
    "bool as id": [True],
    "negative id": [-1],
    "float as id": [2.0],
    "text among ids": ["1"],
    "nested": [[1]],
}

NOT_A_PAIR = {
    "text": ["What?"],
    "number": [7],
    "none": [None],
    "one of two": [["What?"]],
    "three": [["What?", "That", "Those"]],
    "no answer": [{"prompt": "What?"}],
    "no prompt": [{"answer": "That"}],
    "null answer": [{"prompt": "What?", "answer": None}],
}

NOT_A_PROBE = {
    "empty prompt": [{"prompt": "", "answer": "That"}],
    "empty answer": [{"prompt": "What?", "answer": " "}],
    "number as answer": [["What?", 7]],
    "bool as id": [[[1, 2], [True]]],
    "lone surrogate": [["What?", "\udfff"]],
}

NOT_A_LIST = {"number": 7, "bool": True, "float": 0.5, "bytes": b"x"}


def table(fields, values):
    """Return every field with every wrong value, as a readable list of cases."""
    return [
        pytest.param(field, value, id=f"{field}-{kind}")
        for field in fields
        for kind, value in values.items()
    ]


def without(values, *kinds):
    """Return a table without some of its kinds."""
    return {kind: value for kind, value in values.items() if kind not in kinds}


WRONG = [
    *table(["prompt", "target"], NOT_A_TEXT),
    *table(["subject"], without(NOT_A_TEXT, "none")),
    *table(["subject"], {"ids": [1, 2]}),
    *table(["prompt_ids", "target_ids"], NOT_A_LIST_OF_IDS),
    *table(["rephrasings", "personas"], {kind: [bad] for kind, bad in NOT_A_TEXT.items()}),
    *table(["rephrasings", "personas", "unrelated", "reasoning"], NOT_A_LIST),
    *table(["unrelated", "reasoning"], NOT_A_PAIR),
    *table(["unrelated", "reasoning"], NOT_A_PROBE),
    *table(["id"], {"list": [1], "bool": True, "float": 1.5, "blank": " ", "bytes": b"1"}),
    *table(["id"], {"lone surrogate": "\ud800", "mapping": {}}),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(InputError) as refusal:
        Edit(**{**GOOD, field: value})
    assert f"'{field}'" in str(refusal.value)


@pytest.mark.parametrize("field", ["prompt", "target"])
def test_text_beside_its_ids_is_checked_too(field):
    row = {"prompt_ids": [1], "target_ids": [2]}
    for value in (7, "\ud800", {"a": 1}):
        with pytest.raises(InputError, match=f"'{field}'"):
            Edit(**row, **{field: value})


@pytest.mark.parametrize("field", ["prompt", "answer"])
@pytest.mark.parametrize("value", NOT_A_TEXT.values(), ids=NOT_A_TEXT)
def test_a_probe_refuses_what_an_edit_refuses(field, value):
    with pytest.raises(InputError, match=f"'{field}'"):
        Probe(**{**{"prompt": "What?", "answer": "That"}, field: value})


@pytest.mark.parametrize("missing", ["prompt", "target"])
def test_a_missing_or_null_column_is_named(missing):
    row = {key: value for key, value in GOOD.items() if key != missing}
    for incomplete in (row, {**row, missing: None}, {**row, missing: None, f"{missing}_ids": None}):
        with pytest.raises(InputError, match=f"'{missing}' is missing"):
            Edit.from_row(incomplete)


def test_token_ids_are_accepted_everywhere_text_is():
    edit = Edit(
        prompt=[1, 2],
        target=(3,),
        rephrasings=[[4, 5], "In words"],
        unrelated=[[[6], [7, 8]], {"prompt": [9], "answer": "In words"}],
        personas=[(10,)],
        reasoning=[{"prompt": "In words", "target": [11]}],
    )
    assert [probe for _, probe in edit.probes()] == [
        Probe((1, 2), (3,)),
        Probe((4, 5), (3,)),
        Probe("In words", (3,)),
        Probe((6,), (7, 8)),
        Probe((9,), "In words"),
        Probe((10,), (3,)),
        Probe("In words", (11,)),
    ]


def test_ids_stand_in_place_of_the_text_beside_them():
    edit = Edit(**GOOD, prompt_ids=[1, 2], target_ids=[3])
    assert edit.question == Probe((1, 2), (3,))
    assert Edit(prompt_ids=[1, 2], target_ids=[3]).question == edit.question


def test_probes_come_in_the_order_of_the_families():
    edit = Edit(
        **GOOD,
        rephrasings=["France's capital is", "France is governed from"],
        unrelated=[["The capital of Italy is", "Rome"]],
        personas=["A child asks: what is France's capital?"],
        reasoning=[{"prompt": "The mayor of France's capital lives in", "answer": "Lyon"}],
    )
    families = [family for family, _ in edit.probes()]
    assert families == [FAMILIES[0], FAMILIES[1], *FAMILIES[1:]]
    answers = [probe.answer for _, probe in edit.probes()]
    assert answers == ["Lyon", "Lyon", "Lyon", "Rome", "Lyon", "Lyon"]


def test_an_edit_alone_asks_only_itself():
    assert list(Edit(**GOOD).probes()) == [("efficacy", Probe(GOOD["prompt"], GOOD["target"]))]


def test_one_text_or_one_pair_needs_no_list():
    pair = {"prompt": "What?", "answer": "That"}
    edit = Edit(**GOOD, rephrasings="How so?", personas="Say", unrelated=pair, reasoning=pair)
    assert edit.rephrasings == ("How so?",)
    assert edit.personas == ("Say",)
    assert edit.unrelated == edit.reasoning == (Probe("What?", "That"),)


def test_an_answer_may_be_called_target_also_where_answer_is_null():
    named = Edit(**GOOD, unrelated=[{"prompt": "What?", "target": "That"}])
    with_null = Edit(**GOOD, unrelated=[{"prompt": "What?", "answer": None, "target": "That"}])
    assert named.unrelated == with_null.unrelated == (Probe("What?", "That"),)


def test_equal_edits_have_equal_ids_and_others_do_not():
    first = Edit(**GOOD)
    assert first.id == Edit.from_row(GOOD).id == Edit(**GOOD, rephrasings=["How?"]).id
    others = [
        Edit(prompt=GOOD["prompt"], target="Paris"),
        Edit(prompt="The capital of Italy is", target="Lyon"),
        Edit(prompt="The capital of France isL", target="yon"),
        Edit(prompt=[1, 2], target=[3]),
        Edit(prompt=[1], target=[2, 3]),
    ]
    assert len({first.id, *(edit.id for edit in others)}) == 1 + len(others)


def test_ids_given_in_either_field_make_the_same_id():
    assert Edit(prompt=[1, 2], target=[3]).id == Edit(prompt_ids=(1, 2), target_ids=(3,)).id


@pytest.mark.parametrize(("given", "kept"), [("a-1", "a-1"), (7, "7"), (0, "0")])
def test_an_id_that_is_given_is_kept_as_text(given, kept):
    assert Edit(**GOOD, id=given).id == kept


def test_edits_can_be_compared_hashed_and_not_changed():
    edit = Edit(**GOOD, rephrasings=["How?"], unrelated=[["What?", [1]]], prompt_ids=[1])
    same = Edit(**GOOD, rephrasings=("How?",), unrelated=[Probe("What?", (1,))], prompt_ids=(1,))
    assert edit == same
    assert len({edit, same}) == 1
    with pytest.raises(AttributeError):
        edit.target = "Paris"


def test_columns_nobody_knows_are_left_aside():
    assert Edit.from_row({**GOOD, "source": "me", "unrelated": None}) == Edit(**GOOD)


def test_a_wrong_edit_of_a_turn_is_named_by_its_number():
    with pytest.raises(InputError, match=r"Edit 3 .*'target' is missing"):
        as_edits([Edit(**GOOD), GOOD, {"prompt": "The capital of Italy is"}])


@pytest.mark.parametrize("item", ["text", 7, None, ["prompt", "target"]])
def test_a_turn_of_something_else_is_refused_in_words_a_user_knows(item):
    with pytest.raises(InputError, match="Edit 1 ") as refusal:
        as_edits([item])
    assert "attribute" not in str(refusal.value)


def test_a_turn_may_mix_edits_and_dictionaries():
    assert as_edits(iter([GOOD, Edit(**GOOD)])) == [Edit(**GOOD), Edit(**GOOD)]


@settings(deadline=None)
@given(st.lists(st.integers()), st.integers(1, 7))
def test_turns_hold_every_item_in_order(items, size):
    turns = list(in_turns(iter(items), size))
    assert [item for turn in turns for item in turn] == items
    assert all(len(turn) == size for turn in turns[:-1])
    assert all(turns)


texts = st.text(max_size=6) | st.sampled_from(["Lyon", "The capital is", "\ud800"])
scalars = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | texts
keys = st.sampled_from([*COLUMNS, "answer", "source"])
json_like = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
rows = st.dictionaries(keys, json_like, max_size=8)
likely_rows = st.fixed_dictionaries(
    {"prompt": texts | st.lists(st.integers(0, 9)), "target": texts},
    optional=dict.fromkeys(["rephrasings", "unrelated", "reasoning", "id", "subject"], json_like),
)


@settings(deadline=None)
@given(rows | likely_rows)
def test_any_row_becomes_an_edit_or_is_refused(row):
    try:
        edit = Edit.from_row(row)
    except InputError:
        return
    assert len(list(edit.probes())) >= 1
    assert edit.id
    assert hash(edit) == hash(Edit.from_row(json.loads(json.dumps(row))))
