"""The property matrix: what every method promises, on every architecture."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

import ultraedit.editor
import ultraedit.weights
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
from ultraedit import methods
from ultraedit.editor import Editor
from ultraedit.sites import ARCHITECTURES
from ultraedit.tokens import Batch


@dataclass(frozen=True)
class Case:
    """A method and how to use it on a tiny model."""

    method: str
    settings: dict[str, Any]
    small_batches: dict[str, Any] = field(default_factory=dict)
    """Settings under which a turn passes through the model in several batches."""
    one_by_one: dict[str, Any] | None = None
    """Settings for one edit at a time, when the result promises not to depend on it."""


METHODS = [
    Case(
        "ultraedit",
        {"lr": 1e-3},
        small_batches={"micro_batch_edits": 2},
        one_by_one={"micro_batch_edits": 1},
    ),
]

every_method = pytest.mark.parametrize("case", METHODS, ids=lambda case: case.method)
every_architecture = pytest.mark.parametrize("architecture", CONFIGS)


class Interruption(Exception):
    """Raised by the tests in the middle of a turn."""


def make_editor(case: Case, architecture: str, *, dtype=torch.float32, **settings: Any) -> Editor:
    model = build_tiny(architecture, dtype)
    settings = {**case.settings, **settings}
    return Editor(model, method=case.method, sites=some_sites(architecture), **settings)


def compute(editor: Editor, edits: list[Any]) -> dict[str, torch.Tensor]:
    shift = editor.method.compute_shift(editor._turn(edits)).shift
    return {name: change.matrix for name, change in shift.items()}


def state_of(editor: Editor) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in editor.method.state_dict().items()}


def same_state(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(same_bits(left[key], right[key]) for key in left)


def plain_log_prob(model: Any, edits: list[Any]) -> float:
    """Ask for the answers with nothing but transformers, one edit at a time."""
    total = 0.0
    for edit in edits:
        ids = torch.tensor([edit.prompt_ids + edit.target_ids[:-1]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(edit.prompt_ids) - 1 :]
        total -= float(cross_entropy(logits.float(), torch.tensor(edit.target_ids)))
    return total / len(edits)


def test_every_method_is_in_the_matrix():
    assert {case.method for case in METHODS} == set(methods.METHODS)


def test_every_architecture_is_in_the_matrix():
    assert set(CONFIGS) == set(ARCHITECTURES)


@every_method
@every_architecture
def test_computing_a_shift_leaves_weights_and_state_as_they_were(case, architecture, turns):
    editor = make_editor(case, architecture)
    editor.apply(turns[0])
    weights, state = all_tensors(editor.model), state_of(editor)
    compute(editor, turns[1])
    assert changed(weights, editor.model) == set()
    assert same_state(state, state_of(editor))
    editor.method.commit()
    assert changed(weights, editor.model) == set()
    if state:
        assert not same_state(state, state_of(editor))


@every_method
@every_architecture
def test_an_edit_raises_the_probability_of_its_target(case, architecture, turns):
    editor = make_editor(case, architecture)
    for turn in turns:
        before = plain_log_prob(editor.model, turn)
        receipt = editor.apply(turn)
        after = plain_log_prob(editor.model, turn)
        assert after > before + 0.01
        assert receipt.log_prob_before == pytest.approx(before, abs=1e-4)
        assert receipt.log_prob == pytest.approx(after, abs=1e-4)


@pytest.mark.parametrize("answer_tokens", [1, 3])
@every_architecture
def test_a_first_and_only_edit_with_default_settings_takes(architecture, answer_tokens):
    editor = Editor(build_tiny(architecture))
    receipt = editor.apply(token_edits(1, answer_tokens=answer_tokens))
    assert receipt.log_prob > receipt.log_prob_before + 0.01


@every_method
@every_architecture
def test_only_the_sites_change(case, architecture, turns):
    editor = make_editor(case, architecture)
    before = all_tensors(editor.model)
    editor.apply(turns[0])
    assert changed(before, editor.model) == {f"{site.name}.weight" for site in editor.sites}


@every_method
@every_architecture
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_saved_model_is_bit_equal_in_plain_transformers(
    case, architecture, dtype, turns, saved, tmp_path
):
    from transformers import AutoModelForCausalLM

    editor = Editor.load(
        saved(architecture, dtype),
        method=case.method,
        sites=some_sites(architecture),
        **case.settings,
    )
    assert editor.model.dtype == dtype
    editor.apply(turns[0])
    editor.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(loaded) is type(editor.model)
    assert changed(all_tensors(editor.model), loaded) == set()
    ids = torch.tensor([turns[0][0].prompt_ids])
    with torch.no_grad():
        assert same_bits(loaded(input_ids=ids).logits, editor.model(input_ids=ids).logits)


@every_method
@every_architecture
def test_a_turn_leaves_no_hook_and_no_flag_behind(case, architecture, turns):
    editor = make_editor(case, architecture)
    _mix_flags(editor.model)
    before = traces(editor.model)
    editor.apply(turns[0])
    assert traces(editor.model) == before


@every_method
@every_architecture
def test_dropout_and_other_training_flags_do_not_change_the_shift(case, architecture, turns):
    plain, training = (make_editor(case, architecture) for _ in range(2))
    _mix_flags(training.model)
    expected, found = compute(plain, turns[0]), compute(training, turns[0])
    for name in expected:
        assert same_bits(found[name], expected[name])


@every_method
@every_architecture
@pytest.mark.parametrize("place", ["capture", "the second site", "measuring", "commit"])
def test_a_turn_that_fails_leaves_everything_as_it_was(
    case, architecture, place, turns, monkeypatch
):
    editor = make_editor(case, architecture, **case.small_batches)
    editor.apply(turns[0])
    _mix_flags(editor.model)
    weights, state, marks = all_tensors(editor.model), state_of(editor), traces(editor.model)
    counted = editor.tally.turns
    with monkeypatch.context() as patch:
        _interrupt(place, editor, patch)
        with pytest.raises(Interruption):
            editor.apply(turns[1])
    assert changed(weights, editor.model) == set()
    assert same_state(state, state_of(editor))
    assert traces(editor.model) == marks
    assert editor.tally.turns == counted


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_life_with_a_failed_turn_is_the_life_without_it(case, dtype, turns, monkeypatch):
    troubled, control = (make_editor(case, "llama", dtype=dtype) for _ in range(2))
    for editor in (troubled, control):
        editor.apply(turns[0])
    with monkeypatch.context() as patch:
        _interrupt("measuring", troubled, patch)
        with pytest.raises(Interruption):
            troubled.apply(turns[2])
    for editor in (troubled, control):
        editor.apply(turns[1])
    assert changed(all_tensors(control.model), troubled.model) == set()
    assert troubled.weights.total().fingerprint() == control.weights.total().fingerprint()


@every_method
@every_architecture
def test_going_on_from_saved_state_gives_the_same_shift(case, architecture, turns, tmp_path):
    first, second = (make_editor(case, architecture) for _ in range(2))
    for turn in turns[:2]:
        first.apply(turn)
    save_file({k: v.contiguous() for k, v in state_of(first).items()}, tmp_path / "state")
    second.model.load_state_dict(first.model.state_dict())
    second.method.load_state_dict(load_file(tmp_path / "state"))
    expected, found = compute(first, turns[2]), compute(second, turns[2])
    for name in expected:
        assert same_bits(found[name], expected[name])


@every_method
@every_architecture
def test_micro_batches_and_order_do_not_change_the_shift(case, architecture, turns):
    if case.one_by_one is None:
        pytest.skip(f"{case.method} does not promise this")
    whole = make_editor(case, architecture)
    single = make_editor(case, architecture, **case.one_by_one)
    shuffled = make_editor(case, architecture)
    for number, turn in enumerate(turns[:2]):
        mixed = random.Random(number).sample(turn, len(turn))
        expected = compute(whole, turn)
        one_at_a_time, another_order = compute(single, turn), compute(shuffled, mixed)
        for editor in (whole, single, shuffled):
            editor.method.commit()
        for name in expected:
            assert relative_error(one_at_a_time[name], expected[name]) <= 1e-4
            assert relative_error(another_order[name], expected[name]) <= 1e-4


@every_method
@every_architecture
def test_padding_does_not_matter(case, architecture, turns, monkeypatch):
    editor = make_editor(case, architecture)
    expected = compute(editor, turns[0])
    monkeypatch.setattr(Batch, "build", classmethod(_wider(Batch.build.__func__)))
    padded = compute(editor, turns[0])
    for name in expected:
        assert relative_error(padded[name], expected[name]) <= 1e-4


def _mix_flags(model: Any) -> None:
    """Set flags as a user in the middle of something else might have them."""
    model.train()
    next(model.children()).eval()
    for number, weight in enumerate(model.parameters()):
        weight.requires_grad_(number % 3 != 0)


def _interrupt(place: str, editor: Editor, patch: pytest.MonkeyPatch) -> None:
    """Make the next turn fail at one place."""
    if place == "capture":
        head = editor.model.get_output_embeddings()
        patch.setattr(head, "forward", _failing_at(2, head.forward))
    elif place == "the second site":
        patch.setattr(ultraedit.weights, "_add", _failing_at(2, ultraedit.weights._add))
    elif place == "measuring":
        ask, before = ultraedit.editor.answer, all_tensors(editor.model)

        def fail_once_edited(model: Any, *arguments: Any, **options: Any) -> Any:
            if changed(before, model):
                raise Interruption
            return ask(model, *arguments, **options)

        patch.setattr(ultraedit.editor, "answer", fail_once_edited)
    else:
        patch.setattr(editor.method, "commit", _failing_at(1, editor.method.commit))


def _failing_at(number: int, function: Any) -> Any:
    calls = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            raise Interruption
        return function(*arguments, **options)

    return call


def _wider(build: Any) -> Any:
    """Pad every batch by five more columns, and fill all padding with other ids than zero."""

    def padded(cls: type[Batch], examples: Any, numbers: Any) -> Batch:
        batch = build(cls, examples, numbers)
        rows, width = batch.ids.shape
        ids = torch.full((rows, width + 5), 77)
        mask = torch.zeros_like(ids)
        ids[:, :width] = torch.where(batch.mask.bool(), batch.ids, 77)
        mask[:, :width] = batch.mask
        positions = batch.positions // width * (width + 5) + batch.positions % width
        return cls(ids, mask, positions, batch.labels, batch.owners)

    return padded


def test_edits_of_the_matrix_differ_in_length():
    lengths = {len(edit.prompt_ids) for edit in token_edits(6, 1)}
    assert len(lengths) > 2


# UltraEdit, against a plain statement of its formulas in float64.

SITES = "model.layers.1.mlp.gate_proj, [2].mlp.up_proj, [2,3].mlp.down_proj"
EPSILON = 1.1920929e-07


def ultra_editor(*, dtype=torch.float64, **settings: Any) -> Editor:
    return Editor(build_tiny("llama", dtype), sites=SITES, **{"lr": 1e-3, **settings})


def plain_rows(model: Any, edits: list[Any], names: list[str]) -> dict[str, list[Any]]:
    """Take h and g of every answer token by ordinary autograd, one edit at a time."""
    model.requires_grad_(True)
    rows: dict[str, list[Any]] = {name: [] for name in names}
    for edit in edits:
        kept = {}

        def keep(module: Any, inputs: Any, output: torch.Tensor, kept: Any = kept) -> None:
            output.retain_grad()
            kept[module] = inputs[0], output

        handles = [model.get_submodule(name).register_forward_hook(keep) for name in names]
        ids = torch.tensor([edit.prompt_ids + edit.target_ids[:-1]])
        start = len(edit.prompt_ids) - 1
        logits = model(input_ids=ids, use_cache=False).logits[0, start:]
        cross_entropy(logits, torch.tensor(edit.target_ids), reduction="sum").backward()
        for handle in handles:
            handle.remove()
        for name in names:
            inputs, output = kept[model.get_submodule(name)]
            rows[name].append((inputs[0, start:].detach(), output.grad[0, start:]))
    model.zero_grad()
    model.requires_grad_(False)
    return rows


def stacked(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([h for h, _ in rows]), torch.cat([g for _, g in rows])


def stated_solution(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """S = (H^T H + I)^-1 H^T V, in full."""
    eye = torch.eye(h.shape[1], dtype=h.dtype)
    return torch.linalg.solve(h.T @ h + eye, h.T @ v)


class Statement:
    """The method in so many words: it keeps every row it ever saw."""

    def __init__(self, editor: Editor, **switches: Any) -> None:
        self.model = build_tiny("llama", torch.float64)
        self.names = [site.name for site in editor.sites]
        self.pool = switches.get("pool", "shape")
        self.freeze = switches.get("freeze_statistics", False)
        self.inner_product = switches.get("scaling") == "inner_product"
        self.normalised = switches.get("normalised", True)
        self.seen: dict[Any, list[torch.Tensor]] = {}
        self.frozen = False

    def turn(self, edits: list[Any], lr: float = 1e-3) -> dict[str, torch.Tensor]:
        rows = plain_rows(self.model, edits, self.names)
        for name in self.names if not (self.freeze and self.frozen) else ():
            self.seen.setdefault(self.group(name), []).append(torch.cat(stacked(rows[name]), 1))
        self.frozen = True
        changes = {}
        for name in self.names:
            h, g = stacked(rows[name])
            h_normal, g_normal = self.normal(name, h, g) if self.normalised else (h, g)
            scale = ((h if self.inner_product else h_normal) * h_normal).sum(1, keepdim=True)
            changes[name] = stated_solution(h, -lr * scale * g_normal).T
        for name, change in changes.items():
            self.model.get_submodule(name).weight.data += change
        return changes

    def group(self, name: str) -> Any:
        weight = self.model.get_submodule(name).weight
        return name if self.pool == "module" else tuple(weight.shape)

    def normal(self, name: str, h: torch.Tensor, g: torch.Tensor) -> Any:
        every = torch.cat(self.seen[self.group(name)])
        z = (torch.cat([h, g], 1) - every.mean(0)) / (every.std(0) + EPSILON)
        return z[:, : h.shape[1]], z[:, h.shape[1] :]


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"pool": "module"},
        {"freeze_statistics": True},
        {"scaling": "inner_product"},
        {"freeze_statistics": True, "pool": "module", "scaling": "inner_product"},
    ],
    ids=lambda switches: ",".join(switches) or "the method",
)
def test_ultraedit_is_what_its_formulas_say(switches, turns):
    editor = ultra_editor(**switches)
    statement = Statement(editor, **switches)
    for turn in turns:
        expected, found = statement.turn(turn), compute(editor, turn)
        for name in expected:
            assert relative_error(found[name], expected[name]) <= 1e-5
        editor.apply(turn)


def test_ultraedit_without_normalisation_uses_the_rows_as_they_are(turns):
    editor = ultra_editor(normalised_share=0.0)
    statement = Statement(editor, normalised=False)
    for turn in turns[:2]:
        expected, found = statement.turn(turn), compute(editor, turn)
        for name in expected:
            assert relative_error(found[name], expected[name]) <= 1e-5
        editor.apply(turn)


def test_half_normalised_means_that_half_of_the_sites_are(turns):
    normal = compute(ultra_editor(pool="module"), turns[0])
    raw = compute(ultra_editor(pool="module", normalised_share=0.0), turns[0])
    chosen = set()
    for seed in range(6):
        half = compute(ultra_editor(pool="module", normalised_share=0.5, seed=seed), turns[0])
        again = compute(ultra_editor(pool="module", normalised_share=0.5, seed=seed), turns[0])
        is_normal = {name for name in half if relative_error(half[name], normal[name]) < 1e-9}
        is_raw = {name for name in half if relative_error(half[name], raw[name]) < 1e-9}
        assert len(is_normal) == len(is_raw) == 2
        assert is_normal | is_raw == set(half)
        assert all(same_bits(half[name], again[name]) for name in half)
        chosen.add(frozenset(is_normal))
    assert len(chosen) > 1


def test_the_authors_statistics_are_what_their_code_does(turns):
    editor = ultra_editor(statistics="authors", pool="module", micro_batch_edits=3)
    names = [site.name for site in editor.sites]
    count = dict.fromkeys(names, 0)
    mean: dict[str, Any] = dict.fromkeys(names, 0.0)
    squares: dict[str, Any] = dict.fromkeys(names, 0.0)
    for turn in turns:
        ordered = sorted(turn, key=lambda edit: -len(edit.prompt_ids + edit.target_ids))
        chunks: dict[str, list[Any]] = {name: [] for name in names}
        for start in range(0, len(ordered), 3):
            batch = ordered[start : start + 3]
            n_tokens = sum(len(edit.target_ids) for edit in batch)
            for name, rows in plain_rows(editor.model, batch, names).items():
                h, g = stacked(rows)
                chunks[name].append((h, g / n_tokens))
                z = torch.cat([h, g / n_tokens], 1)
                gap, total = z.mean(0) - mean[name], count[name] + n_tokens
                squares[name] += z.var(0) * n_tokens + gap**2 * count[name] * n_tokens / total
                mean[name] = mean[name] + gap * n_tokens / total
                count[name] = total
        found = compute(editor, turn)
        for name in names:
            h, g = stacked(chunks[name])
            deviation = (squares[name] / (count[name] - 1)).sqrt()
            z = (torch.cat([h, g], 1) - mean[name]) / (deviation + EPSILON)
            h_normal, g_normal = z.split([h.shape[1], g.shape[1]], 1)
            v = -1e-3 * h_normal.square().sum(1, keepdim=True) * g_normal
            assert relative_error(found[name], stated_solution(h, v).T) <= 1e-5
        editor.apply(turn)


@pytest.mark.parametrize("micro_batch_edits", [1, 4, None])
def test_ultraedits_statistics_are_those_of_every_row_seen(micro_batch_edits, turns):
    editor = ultra_editor(pool="module", micro_batch_edits=micro_batch_edits)
    seen: dict[str, list[Any]] = {site.name: [] for site in editor.sites}
    for turn in turns:
        for name, rows in plain_rows(editor.model, turn, list(seen)).items():
            seen[name].append(torch.cat(stacked(rows), 1))
        editor.apply(turn)
    state = editor.method.state_dict()
    for name, parts in seen.items():
        rows = torch.cat(parts)
        count = int(state[f"{name}.count"])
        assert count == len(rows)
        assert relative_error(state[f"{name}.mean"], rows.mean(0)) < 1e-6
        deviation = (state[f"{name}.squares"] / (count - 1)).sqrt()
        assert relative_error(deviation, rows.std(0)) < 1e-6


def test_ultraedits_shift_is_linear_in_lr_and_zero_is_refused(turns):
    one, three = (compute(ultra_editor(lr=lr), turns[0]) for lr in (1e-3, 3e-3))
    for name in one:
        assert relative_error(three[name], 3 * one[name]) < 1e-12
    for lr in (0.0, -1e-3, float("nan"), float("inf"), True, "much"):
        with pytest.raises(ValueError, match="lr must be"):
            ultra_editor(lr=lr)


def test_frozen_statistics_make_ultraedit_blind_to_the_order_of_rows(turns):
    editor = ultra_editor(freeze_statistics=True)
    editor.apply(turns[0])
    state = state_of(editor)
    expected, found = compute(editor, turns[1]), compute(editor, turns[1][::-1])
    for name in expected:
        assert relative_error(found[name], expected[name]) < 1e-6
    editor.apply(turns[1])
    assert same_state(state, state_of(editor))


def test_ultraedits_shift_has_no_more_rank_than_rows():
    edits = token_edits(2, 5, answer_tokens=2)
    for change in compute(ultra_editor(), edits).values():
        assert int(torch.linalg.matrix_rank(change)) <= 4


def test_every_turn_after_the_first_ones_still_helps_its_own_edits():
    editor = ultra_editor(dtype=torch.float32)
    receipts = [editor.apply(token_edits(6, seed)) for seed in range(10, 18)]
    assert all(receipt.log_prob > receipt.log_prob_before for receipt in receipts)


def test_pooling_by_shape_and_by_module_agree_where_every_shape_occurs_once(turns):
    sites = "[1].mlp.gate_proj, [2].mlp.down_proj"
    editors = [
        Editor(build_tiny("llama"), sites=sites, lr=1e-3, pool=pool) for pool in ("shape", "module")
    ]
    for turn in turns:
        by_shape, by_module = (compute(editor, turn) for editor in editors)
        for name in by_shape:
            assert same_bits(by_shape[name], by_module[name])
        for editor in editors:
            editor.apply(turn)


def test_pooling_matters_where_a_shape_occurs_twice(turns):
    by_shape, by_module = (compute(ultra_editor(pool=p), turns[0]) for p in ("shape", "module"))
    name = "model.layers.3.mlp.down_proj"
    assert relative_error(by_shape[name], by_module[name]) > 1e-3


@pytest.mark.parametrize("pool", ["shape", "module"])
def test_answers_of_one_token_work_one_at_a_time_from_the_first_turn_on(pool):
    editor = ultra_editor(dtype=torch.float32, pool=pool, micro_batch_edits=1)
    for edit in token_edits(5, 7, answer_tokens=1):
        receipt = editor.apply([edit])
        assert all(change.norm > 0 for change in receipt.sites.values())
        assert receipt.log_prob > receipt.log_prob_before
        assert all(tensor.isfinite().all() for tensor in editor.method.state_dict().values())


@pytest.mark.parametrize("pool", ["shape", "module"])
def test_the_authors_statistics_refuse_a_micro_batch_of_one_row(pool, turns):
    editor = ultra_editor(statistics="authors", pool=pool, micro_batch_edits=1)
    before = all_tensors(editor.model)
    with pytest.raises(RuntimeError, match="one answer token"):
        editor.apply(token_edits(2, 7, answer_tokens=1))
    assert changed(before, editor.model) == set()
    assert state_of(editor) == {}


def test_state_for_other_sites_is_refused(turns):
    editor = ultra_editor(pool="module")
    editor.apply(turns[0])
    with pytest.raises(ValueError, match="same sites and pool"):
        ultra_editor(pool="shape").method.load_state_dict(editor.method.state_dict())


def test_state_with_parts_missing_is_refused(turns):
    editor = ultra_editor()
    editor.apply(turns[0])
    state = {key: part for key, part in state_of(editor).items() if not key.endswith("mean")}
    with pytest.raises(ValueError, match="does not fit"):
        ultra_editor().method.load_state_dict(state)


def test_impossible_settings_are_refused_by_name():
    for settings in (
        {"normalised_share": 1.5},
        {"micro_batch_tokens": 0},
        {"micro_batch_edits": 0},
        {"statistics": "rough"},
        {"pool": "all"},
        {"scaling": "none"},
        {"freeze_statistics": 1},
        {"seed": 0.5},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            ultra_editor(**settings)
