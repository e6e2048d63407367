"""A shift: its norm, its sum, its file and its fingerprint."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from tiny_models import same_bits
from ultraedit.shift import Change, Shift


def factors(seed: int = 0, rank: int = 3, dtype=torch.float32) -> Change:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(6, rank, generator=generator).to(dtype)
    return Change(left, torch.randn(rank, 9, generator=generator).to(dtype))


def dense(seed: int = 0) -> Change:
    return Change(torch.randn(6, 9, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("change", [factors(), factors(rank=12), dense()])
def test_the_norm_is_that_of_the_whole_matrix(change):
    assert change.norm() == pytest.approx(float(change.matrix.double().norm()), rel=1e-6)


def test_the_norm_of_nothing_is_exactly_zero():
    assert Change(torch.zeros(6, 3), torch.randn(3, 9)).norm() == 0
    assert Change(torch.zeros(6, 9)).norm() == 0


def test_a_sum_has_the_changes_of_both():
    first = Shift({"a": factors(1), "b": factors(2), "d": dense(5), "only": factors(6)})
    second = Shift({"a": factors(3), "b": dense(4), "d": factors(7), "other": dense(8)})
    total = first + second
    assert set(total) == {"a", "b", "d", "only", "other"}
    for name in total:
        parts = [shift[name].matrix for shift in (first, second) if name in shift]
        torch.testing.assert_close(total[name].matrix, sum(parts))
    assert total["a"].left.shape == (6, 6)


def test_adding_factors_rounds_nothing():
    total = Shift({"a": factors(1)}) + Shift({"a": factors(2)})
    assert same_bits(total["a"].left[:, :3], factors(1).left)
    assert same_bits(total["a"].right[3:], factors(2).right)


def test_scaling_scales_the_matrix_and_the_norm():
    shift = Shift({"a": factors(), "b": dense()})
    scaled = shift.scaled(-2.5)
    for name in shift:
        torch.testing.assert_close(scaled[name].matrix, -2.5 * shift[name].matrix)
        assert scaled.norms()[name] == pytest.approx(2.5 * shift.norms()[name])


def test_finite_means_every_number():
    assert factors().is_finite()
    broken = factors()
    broken.right[1, 2] = torch.nan
    assert not broken.is_finite()
    assert not Change(torch.full((2, 2), torch.inf)).is_finite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_saved_shift_reads_back_bit_for_bit(dtype, tmp_path):
    shift = Shift({"model.layers.1.mlp.up_proj": factors(dtype=dtype), "b": dense()})
    shift.save(tmp_path / "shift.safetensors", {"base": "abc"})
    loaded = Shift.load(tmp_path / "shift.safetensors")
    assert set(loaded) == set(shift)
    for name in shift:
        assert same_bits(loaded[name].left, shift[name].left)
        assert (loaded[name].right is None) == (shift[name].right is None)
    assert loaded.fingerprint() == shift.fingerprint()


def test_a_view_can_be_saved(tmp_path):
    shift = Shift({"a": Change(torch.randn(9, 6).T)})
    shift.save(tmp_path / "shift.safetensors")
    torch.testing.assert_close(
        Shift.load(tmp_path / "shift.safetensors")["a"].left, shift["a"].left
    )


def test_the_fingerprint_tells_numbers_names_and_shapes_apart():
    shifts = [
        Shift({"a": factors(1)}),
        Shift({"a": factors(2)}),
        Shift({"b": factors(1)}),
        Shift({"a": factors(1), "b": factors(1)}),
        Shift({"a": Change(factors(1).left)}),
        Shift({"a": Change(factors(1).left.double(), factors(1).right.double())}),
        Shift({"a": Change(factors(1).left.reshape(3, 6))}),
    ]
    assert len({shift.fingerprint() for shift in shifts}) == len(shifts)


def test_the_fingerprint_does_not_depend_on_the_order_of_sites():
    one = Shift({"a": factors(1), "b": dense(2)})
    other = Shift({"b": dense(2), "a": factors(1)})
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.layers.0.mlp.up_proj.weight": torch.ones(2, 2)},
        {"a.left": torch.ones(2, 2)},
        {"a.right": torch.ones(2, 2)},
        {"weight": torch.ones(2)},
    ],
    ids=["a model", "half of a pair", "the other half", "no site"],
)
def test_a_file_that_is_no_shift_is_refused(tensors, tmp_path):
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is no part of a shift"):
        Shift.load(tmp_path / "other.safetensors")


def test_a_missing_or_broken_file_is_refused_by_name(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"not a tensor")
    for name in ("broken.safetensors", "missing.safetensors"):
        with pytest.raises(ValueError, match=name):
            Shift.load(tmp_path / name)
