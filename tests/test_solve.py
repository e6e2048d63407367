"""The ridge solution, in both of its forms, against the direct one."""

from __future__ import annotations

import pytest
import torch

from tiny_models import relative_error
from ultraedit.solve import ridge


def problem(m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    options = {"dtype": torch.float64, "generator": generator}
    return torch.randn(m, d, **options), torch.randn(m, 7, **options)


def direct(keys: torch.Tensor, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    eye = torch.eye(keys.shape[1], dtype=keys.dtype)
    return torch.linalg.solve(keys.T @ keys + weight * eye, keys.T @ values)


@pytest.mark.parametrize("weight", [1.0, 0.01, 50.0])
@pytest.mark.parametrize(("m", "d"), [(5, 20), (20, 20), (60, 20), (1, 20), (20, 1)])
def test_ridge_is_the_direct_solution(m, d, weight):
    keys, values = problem(m, d)
    found = keys.T @ ridge(keys, values, weight)
    assert relative_error(found, direct(keys, values, weight)) < 1e-10


@pytest.mark.parametrize(("m", "d"), [(5, 20), (60, 20)])
def test_the_solution_is_where_the_loss_is_lowest(m, d):
    keys, values = problem(m, d)
    solution = (keys.T @ ridge(keys, values)).requires_grad_()
    loss = (keys @ solution - values).square().sum() + solution.square().sum()
    (grad,) = torch.autograd.grad(loss, solution)
    assert grad.abs().max() < 1e-10


@pytest.mark.parametrize("m", [6, 60])
def test_nearly_equal_rows_do_not_break_the_solution(m):
    keys, values = problem(m, 20)
    keys = 100 * (keys[:1] + 1e-9 * keys)
    coefficients = ridge(keys, values)
    assert coefficients.isfinite().all()
    assert relative_error(keys.T @ coefficients, direct(keys, values)) < 1e-6


def test_half_precision_is_solved_in_float64_and_left_as_it_was():
    keys, values = (tensor.to(torch.bfloat16) for tensor in problem(5, 20))
    before = keys.clone(), values.clone()
    found = ridge(keys, values)
    assert found.dtype == torch.float64
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])
    expected = direct(keys.double(), values.double())
    assert relative_error(keys.double().T @ found, expected) < 1e-10


def test_float64_arguments_are_left_as_they_were():
    for m in (5, 60):
        keys, values = problem(m, 20)
        before = keys.clone(), values.clone()
        ridge(keys, values)
        assert torch.equal(keys, before[0])
        assert torch.equal(values, before[1])
