"""What a person sees: bars, tables, errors."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ultraedit.cli.signals import stop_if_asked
from ultraedit.edits import FAMILIES

READINGS = {
    "token_accuracy": "token accuracy",
    "exact_match": "exact match",
    "generated_match": "generated match",
    "agreement": "agreement",
}


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """Go quiet when nobody listens any more; the work goes on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console_for(json_file: Path | None) -> Console:
    """Return the console to talk on; standard output is left to the JSON when it goes there."""
    return _Screen(stderr=str(json_file) == "-", highlight=False)


def show_error(message: str) -> None:
    """Print an error to standard error."""
    Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(message)}")


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show how many are done, and of how many where that is known."""
        total = "" if task.total is None else f"/{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{total}", style="cyan")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show items a second."""
        return Text(f"{task.speed:,.1f}/s" if task.speed else "-/s", style="dim")


@contextmanager
def bar(
    console: Console, title: str, total: int | None, unit: str = "edits"
) -> Iterator[Callable[..., None]]:
    """Show a bar with rate and time left; yields a function that takes steps and a note."""
    stop_if_asked()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        _Count(),
        TextColumn(unit),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=False, expand=False) as progress:
        task = progress.add_task(escape(title), total=total, note="")

        def advance(steps: int, note: str = "", total: int | None = None) -> None:
            shown = note or progress.tasks[task].fields["note"]
            progress.update(task, advance=steps, note=shown, total=total)

        yield advance
        if progress.tasks[task].total is None:
            progress.update(task, total=progress.tasks[task].completed)


def spinner(console: Console, title: str) -> AbstractContextManager[Any]:
    """Show that something goes on whose end is not known."""
    stop_if_asked()
    return console.status(escape(title))


def score_table(after: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Table:
    """Build the table of an evaluation, with the one before editing beside it."""
    table = Table(title="Scores in percent" + (", before → after editing" if before else ""))
    table.add_column("family", no_wrap=True)
    table.add_column("probes", justify="right")
    readings = [name for name in READINGS if any(name in after[family] for family in FAMILIES)]
    for name in readings:
        table.add_column(READINGS[name], justify="right")
    for family in FAMILIES:
        scores = after[family]
        if scores["probes"]:
            cells = [_cell(name, scores, before and before[family]) for name in readings]
            table.add_row(family, f"{scores['probes']:,}", *cells)
    return table


def _cell(name: str, after: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    value = after.get(name)
    if value is None:
        return "-"
    earlier = before.get(name) if before else None
    shown = _percent(value)
    return shown if earlier is None else f"{_percent(earlier)}→[bold]{shown}[/]"


def _percent(value: float) -> str:
    return "100" if value == 100 else f"{value:.1f}"


def show_definitions(console: Console, readings: Sequence[str]) -> None:
    """Print what each reading means."""
    from ultraedit.evaluation.scores import DEFINITIONS

    for name in readings:
        console.print(f"[dim]{READINGS[name]}: {DEFINITIONS[name]}[/]")


def show_scores(
    console: Console, after: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> None:
    """Print the table of an evaluation and the definitions of what stands in it."""
    console.print(score_table(after, before))
    measured = [name for name in READINGS if any(after[f].get(name) is not None for f in FAMILIES)]
    show_definitions(console, measured)


def counted(number: int, thing: str) -> str:
    """Write a number of things: 1 turn, 2 turns."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(n_bytes: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            return f"{n_bytes:,.0f} {unit}" if unit == "bytes" else f"{n_bytes:,.1f} {unit}"
        n_bytes /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """Write a time for people."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
