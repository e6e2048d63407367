"""Features of the sites: right, at the answers only, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tiny_models import CONFIGS, build_tiny, relative_error, some_sites, token_edits, traces
from ultraedit.capture import Capture, answer, frozen
from ultraedit.sites import resolve_sites
from ultraedit.tokens import Batch, Example, build_batches


def examples(n: int = 5, seed: int = 0) -> list[Example]:
    return [Example(edit.prompt_ids, edit.target_ids) for edit in token_edits(n, seed)]


def all_answers(n: int = 4) -> list[Example]:
    """Make examples whose every position predicts an answer: prompts of one token."""
    return [Example(e.prompt_ids[:1], e.prompt_ids[1:] + e.target_ids) for e in token_edits(n, 3)]


def plain_loss(model: Any, example: Example) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([example.inputs])).logits[0, len(example.prompt) - 1 :]
    return cross_entropy(logits, torch.tensor(example.answer), reduction="sum")


def capture_all(model: Any, wanted: str, chosen: list[Example], reduction: str = "sum"):
    sites = resolve_sites(model, wanted)
    with Capture(model, sites) as capture:
        return sites, *capture(Batch.build(chosen, range(len(chosen))), reduction)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_rows_over_all_positions_add_up_to_the_weight_gradient(architecture):
    model = build_tiny(architecture)
    chosen = all_answers()
    sites, features, _ = capture_all(model, some_sites(architecture), chosen)
    sum(plain_loss(model, example) for example in chosen).backward()
    for site in sites:
        rows = features[site.name]
        grad = torch.einsum("mo,mi->oi", rows.grads, rows.inputs)
        expected = site.weight.grad.T if site.transposed else site.weight.grad
        assert relative_error(grad, expected) < 1e-4


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_rows_are_those_of_the_answer_positions_in_order(architecture):
    model = build_tiny(architecture)
    chosen = examples()
    sites, features, answers = capture_all(model, some_sites(architecture), chosen)
    assert answers.owners.tolist() == [n for n, e in enumerate(chosen) for _ in e.answer]
    kept: dict[Any, torch.Tensor] = {}
    for site in sites:
        site.module.register_forward_hook(
            lambda module, inputs, output: kept.__setitem__(module, inputs[0][0])
        )
    start = 0
    for example in chosen:
        with torch.no_grad():
            plain_loss(model, example)
        stop = start + len(example.answer)
        for site in sites:
            expected = kept[site.module][len(example.prompt) - 1 :]
            assert relative_error(features[site.name].inputs[start:stop], expected) < 1e-4
        start = stop


def test_the_mean_of_the_loss_divides_by_the_answer_tokens_of_the_batch(llama):
    chosen = examples()
    n_tokens = sum(len(example.answer) for example in chosen)
    _, summed, _ = capture_all(llama, "[1].mlp.up_proj", chosen)
    _, mean, _ = capture_all(llama, "[1].mlp.up_proj", chosen, "mean")
    for name in summed:
        assert relative_error(mean[name].grads * n_tokens, summed[name].grads) < 1e-5


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_head_sees_only_the_answer_positions(architecture):
    model = build_tiny(architecture)
    seen = []
    model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(tuple(inputs[0].shape))
    )
    chosen = examples()
    n_tokens = sum(len(example.answer) for example in chosen)
    capture_all(model, some_sites(architecture), chosen)
    answer(model, chosen, max_tokens=10**6)
    assert seen == [(n_tokens, 32)] * 2


def test_the_graph_starts_at_the_lowest_site(llama):
    needs: dict[str, tuple[bool, bool]] = {}
    for name, module in llama.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda _, inputs, output, name=name: needs.__setitem__(
                    name, (inputs[0].requires_grad, output.requires_grad)
                )
            )
    _, features, _ = capture_all(llama, "[2].mlp.up_proj, [3].mlp.down_proj", examples())
    below = [name for name in needs if any(f"layers.{n}." in name for n in (0, 1))]
    assert below
    assert all(needs[name] == (False, False) for name in below)
    assert needs["model.layers.2.mlp.gate_proj"] == (False, False)
    assert needs["model.layers.2.mlp.up_proj"][0] is False
    assert needs["model.layers.2.mlp.down_proj"] == (True, True)
    assert needs["model.layers.3.mlp.down_proj"] == (True, True)
    assert not any(part.requires_grad for rows in features.values() for part in (rows.inputs,))


def test_no_weight_gradient_is_ever_made_and_no_mark_is_left(llama):
    before = traces(llama)
    capture_all(llama, "*.mlp.*", examples())
    assert traces(llama) == before
    assert all(weight.grad is None for weight in llama.parameters())


def test_marks_are_removed_when_the_backward_pass_fails(llama, monkeypatch):
    before = traces(llama)

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        capture_all(llama, "*.mlp.*", examples())
    assert traces(llama) == before


def test_features_of_a_captured_batch_survive_the_next_one(llama):
    sites = resolve_sites(llama, "[1].mlp.up_proj")
    first, second = (Batch.build(examples(3, seed), range(3)) for seed in (1, 2))
    with Capture(llama, sites) as capture:
        kept, _ = capture(first, "sum")
        copied = kept[sites[0].name].inputs.clone(), kept[sites[0].name].grads.clone()
        capture(second, "sum")
    assert torch.equal(kept[sites[0].name].inputs, copied[0])
    assert torch.equal(kept[sites[0].name].grads, copied[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_features_come_in_float32_and_near_the_true_ones(dtype):
    chosen = examples()
    _, exact, _ = capture_all(build_tiny("llama"), "[1].mlp.up_proj", chosen)
    _, rough, _ = capture_all(build_tiny("llama", dtype), "[1].mlp.up_proj", chosen)
    for name, rows in rough.items():
        assert rows.inputs.dtype == rows.grads.dtype == torch.float32
        assert relative_error(rows.inputs, exact[name].inputs) < 0.05
        assert relative_error(rows.grads, exact[name].grads) < 0.2


def test_answers_do_not_depend_on_batches_and_keep_the_order_of_examples(llama):
    chosen = examples(7)
    whole = answer(llama, chosen, max_tokens=10**6)
    for max_tokens in (1, 20):
        parts = answer(llama, chosen, max_tokens=max_tokens)
        assert torch.equal(parts.predicted, whole.predicted)
        assert torch.equal(parts.owners, whole.owners)
        assert torch.equal(parts.labels, whole.labels)
        torch.testing.assert_close(parts.log_probs, whole.log_probs)
    means = whole.mean_by_example(whole.log_probs)
    for number, example in enumerate(chosen):
        with torch.no_grad():
            expected = -float(plain_loss(llama, example)) / len(example.answer)
        assert float(means[number]) == pytest.approx(expected, abs=1e-4)


def test_batches_are_cut_longest_first_within_their_limits():
    chosen = examples(9)
    batches = list(build_batches(chosen, max_tokens=30, max_examples=3))
    assert sorted(n for batch in batches for n in set(batch.owners.tolist())) == list(range(9))
    assert all(batch.ids.numel() <= 30 and len(batch.ids) <= 3 for batch in batches)
    widths = [batch.ids.shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_frozen_puts_every_flag_back_after_an_error(llama):
    llama.train()
    llama.model.layers[1].eval()
    llama.lm_head.weight.requires_grad_(False)
    before = traces(llama)

    def fail_while_frozen() -> None:
        with frozen(llama):
            assert not any(module.training for module in llama.modules())
            assert not any(weight.requires_grad for weight in llama.parameters())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_frozen()
    assert traces(llama) == before
