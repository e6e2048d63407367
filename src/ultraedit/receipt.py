"""A receipt: what a turn, or a whole run, did to a model, and where its numbers come from."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ultraedit

STILL = 1e-4
"""An answer whose log-probability changed by no more than this has not moved."""


@dataclass(frozen=True)
class SiteChange:
    """How far a site's weight was moved."""

    norm: float
    """Frobenius norm of the change."""
    relative: float
    """The same over the norm of the weight before the first edit."""


@dataclass(frozen=True)
class Receipt:
    """What was done, and what it did to the edited prompts right after their own turn."""

    turns: int
    edits: int
    answer_tokens: int
    seconds: float
    sites: dict[str, SiteChange] = field(default_factory=dict)
    efficacy_before: float | None = None
    """Token accuracy on the edits, in percent, before their turn."""
    efficacy: float | None = None
    """Token accuracy on the edits, in percent, right after their turn."""
    log_prob_before: float | None = None
    """Mean log-probability of an answer token before the turn."""
    log_prob: float | None = None
    """Mean log-probability of an answer token right after the turn."""
    largest_move: float | None = None
    """Largest change of an edit's mean log-probability."""
    interrupted: bool = False
    """The run was stopped between two turns before its edits were done."""

    @property
    def moved(self) -> bool | None:
        """Whether any edited prompt moved at all; None when it was not measured."""
        return None if self.largest_move is None else self.largest_move > STILL

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as plain values."""
        return {**asdict(self), "moved": self.moved}


class Tally:
    """Sums up the receipts of turns in constant memory."""

    def __init__(self) -> None:
        self.turns = self.edits = self.answer_tokens = 0
        self.seconds = 0.0
        self._sums = dict.fromkeys(_AVERAGED, 0.0)
        self._measured = 0
        self._largest: float | None = None

    def add(self, receipt: Receipt) -> None:
        """Count one turn."""
        self.turns += receipt.turns
        self.edits += receipt.edits
        self.answer_tokens += receipt.answer_tokens
        self.seconds += receipt.seconds
        if receipt.largest_move is not None:
            self._measured += receipt.edits
            self._largest = max(self._largest or 0.0, receipt.largest_move)
            for name in _AVERAGED:
                self._sums[name] += receipt.edits * getattr(receipt, name)

    def receipt(self, sites: dict[str, SiteChange], *, interrupted: bool = False) -> Receipt:
        """Return one receipt for all turns counted."""
        n = self._measured
        return Receipt(
            self.turns,
            self.edits,
            self.answer_tokens,
            self.seconds,
            sites,
            **{name: self._sums[name] / n if n else None for name in _AVERAGED},
            largest_move=self._largest,
            interrupted=interrupted,
        )


_AVERAGED: Sequence[str] = ("efficacy_before", "efficacy", "log_prob_before", "log_prob")


def origin() -> dict[str, Any]:
    """Return what produced a result: versions and hardware."""
    import torch

    name = None
    if torch.accelerator.is_available():
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        name = getattr(module, "get_device_name", lambda: "unnamed")()
    return {
        "ultraedit": ultraedit.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "transformers", "safetensors")},
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": name,
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Return the commit of the code when it runs from a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not (root / "src" / "ultraedit").is_dir():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
