"""The only writer of parameters: apply a shift, go back exactly, tell what the weights are.

Adding a small change to a bfloat16 weight in place loses most of it, turn after turn. So each site
of a half-precision model has a float32 master that changes are added to, and the model gets its
rounded copy. `native` adds in the model's own precision, as the published code does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from ultraedit.errors import InputError, TurnError
from ultraedit.shift import Change, Shift, update_digest
from ultraedit.sites import Site

Accumulate = Literal["float32", "native"]

Snapshot = dict[str, Tensor]
"""For each site a copy of its master, or of its weight where it has none."""


class Weights:
    """The weights of a model's sites over its life."""

    @torch.inference_mode(False)
    def __init__(self, sites: Sequence[Site], *, accumulate: Accumulate = "float32") -> None:
        if accumulate not in get_args(Accumulate):
            raise InputError(f"accumulate must be 'float32' or 'native', got {accumulate!r}.")
        self.sites = {site.name: site for site in sites}
        self.accumulate = accumulate
        self._base = {site.name: site.matrix.cpu().clone() for site in sites}
        self.base_norms = {site.name: float(site.matrix.double().norm()) for site in sites}
        """Frobenius norm of each weight before the first edit."""
        self._masters: dict[str, Tensor] = {}
        if accumulate == "float32":
            self._masters = {
                site.name: site.matrix.float()
                for site in sites
                if torch.finfo(site.weight.dtype).bits < 32
            }

    def check_own(self) -> None:
        """Refuse weights that something else has changed: the next turn would undo that change."""
        for name, master in self._masters.items():
            if not torch.equal(master.to(self.sites[name].weight.dtype), self.sites[name].matrix):
                raise InputError(
                    f"The weight of {name} was changed by something else since the last turn; make "
                    "a new Editor for the model as it is now."
                )

    @torch.no_grad()
    def apply(self, shift: Shift) -> None:
        """Add a shift to the weights; call it inside `all_or_nothing`."""
        if unknown := set(shift) - set(self.sites):
            raise InputError(f"The shift names {sorted(unknown)}, which are no sites of this run.")
        for name, change in shift.items():
            site = self.sites[name]
            master = self._masters.get(name)
            if master is not None:
                _add(master, change)
                site.matrix.copy_(master)
            else:
                _add(site.matrix, change)
            if not bool(torch.isfinite(site.matrix).all()):
                raise TurnError(
                    f"The weight of {name} would no longer be finite in {site.weight.dtype}; the "
                    "turn was taken back. Use a smaller lr."
                )

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Put every weight back, bit for bit, when the block does not succeed."""
        before = self.snapshot()
        try:
            yield
        except BaseException:
            self.restore(before)
            raise

    def snapshot(self) -> Snapshot:
        """Copy the weights as they are."""
        return {
            name: self._masters.get(name, site.matrix).clone() for name, site in self.sites.items()
        }

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Write a snapshot back."""
        for name, copy in snapshot.items():
            self.sites[name].matrix.copy_(copy)
            if name in self._masters:
                self._masters[name].copy_(copy)

    @torch.no_grad()
    def total(self) -> Shift:
        """Return the whole change since the beginning, in float32 at least."""
        changes = {}
        for name, site in self.sites.items():
            now = self._masters.get(name, site.matrix).cpu()
            wide = torch.promote_types(now.dtype, torch.float32)
            changes[name] = Change((now.double() - self._base[name].double()).to(wide))
        return Shift(changes)

    def fingerprint(self, *, base: bool = False) -> str:
        """Return a hash of the sites' weights as they are, or as they were at the beginning."""
        digest = hashlib.sha256()
        for name in sorted(self.sites):
            update_digest(digest, name, self._base[name] if base else self.sites[name].matrix)
        return digest.hexdigest()


@contextmanager
def lend(sites: Sequence[Site]) -> Iterator[None]:
    """Lend the weights to a method that must step on them; they come back as they were."""
    before = [(site, site.weight.detach().clone()) for site in sites]
    try:
        yield
    finally:
        with torch.no_grad():
            for site, weight in before:
                site.weight.copy_(weight)


def _add(target: Tensor, change: Change) -> None:
    left = change.left.to(target.device)
    if change.right is None:
        target.add_(left.to(target.dtype))
        return
    right = change.right.to(target.device)
    if left.dtype == target.dtype:
        target.addmm_(left, right)
    else:
        target.add_((left @ right).to(target.dtype))
