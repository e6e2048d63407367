"""One turn and the stream of turns: receipts, refusals, all or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ultraedit.capture
import ultraedit.editor
from tiny_models import (
    CONFIGS,
    all_tensors,
    build_tiny,
    changed,
    relative_error,
    same_bits,
    some_sites,
    token_edits,
    traces,
)
from ultraedit.editor import Editor
from ultraedit.edits import Edit
from ultraedit.errors import InputError, NothingMovedError, TurnError
from ultraedit.methods.base import Proposal
from ultraedit.shift import Change, Shift


@pytest.fixture
def editor(llama) -> Editor:
    return Editor(llama, sites=some_sites("llama"), lr=1e-3)


def untouched(editor: Editor, before: dict[str, torch.Tensor]) -> bool:
    return not changed(before, editor.model) and editor.method.state_dict() == {}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_model_is_edited_with_nothing_but_its_defaults(architecture):
    editor = Editor(build_tiny(architecture))
    receipt = editor.apply(token_edits(4))
    assert receipt.moved
    assert list(receipt.sites) == [site.name for site in editor.sites]


def test_a_receipt_says_what_was_done(editor, turns):
    before = {site.name: site.matrix.clone() for site in editor.sites}
    receipt = editor.apply(turns[0])
    assert (receipt.turns, receipt.edits) == (1, 6)
    assert receipt.answer_tokens == sum(len(edit.target_ids) for edit in turns[0])
    assert receipt.seconds > 0
    assert receipt.log_prob > receipt.log_prob_before
    assert 0 <= receipt.efficacy_before <= receipt.efficacy <= 100
    assert receipt.moved is True
    assert receipt.interrupted is False
    for site in editor.sites:
        change = float((site.matrix - before[site.name]).norm())
        assert receipt.sites[site.name].norm == pytest.approx(change, rel=1e-4)
        share = change / float(before[site.name].norm())
        assert receipt.sites[site.name].relative == pytest.approx(share, rel=1e-4)
    json.dumps(receipt.to_dict(), allow_nan=False)


def test_an_unmeasured_turn_makes_the_same_change_and_claims_nothing(turns):
    measured, blind = (Editor(build_tiny("llama"), lr=1e-3) for _ in range(2))
    measured.apply(turns[0])
    receipt = blind.apply(turns[0], measure=False)
    assert changed(all_tensors(measured.model), blind.model) == set()
    assert receipt.moved is None
    assert receipt.efficacy is None


def test_edits_may_be_plain_dictionaries(turns):
    one, other = (Editor(build_tiny("llama"), lr=1e-3) for _ in range(2))
    one.apply(turns[0])
    other.apply({"prompt_ids": e.prompt_ids, "target_ids": e.target_ids} for e in turns[0])
    assert changed(all_tensors(one.model), other.model) == set()


def test_a_run_is_its_turns_one_after_another(turns):
    edits = [edit for turn in turns for edit in turn]
    by_hand, run = (Editor(build_tiny("llama"), lr=1e-3) for _ in range(2))
    receipts = [by_hand.apply(edits[start : start + 4]) for start in range(0, 18, 4)]
    seen: list[Any] = []
    total = run.run(iter(edits), turn_size=4, on_turn=seen.append)
    assert changed(all_tensors(by_hand.model), run.model) == set()
    assert [receipt.edits for receipt in seen] == [4, 4, 4, 4, 2]
    assert (total.turns, total.edits) == (5, 18)
    assert total.answer_tokens == sum(len(edit.target_ids) for edit in edits)
    mean = sum(receipt.efficacy * receipt.edits for receipt in receipts) / 18
    assert total.efficacy == pytest.approx(mean)
    assert total.largest_move == max(receipt.largest_move for receipt in receipts)
    norms = run.weights.total().norms()
    assert {name: change.norm for name, change in total.sites.items()} == norms


def test_a_run_stops_between_turns_when_asked(editor, turns):
    edits = [edit for turn in turns for edit in turn]
    seen: list[Any] = []
    receipt = editor.run(edits, turn_size=6, on_turn=seen.append, should_stop=lambda: len(seen) > 1)
    assert receipt.interrupted
    assert (receipt.turns, receipt.edits) == (2, 12)


def test_a_run_stopped_before_its_first_turn_changes_nothing(editor, turns):
    before = all_tensors(editor.model)
    receipt = editor.run(turns[0], should_stop=lambda: True)
    assert receipt.interrupted
    assert receipt.turns == 0
    assert untouched(editor, before)


def test_a_run_takes_only_the_edits_of_its_turns_from_the_stream(editor):
    taken = []

    def stream():
        for edit in token_edits(12):
            taken.append(edit)
            yield edit

    editor.run(stream(), turn_size=3, should_stop=lambda: len(taken) > 3)
    assert len(taken) <= 6


def test_nothing_to_do_is_refused(editor):
    with pytest.raises(InputError, match="at least one edit"):
        editor.apply([])
    with pytest.raises(InputError, match="no edits to apply"):
        editor.run([])
    for turn_size in (0, -3, 2.5, "5"):
        with pytest.raises(InputError, match=f"turn_size must be a whole number.*{turn_size}"):
            editor.run(token_edits(2), turn_size=turn_size)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt_ids": [1, 2]}, "'target' is missing"),
        ({"prompt_ids": [], "target_ids": [3]}, "'prompt_ids' is empty"),
        ({"prompt_ids": [1], "target_ids": [-3]}, "-3"),
        ({"prompt_ids": [1], "target_ids": "Paris"}, "list of token ids"),
        (7, "7"),
        (None, "None"),
    ],
)
def test_a_bad_row_is_named_by_its_place(editor, row, reason):
    before = all_tensors(editor.model)
    with pytest.raises(InputError, match=rf"Edit 3 of the turn.*{reason}"):
        editor.apply([*token_edits(2), row])
    assert untouched(editor, before)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit(prompt="text", target="Lyon", id="bad"), "no tokenizer"),
        (Edit(prompt_ids=(1,), target_ids=(199,), id="bad"), "token id 199 is outside"),
        (Edit(prompt_ids=(1,) * 60, target_ids=(5,) * 6, id="bad"), "context of 64"),
    ],
)
def test_an_edit_that_does_not_fit_the_model_is_named_by_its_id(editor, edit, reason):
    before = all_tensors(editor.model)
    with pytest.raises(InputError, match=rf"'bad' cannot be used: .*{reason}"):
        editor.apply([*token_edits(2), edit])
    assert untouched(editor, before)


def test_an_edit_may_fill_the_whole_context(editor):
    # The last answer token is predicted but never read, so 65 tokens fill a context of 64.
    edit = Edit(prompt_ids=(7,) * 60, target_ids=(5, 6, 7, 8, 9))
    assert editor.apply([edit, *token_edits(2)]).moved


def test_edits_that_would_do_nothing_are_refused(llama):
    with torch.no_grad():
        llama.model.norm.weight.zero_()  # nothing below the last norm reaches the answer
    editor = Editor(llama, sites="[1].mlp.up_proj", lr=1e-3)
    before = all_tensors(llama)
    with pytest.raises(TurnError, match="The shift is zero"):
        editor.apply(token_edits(3))
    assert untouched(editor, before)


def test_the_same_edit_twice_in_a_first_turn_is_still_an_edit(llama):
    editor = Editor(llama, sites="[1].mlp.up_proj", lr=1e-2)
    same = [Edit(prompt_ids=(5, 6), target_ids=(9,), id=str(n)) for n in range(2)]
    receipt = editor.apply(same)
    assert receipt.log_prob > receipt.log_prob_before


def test_a_run_in_which_nothing_moved_says_so(llama):
    editor = Editor(llama, lr=1e-12)
    with pytest.raises(NothingMovedError, match=r"After 4 edits no edited prompt has.*now 1e-12"):
        editor.run(token_edits(4))


def test_a_shift_that_is_not_finite_is_refused(editor, turns, monkeypatch):
    before = all_tensors(editor.model)
    site = editor.sites[0]
    broken = Change(torch.full((site.d_out, site.d_in), torch.inf))
    proposal = Proposal(Shift({site.name: broken}))
    monkeypatch.setattr(editor.method, "compute_shift", lambda turn: proposal)
    with pytest.raises(TurnError, match=rf"shift of {site.name} is not finite"):
        editor.apply(turns[0])
    assert untouched(editor, before)


def test_answers_that_break_take_the_turn_back(editor, turns, monkeypatch):
    before = all_tensors(editor.model)
    ask = ultraedit.editor.answer

    def broken(*arguments: Any, **options: Any) -> Any:
        answers = ask(*arguments, **options)
        answers.log_probs[0] = torch.nan
        return answers

    monkeypatch.setattr(ultraedit.editor, "answer", broken)
    with pytest.raises(TurnError, match="no longer finite; the turn was taken back"):
        editor.apply(turns[0])
    assert untouched(editor, before)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["accelerator", "python", "cpu"],
)
@pytest.mark.parametrize("place", ["capture", "measuring"])
def test_running_out_of_memory_takes_the_turn_back_and_says_what_to_lower(
    editor, turns, monkeypatch, error, place
):
    before, marks = all_tensors(editor.model), traces(editor.model)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    module = ultraedit.capture if place == "capture" else ultraedit.editor
    monkeypatch.setattr(module, "_answers" if place == "capture" else "answer", fail)
    with pytest.raises(TurnError, match=r"Memory ran out.*micro_batch_tokens \(now 4096\)"):
        editor.apply(turns[0])
    assert untouched(editor, before)
    assert traces(editor.model) == marks
    monkeypatch.undo()
    assert editor.apply(turns[0]).moved


def test_other_errors_are_not_taken_for_a_lack_of_memory(editor, turns, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(ultraedit.capture, "_answers", fail)
    with pytest.raises(RuntimeError, match="something else") as caught:
        editor.apply(turns[0])
    assert not isinstance(caught.value, TurnError)


def test_a_broken_weight_in_the_model_names_the_edit_and_the_site(llama):
    with torch.no_grad():
        llama.model.embed_tokens.weight[77] = torch.nan
    editor = Editor(llama, sites=some_sites("llama"), lr=1e-3)
    before = all_tensors(llama)
    good = Edit(prompt_ids=(5, 6), target_ids=(9,), id="good")
    bad = Edit(prompt_ids=(5, 77), target_ids=(9,), id="bad")
    with pytest.raises(TurnError, match=r"model\.layers\.1\.mlp\.\w+ is not finite for edit 'bad'"):
        editor.apply([good, bad])
    assert untouched(editor, before)


def test_a_site_that_starts_at_zero_can_be_edited(llama):
    with torch.no_grad():
        llama.model.layers[1].mlp.down_proj.weight.zero_()
    editor = Editor(llama, sites="[1].mlp.down_proj", lr=1e-3)
    receipt = editor.apply(token_edits(4))
    assert receipt.sites["model.layers.1.mlp.down_proj"].relative == 0.0
    assert receipt.moved


def test_unknown_methods_and_settings_are_refused_with_the_nearest_name(llama):
    with pytest.raises(InputError, match="Did you mean 'ultraedit'"):
        Editor(llama, method="ultraedt")
    with pytest.raises(InputError, match="Did you mean 'micro_batch_edits'"):
        Editor(llama, micro_batch_edit=3)
    with pytest.raises(InputError, match="accumulate must be"):
        Editor(llama, accumulate="half")


def test_what_is_saved_says_where_it_comes_from(saved, turns, tmp_path):
    editor = Editor.load(saved("llama", torch.bfloat16), sites=some_sites("llama"), lr=1e-3)
    base = editor.weights.fingerprint()
    for turn in turns:
        editor.apply(turn)
    editor.save(tmp_path / "out", record={"data": "abc"})
    own = tmp_path / "out" / "ultraedit"
    receipt = json.loads((own / "receipt.json").read_text(encoding="utf-8"))
    done, origin = receipt["receipt"], receipt["origin"]
    assert (done["turns"], done["edits"], receipt["data"]) == (3, 18, "abc")
    assert origin["base_fingerprint"] == base
    assert origin["fingerprint"] == editor.weights.fingerprint() != base
    assert origin["versions"]["torch"]
    written = {
        str(file.relative_to(own.parent)) for file in own.parent.rglob("*") if file.is_file()
    }
    assert set(receipt["files"]) == written
    settings = json.loads((own / "settings.json").read_text(encoding="utf-8"))
    assert settings["method"] == "ultraedit"
    assert settings["lr"] == 1e-3
    assert settings["sites"] == [site.name for site in editor.sites]
    shift = Shift.load(own / "shift.safetensors")
    for name, change in editor.weights.total().items():
        assert same_bits(shift[name].matrix, change.matrix)
    state = load_file(own / "state.safetensors")
    assert all(same_bits(state[key], part) for key, part in editor.method.state_dict().items())


def test_a_saved_shift_and_state_are_enough_to_go_on(saved, turns, tmp_path):
    first = Editor.load(saved("gpt2"), sites=some_sites("gpt2"), lr=1e-3)
    for turn in turns[:2]:
        first.apply(turn)
    first.save(tmp_path / "out")
    settings = json.loads((tmp_path / "out/ultraedit/settings.json").read_text(encoding="utf-8"))
    second = Editor.load(tmp_path / "out", **settings)
    second.method.load_state_dict(load_file(tmp_path / "out/ultraedit/state.safetensors"))
    for editor in (first, second):
        editor.apply(turns[2])
    assert changed(all_tensors(first.model), second.model) == set()


def test_saving_over_something_else_fails_and_leaves_it(editor, tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError("disk is full")

    editor.apply(token_edits(3))
    monkeypatch.setattr(ultraedit.editor, "check_saved", fail)
    with pytest.raises(OSError, match="disk is full"):
        editor.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_half_precision_keeps_the_change_in_float32(turns):
    exact, half = (
        Editor(build_tiny("llama", dtype), sites=some_sites("llama"), lr=1e-4)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for editor in (exact, half):
        for turn in turns:
            editor.apply(turn)
    for name, change in half.weights.total().items():
        assert change.matrix.dtype == torch.float32
        assert relative_error(change.matrix, exact.weights.total()[name].matrix) < 0.2


def test_saving_never_replaces_what_we_did_not_write(editor, turns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file.txt").touch()
    editor.apply(turns[0])
    for name in ("", ".", "..", "mine", "file.txt"):
        with pytest.raises(InputError):
            editor.save(name)
        with pytest.raises(InputError):
            editor.save(name, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()
    editor.save("out")
    editor.save("out", overwrite=True)


def test_files_are_copied_from_where_the_model_was_loaded(saved, turns, tmp_path, monkeypatch):
    source = saved("llama")
    (source / "notes.json").write_text("{}")
    monkeypatch.chdir(source)
    editor = Editor.load(".", sites=some_sites("llama"), lr=1e-3)
    editor.apply(turns[0])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "password.txt").touch()
    editor.save(tmp_path / "out")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert "notes.json" in names
    assert "password.txt" not in names


def test_weights_changed_by_something_else_are_noticed(turns):
    model = build_tiny("llama", torch.bfloat16)
    first, second = (Editor(model, sites=some_sites("llama"), lr=1e-2) for _ in range(2))
    first.apply(turns[0])
    with pytest.raises(InputError, match="changed by something else"):
        second.apply(turns[1])
    first.apply(turns[1])


def test_a_model_made_ready_for_training_is_edited_the_same(turns):
    changes = []
    for prepare in (
        lambda model: None,
        lambda model: model.gradient_checkpointing_enable(),
        lambda model: model.enable_input_require_grads(),
        lambda model: model.train(),
    ):
        model = build_tiny("llama")
        prepare(model)
        editor = Editor(model, sites=some_sites("llama"), lr=1e-3)
        editor.apply(turns[0])
        changes.append(editor.weights.fingerprint())
    assert len(set(changes)) == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_editing_works_where_gradients_are_off(mode, turns):
    model = build_tiny("llama", torch.bfloat16)
    with mode():
        editor = Editor(model, sites=some_sites("llama"), lr=1e-2)
        editor.apply(turns[0])
    editor.apply(turns[1])
    plain = Editor(build_tiny("llama", torch.bfloat16), sites=some_sites("llama"), lr=1e-2)
    for turn in turns[:2]:
        plain.apply(turn)
    assert editor.weights.fingerprint() == plain.weights.fingerprint()
    with mode():
        assert editor.evaluate(turns[0]).to_dict() == plain.evaluate(turns[0]).to_dict()


def test_a_stream_is_no_single_edit(editor):
    for wrong in (token_edits(1)[0], {"prompt": "a", "target": "b"}, "text", None):
        with pytest.raises(InputError, match="list"):
            editor.run(wrong)
        with pytest.raises(InputError, match=r"list|found"):
            editor.apply(wrong if wrong is not None else [None])
