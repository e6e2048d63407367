"""The only writer of parameters: it loses nothing, and goes back exactly."""

from __future__ import annotations

import pytest
import torch

from tiny_models import all_tensors, build_tiny, changed, relative_error, same_bits, some_sites
from ultraedit.errors import TurnError
from ultraedit.shift import Change, Shift
from ultraedit.sites import resolve_sites
from ultraedit.weights import Weights, lend

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def sites_of(architecture: str, dtype=torch.float32):
    model = build_tiny(architecture, dtype)
    return model, resolve_sites(model, some_sites(architecture))


def some_shift(sites, seed: int = 0, scale: float = 1e-3, dtype=torch.float32) -> Shift:
    generator = torch.Generator().manual_seed(seed)
    changes = {}
    for site in sites:
        left = scale * torch.randn(site.d_out, 2, generator=generator)
        right = torch.randn(2, site.d_in, generator=generator)
        changes[site.name] = Change(left.to(dtype), right.to(dtype))
    return Shift(changes)


def apply_safely(weights: Weights, shift: Shift) -> None:
    with weights.all_or_nothing():
        weights.apply(shift)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_applying_adds_the_shift_to_the_matrix(architecture, dtype):
    _, sites = sites_of(architecture, dtype)
    before = {site.name: site.matrix.clone() for site in sites}
    shift = some_shift(sites)
    Weights(sites).apply(shift)
    for site in sites:
        wide = torch.promote_types(dtype, torch.float32)
        expected = (before[site.name].to(wide) + shift[site.name].matrix).to(dtype)
        torch.testing.assert_close(site.matrix, expected)


def test_a_dense_change_and_its_factors_do_the_same():
    (_, some), (_, others) = (sites_of("gpt2") for _ in range(2))
    shift = some_shift(some)
    Weights(some).apply(shift)
    Weights(others).apply(Shift({name: Change(change.matrix) for name, change in shift.items()}))
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix)


def test_float32_accumulation_keeps_what_native_loses_over_200_turns():
    lost = {}
    for accumulate in ("float32", "native"):
        _, sites = sites_of("llama", torch.bfloat16)
        base = {site.name: site.matrix.double() for site in sites}
        weights = Weights(sites, accumulate=accumulate)
        wanted = {site.name: torch.zeros_like(site.matrix, dtype=torch.float64) for site in sites}
        for seed in range(200):
            shift = some_shift(sites, seed, scale=1e-4)
            weights.apply(shift)
            for name, change in shift.items():
                wanted[name] += change.left.double() @ change.right.double()
        total = weights.total()
        lost[accumulate] = max(relative_error(total[name].matrix, wanted[name]) for name in wanted)
        if accumulate == "float32":
            for site in sites:
                rounded = (base[site.name] + wanted[site.name]).to(torch.bfloat16)
                assert (site.matrix == rounded).float().mean() > 0.99
    assert lost["float32"] < 1e-3
    assert lost["native"] > 0.3


def test_native_accumulation_rounds_each_turn_as_the_published_code_does():
    _, sites = sites_of("llama", torch.bfloat16)
    before = {site.name: site.matrix.clone() for site in sites}
    weights = Weights(sites, accumulate="native")
    shift = some_shift(sites)
    weights.apply(shift)
    for site in sites:
        plain = before[site.name] + shift[site.name].matrix.to(torch.bfloat16)
        assert same_bits(site.matrix, plain)


def test_an_unknown_way_to_accumulate_is_refused(llama):
    with pytest.raises(ValueError, match="'float32' or 'native', got 'double'"):
        Weights([], accumulate="double")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_restoring_is_exact(architecture, dtype):
    model, sites = sites_of(architecture, dtype)
    weights = Weights(sites)
    weights.apply(some_shift(sites, 1))
    before, snapshot = all_tensors(model), weights.snapshot()
    fingerprint, total = weights.fingerprint(), weights.total().fingerprint()
    weights.apply(some_shift(sites, 2))
    assert weights.fingerprint() != fingerprint
    weights.restore(snapshot)
    assert changed(before, model) == set()
    assert weights.fingerprint() == fingerprint
    assert weights.total().fingerprint() == total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_all_or_nothing_puts_everything_back_whatever_was_raised(dtype, error):
    model, sites = sites_of("llama", dtype)
    weights = Weights(sites)
    before, total = all_tensors(model), weights.total().fingerprint()

    def fail_after_applying() -> None:
        with weights.all_or_nothing():
            weights.apply(some_shift(sites))
            raise error

    with pytest.raises(error):
        fail_after_applying()
    assert changed(before, model) == set()
    assert weights.total().fingerprint() == total
    with weights.all_or_nothing():
        weights.apply(some_shift(sites))
    assert changed(before, model) == {f"{site.name}.weight" for site in sites}


def test_a_weight_that_would_overflow_is_refused_and_put_back():
    model, sites = sites_of("llama", torch.float16)
    weights = Weights(sites)
    before, total = all_tensors(model), weights.total().fingerprint()
    with pytest.raises(TurnError, match=r"no longer be finite in torch\.float16"):
        apply_safely(weights, some_shift(sites, scale=1e5))
    assert changed(before, model) == set()
    assert weights.total().fingerprint() == total


def test_a_shift_that_is_not_finite_is_refused_and_put_back():
    model, sites = sites_of("llama")
    weights = Weights(sites)
    before = all_tensors(model)
    with pytest.raises(TurnError, match="no longer be finite"):
        apply_safely(weights, some_shift(sites, scale=float("nan")))
    assert changed(before, model) == set()


def test_a_shift_for_a_site_that_is_not_there_is_refused_by_name(llama):
    weights = Weights(resolve_sites(llama, "[1].mlp.up_proj"))
    with pytest.raises(ValueError, match=r"model\.layers\.9"):
        weights.apply(Shift({"model.layers.9.mlp.up_proj": Change(torch.ones(48, 32))}))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_lent_weights_come_back_as_they_were(architecture):
    model, sites = sites_of(architecture, torch.bfloat16)
    before = all_tensors(model)

    def step_and_fail() -> None:
        with lend(sites), torch.no_grad():
            for site in sites:
                site.weight.mul_(3)
            assert changed(before, model)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        step_and_fail()
    assert changed(before, model) == set()


def test_the_total_is_the_sum_of_all_turns_in_float32():
    _, sites = sites_of("gpt2", torch.bfloat16)
    weights = Weights(sites)
    shifts = [some_shift(sites, seed) for seed in range(3)]
    for shift in shifts:
        weights.apply(shift)
    total = weights.total()
    for site in sites:
        wanted = sum(shift[site.name].matrix for shift in shifts)
        assert total[site.name].matrix.dtype == torch.float32
        assert relative_error(total[site.name].matrix, wanted) < 1e-4


def test_base_norms_and_the_base_fingerprint_never_change():
    _, sites = sites_of("llama")
    weights = Weights(sites)
    norms, base = dict(weights.base_norms), weights.fingerprint(base=True)
    assert base == weights.fingerprint()
    for site in sites:
        assert norms[site.name] == pytest.approx(float(site.matrix.norm()), rel=1e-5)
    weights.apply(some_shift(sites))
    assert weights.base_norms == norms
    assert weights.fingerprint(base=True) == base != weights.fingerprint()
