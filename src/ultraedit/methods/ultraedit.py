"""UltraEdit: one closed-form shift per site and turn (arXiv:2505.14679).

With h the site's input and g the gradient of the loss at its output, one row an answer token:

    z = [h | g];  [h' | g'] = (z - mean) / (deviation + eps)   over every row of every turn so far
    v = -lr * |h'|^2 * g'
    S = argmin |H S - V|^2 + |S|^2 = H^T (H H^T + I)^-1 V;   W += S^T
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ultraedit.capture import Answers, Capture, Features
from ultraedit.errors import InputError, TurnError
from ultraedit.methods.base import Method, Proposal, Turn
from ultraedit.moments import Moments
from ultraedit.shift import Change, Shift
from ultraedit.sites import Site
from ultraedit.solve import ridge
from ultraedit.tokens import Encoder, build_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_AUTHORS_EDITS = 10
"""Edits in a micro-batch of the published code."""


@dataclass(frozen=True)
class UltraEditConfig:
    """Settings of UltraEdit."""

    lr: float = 1e-6
    """Step along the normalised gradient, the paper's eta. Default: the recipe's for the paper's
    models (1e-6); for others one by the model's width."""
    statistics: Literal["exact", "authors"] = "exact"
    """How mean and deviation are kept: exactly, or as the published code does (for parity)."""
    pool: Literal["shape", "module"] = "shape"
    """Share statistics between sites of one shape, as the published code does, or not."""
    micro_batch_tokens: int = 4096
    """Most tokens, padding included, that pass through the model at once; bounds memory.
    Not used with statistics=authors."""
    micro_batch_edits: int | None = None
    """Most edits that pass through the model at once."""
    normalised_share: float = 1.0
    """Share of the sites that are normalised, chosen by `seed`; 0 for none (ablation)."""
    freeze_statistics: bool = False
    """Keep the statistics of the first turn for all later ones (ablation)."""
    scaling: Literal["norm", "inner_product"] = "norm"
    """Scale a row by |h'|^2 as in the method, or by h . h' (ablation)."""
    seed: int = 0
    """Chooses the normalised sites when `normalised_share` is below 1."""

    def __post_init__(self) -> None:
        if not self.lr > 0 or self.lr == float("inf"):
            raise InputError(f"lr must be a positive number, got {self.lr}.")
        if not 0 <= self.normalised_share <= 1:
            raise InputError(f"normalised_share must be from 0 to 1, got {self.normalised_share}.")
        for name in ("micro_batch_tokens", "micro_batch_edits"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


class UltraEdit(Method):
    """Training-free, subject-free, memory-free lifelong editing."""

    Config = UltraEditConfig
    config: UltraEditConfig

    def __init__(
        self,
        config: UltraEditConfig,
        model: PreTrainedModel,
        sites: Sequence[Site],
        encoder: Encoder,
    ) -> None:
        super().__init__(config, model, sites, encoder)
        share = config.normalised_share
        n_normalised = max(1, round(share * len(sites))) if share else 0
        chosen = random.Random(config.seed).sample(range(len(sites)), n_normalised)
        self._groups = {sites[number].name: self._group(sites[number]) for number in sorted(chosen)}
        self._moments: dict[str, Moments] = {}
        self._pending: dict[str, Moments] = {}

    def compute_shift(self, turn: Turn) -> Proposal:
        """Return the turn's shift; its rows join the statistics when the turn is committed."""
        chunks, answers = self._capture(turn)
        self._pending = self._updated_moments(chunks)
        changes = {}
        for site in self.sites:
            rows = _joined([chunk[site.name] for chunk in chunks])
            changes[site.name] = self._change(site.name, rows)
        return Proposal(Shift(changes), answers)

    def commit(self) -> None:
        """Keep the statistics that include the turn last computed."""
        self._moments = self._pending

    def _capture(self, turn: Turn) -> tuple[list[dict[str, Features]], Answers]:
        authors = self.config.statistics == "authors"
        batches = build_batches(
            turn.examples,
            max_tokens=None if authors else self.config.micro_batch_tokens,
            max_examples=self.config.micro_batch_edits or (_AUTHORS_EDITS if authors else None),
        )
        chunks, answers = [], []
        with Capture(self.model, self.sites) as capture:
            for batch in batches:
                features, answered = capture(batch, "mean" if authors else "sum")
                _refuse_not_finite(features, batch.owners, turn)
                chunks.append(features)
                answers.append(answered)
        return chunks, Answers.join(answers)

    def _updated_moments(self, chunks: list[dict[str, Features]]) -> dict[str, Moments]:
        """Return the statistics with all rows of the turn: they count before any is normalised."""
        if self.config.freeze_statistics and self._moments:
            return self._moments
        moments = dict(self._moments)
        inflated = self.config.statistics == "authors"
        for chunk in chunks:
            for name, group in self._groups.items():
                rows = Moments.of(_joint(chunk[name]), inflated=inflated)
                if inflated and rows.count == 1:
                    raise TurnError(
                        "statistics='authors' does not exist for a micro-batch of one answer "
                        "token; use statistics='exact', or larger micro-batches."
                    )
                moments[group] = moments[group].merged(rows) if group in moments else rows
        return moments

    def _change(self, name: str, rows: Features) -> Change:
        h = rows.inputs.double()  # (m, d_in)
        h_normal, g_normal = self._normalised(name, rows)
        along = h_normal if self.config.scaling == "norm" else h
        scale = (along * h_normal).sum(-1, keepdim=True)  # (m, 1)
        coefficients = ridge(h, -self.config.lr * scale * g_normal)  # (m, d_out)
        return Change(coefficients.T.to(rows.grads.dtype), rows.inputs)

    def _normalised(self, name: str, rows: Features) -> tuple[Tensor, Tensor]:
        """Return h' and g'; sites that are not normalised keep h and g."""
        if name not in self._groups:
            return rows.inputs.double(), rows.grads.double()
        moments = self._pending[self._groups[name]]
        d_in = rows.inputs.shape[1]
        h = _standardised(rows.inputs, moments.part(slice(None, d_in)))
        return h, _standardised(rows.grads, moments.part(slice(d_in, None)))

    def _group(self, site: Site) -> str:
        return site.name if self.config.pool == "module" else f"{site.d_in}x{site.d_out}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return count, mean and sum of squares of each group of sites."""
        state = {}
        for group, moments in self._moments.items():
            state[f"{group}.count"] = torch.tensor(moments.count)
            state[f"{group}.mean"], state[f"{group}.squares"] = moments.mean, moments.squares
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up statistics saved before, for the same sites and pooling."""
        own = set(self._groups.values())
        groups = {key.rpartition(".")[0] for key in state}
        parts = ("count", "mean", "squares")
        if not groups <= own or set(state) != {f"{group}.{p}" for group in groups for p in parts}:
            raise InputError(
                f"The saved statistics hold {sorted(state)}, which does not fit this run's groups "
                f"{sorted(own)}; use the same sites and pool."
            )
        self._moments = {
            group: Moments(
                int(state[f"{group}.count"]), state[f"{group}.mean"], state[f"{group}.squares"]
            )
            for group in groups
        }


def _joint(rows: Features) -> Tensor:
    return torch.cat([rows.inputs, rows.grads], dim=-1).double()  # (m, d_in + d_out)


def _joined(parts: list[Features]) -> Features:
    inputs = torch.cat([part.inputs for part in parts])  # (m, d_in)
    return Features(inputs, torch.cat([part.grads for part in parts]))  # (m, d_out)


def _standardised(rows: Tensor, moments: Moments) -> Tensor:
    """Return rows over their deviation; the first ones, where all are alike, have none to go by."""
    if not moments.is_constant:
        return moments.normalised(rows)
    own_size = rows.double().square().mean(-1, keepdim=True).sqrt()  # (m, 1)
    return rows.double() / own_size.clamp(min=torch.finfo(own_size.dtype).tiny)


def _refuse_not_finite(features: Mapping[str, Features], owners: Tensor, turn: Turn) -> None:
    for name, rows in features.items():
        for what, values in (("input", rows.inputs), ("gradient", rows.grads)):
            bad = ~torch.isfinite(values).all(-1)  # (m,)
            if bool(bad.any()):
                edit = turn.edits[int(owners[bad.cpu()][0])].id
                raise TurnError(
                    f"The {what} of {name} is not finite for edit {edit!r}; nothing was changed. "
                    "Leave that edit out, or load the model in float32."
                )
