"""A shift: the change of some sites' weights, kept as factors where it has them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ultraedit.errors import InputError


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one (d_out, d_in) weight: `left @ right`, or `left` alone when dense."""

    left: Tensor  # (d_out, r), or (d_out, d_in)
    right: Tensor | None = None  # (r, d_in)

    @property
    def matrix(self) -> Tensor:
        """The change in full."""
        return self.left if self.right is None else self.left @ self.right

    def scaled(self, factor: float) -> Change:
        """Return the change times a number."""
        return Change(self.left * factor, self.right)

    def norm(self) -> float:
        """Return the Frobenius norm, without forming the product of the factors."""
        left = self.left.double()
        if self.right is None:
            return float(left.norm())
        right = self.right.double()
        # |L R|^2 = <L^T L, R R^T>; rounding may leave a zero slightly negative.
        return float(((left.T @ left) * (right @ right.T)).sum().clamp(min=0).sqrt())

    def is_finite(self) -> bool:
        """Tell whether every number in it is finite."""
        parts = (self.left,) if self.right is None else (self.left, self.right)
        return all(bool(torch.isfinite(part).all()) for part in parts)


class Shift(Mapping[str, Change]):
    """Changes by the name of their site."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = dict(changes)

    def __getitem__(self, name: str) -> Change:
        return self._changes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def __add__(self, other: Shift) -> Shift:
        """Return the sum; factors are put side by side, so nothing is rounded."""
        return Shift({name: _sum(self.get(name), other.get(name)) for name in {**self, **other}})

    def scaled(self, factor: float) -> Shift:
        """Return every change times a number."""
        return Shift({name: change.scaled(factor) for name, change in self.items()})

    def norms(self) -> dict[str, float]:
        """Return the Frobenius norm of each change."""
        return {name: change.norm() for name, change in self.items()}

    def save(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write the factors as safetensors: `<site>.left` and `<site>.right`, or `<site>.dense`."""
        from safetensors.torch import save_file

        tensors = {}
        for name, change in self.items():
            if change.right is None:
                tensors[f"{name}.dense"] = change.left
            else:
                tensors[f"{name}.left"], tensors[f"{name}.right"] = change.left, change.right
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(tensors, path, metadata={"format": "ultraedit-shift-1", **(metadata or {})})

    @classmethod
    def load(cls, path: Path) -> Shift:
        """Read what `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} cannot be read as a shift: {error}") from error
        changes = {}
        for key, tensor in tensors.items():
            name, _, kind = key.rpartition(".")
            if kind == "dense":
                changes[name] = Change(tensor)
            elif kind == "left" and f"{name}.right" in tensors:
                right = tensors[f"{name}.right"]
                changes[name] = Change(tensor, right)
                if tensor.shape[1:] != right.shape[:1]:
                    raise InputError(f"{path}: the factors of {name!r} do not fit each other.")
            elif kind != "right" or f"{name}.left" not in tensors:
                raise InputError(f"{path}: {key!r} is no part of a shift.")
        return cls(changes)

    def fingerprint(self) -> str:
        """Return a hash of names, shapes and numbers."""
        digest = hashlib.sha256()
        for name in sorted(self):
            for part in (self[name].left, self[name].right):
                if part is not None:
                    update_digest(digest, name, part)
        return digest.hexdigest()


def update_digest(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    """Feed a tensor's name, shape, type and bits to a running hash."""
    digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
    digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)


def _sum(first: Change | None, second: Change | None) -> Change:
    if first is None or second is None:
        return first or second  # type: ignore[return-value]
    if first.right is not None and second.right is not None:
        left = torch.cat([first.left, second.left], dim=1)
        return Change(left, torch.cat([first.right, second.right]))
    return Change(first.matrix + second.matrix)
