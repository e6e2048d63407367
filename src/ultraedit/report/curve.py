"""The three metrics against the number of edits, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ultraedit.errors import InputError

_COLOURS = {"efficacy": "#0072b2", "generalization": "#d55e00", "specificity": "#009e73"}


def draw_curve(points: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Draw evaluations along a run; each point is an evaluation's dictionary with its `edits`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("A picture needs matplotlib: pip install 'ultraedit[plot]'.") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for family, colour in _COLOURS.items():
        drawn = [(p["edits"], p[family]["token_accuracy"]) for p in points if p[family]["probes"]]
        if drawn:
            edits, values = zip(*drawn, strict=True)
            axes.plot(edits, values, marker="o", markersize=4, color=colour, label=family)
    axes.set(xlabel="edits applied", ylabel="token accuracy, %", ylim=(-3, 103), title=title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
