"""Running mean and deviation: exact however the rows arrive."""

from __future__ import annotations

import pytest
import torch

from ultraedit.moments import Moments


def some_rows(n: int = 40, d: int = 5, offset: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, d, dtype=torch.float64, generator=generator) * 2 + offset


def folded(chunks) -> Moments:
    moments = Moments.empty(5, torch.device("cpu"))
    for chunk in chunks:
        moments = moments.merged(Moments.of(chunk))
    return moments


@pytest.mark.parametrize("rows_per_chunk", [40, 7, 1])
def test_moments_do_not_depend_on_chunking(rows_per_chunk):
    rows = some_rows()
    moments = folded(rows.split(rows_per_chunk))
    assert moments.count == 40
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.deviation, rows.std(0))


def test_merging_is_the_same_in_any_order_and_grouping():
    a, b, c = (Moments.of(part) for part in some_rows().split([3, 30, 7]))
    left, right = a.merged(b).merged(c), c.merged(b.merged(a))
    torch.testing.assert_close(left.mean, right.mean)
    torch.testing.assert_close(left.squares, right.squares)
    assert left.count == right.count


def test_merging_changes_neither_part():
    a, b = (Moments.of(part) for part in some_rows().split([3, 37]))
    before = a.mean.clone(), a.squares.clone(), b.mean.clone(), b.squares.clone()
    a.merged(b)
    after = a.mean, a.squares, b.mean, b.squares
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_nothing_merged_with_nothing_is_nothing():
    empty = Moments.empty(5, torch.device("cpu"))
    assert empty.merged(empty).count == 0
    assert empty.merged(empty).deviation.tolist() == [0] * 5


def test_one_row_has_no_deviation_and_normalises_to_zero():
    row = some_rows(1)
    moments = Moments.of(row)
    assert moments.deviation.tolist() == [0] * 5
    assert moments.normalised(row).tolist() == [[0] * 5]


@pytest.mark.parametrize("rows_per_chunk", [1000, 13, 1])
def test_a_large_offset_does_not_drown_the_deviation(rows_per_chunk):
    rows = some_rows(1000, offset=1e7)
    moments = folded(rows.split(rows_per_chunk))
    torch.testing.assert_close(moments.deviation, rows.std(0), rtol=1e-7, atol=0)
    plain = (rows - rows.mean(0)) / rows.std(0)
    torch.testing.assert_close(moments.normalised(rows), plain, rtol=1e-5, atol=1e-6)


def test_half_precision_rows_are_summed_in_float64():
    rows = some_rows(300, offset=100.0).to(torch.bfloat16)
    moments = Moments.of(rows)
    assert moments.mean.dtype == moments.squares.dtype == torch.float64
    torch.testing.assert_close(moments.mean, rows.double().mean(0))


def test_normalised_rows_have_mean_zero_and_deviation_one():
    normal = Moments.of(some_rows()).normalised(some_rows())
    torch.testing.assert_close(normal.mean(0), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(normal.std(0), torch.ones(5, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_feature_that_never_varies_gives_zero():
    rows = some_rows()
    rows[:, 2] = 3.25
    normal = Moments.of(rows).normalised(rows)
    assert normal.isfinite().all()
    assert normal[:, 2].abs().max() < 1e-6


def test_inflated_moments_are_the_unbiased_variance_times_the_count():
    rows = some_rows(8)
    torch.testing.assert_close(Moments.of(rows, inflated=True).squares, rows.var(0) * 8)
    assert Moments.of(rows[:1], inflated=True).squares.isnan().all()
