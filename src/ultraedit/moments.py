"""Running mean and deviation of feature rows: exact, mergeable, of constant size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1.1920929e-07
"""Added to the deviation, as in the published code: the machine epsilon of float32."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of every row seen, in float64."""

    count: int
    mean: Tensor  # (d,)
    squares: Tensor  # (d,)

    @classmethod
    def empty(cls, size: int, device: torch.device) -> Moments:
        """Return the moments of no rows."""
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        return cls(0, zeros, zeros)

    @classmethod
    def of(cls, rows: Tensor, *, inflated: bool = False) -> Moments:
        """Return the moments of some rows.

        `inflated` is what the published code does: the variance over n - 1, taken n times; it
        depends on how rows are cut into batches and does not exist for a single row.
        """
        rows = rows.double()  # (m, d)
        n = rows.shape[0]
        mean = rows.mean(0)
        squares = (rows - mean).square().sum(0)
        if inflated:
            squares = squares * (n / (n - 1) if n > 1 else torch.nan)
        return cls(n, mean, squares)

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows."""
        count = self.count + other.count
        if count == 0:
            return self
        gap = other.mean.to(self.mean.device) - self.mean
        mean = self.mean + gap * (other.count / count)
        squares = self.squares + other.squares.to(self.mean.device)
        return Moments(count, mean, squares + gap.square() * (self.count * other.count / count))

    def part(self, columns: slice) -> Moments:
        """Return the moments of some columns."""
        return Moments(self.count, self.mean[columns], self.squares[columns])

    @property
    def is_constant(self) -> bool:
        """Whether the rows were all alike, up to rounding."""
        return bool(self.deviation.norm() <= 1e-6 * self.mean.norm())

    @property
    def deviation(self) -> Tensor:
        """The standard deviation over n - 1."""
        return (self.squares / max(self.count - 1, 1)).sqrt()

    def normalised(self, rows: Tensor) -> Tensor:
        """Return rows minus the mean over the deviation; a feature that never varied gives zero."""
        mean, deviation = self.mean.to(rows.device), self.deviation.to(rows.device)
        return (rows.double() - mean) / (deviation + EPSILON)
