"""Closed forms: tensors in, tensors out."""

from __future__ import annotations

import torch
from torch import Tensor


def ridge(keys: Tensor, values: Tensor, weight: float = 1.0) -> Tensor:
    """Return C such that S = keys^T C minimises |keys S - values|^2 + weight |S|^2.

    C = (K K^T + w I)^-1 V, an m x m system. With more rows than inputs the d x d system is smaller:
    S = (K^T K + w I)^-1 K^T V, and then C = (V - K S) / w.
    """
    keys, values = keys.double(), values.double()  # (m, d_in), (m, d_out)
    if keys.shape[0] <= keys.shape[1]:
        return torch.cholesky_solve(values, _factor(keys @ keys.T, weight))
    solution = torch.cholesky_solve(
        keys.T @ values, _factor(keys.T @ keys, weight)
    )  # (d_in, d_out)
    return (values - keys @ solution) / weight


def _factor(gram: Tensor, weight: float) -> Tensor:
    # The ridge keeps the smallest eigenvalue at `weight`, so float64 does not break down here.
    gram.diagonal().add_(weight)
    return torch.linalg.cholesky(gram)
