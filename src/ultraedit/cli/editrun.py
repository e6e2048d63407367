"""A run as a person watches it: ask, edit, ask again, and say what came of it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from ultraedit.cli.screen import bar, counted, duration, show_error, show_scores
from ultraedit.cli.signals import SIGNALS
from ultraedit.errors import InputError, TurnError
from ultraedit.files import check_output_directory, free_name

if TYPE_CHECKING:
    from ultraedit.cli.rows import Checked
    from ultraedit.editor import Editor
    from ultraedit.evaluation import Evaluation
    from ultraedit.receipt import Receipt

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_LARGE_CHANGE = 10.0
"""A change of so many times a weight's norm is pointed out."""
STOPPED_ASKING = "The last evaluation was stopped."


class EditRun:
    """Applies checked edits to a loaded model, with bars, and evaluates before and after."""

    def __init__(
        self,
        console: Console,
        editor: "Editor",
        checked: "Checked",
        *,
        turn_size: int = 100,
        every: int | None = None,
        evaluation: bool = True,
        generated: bool = True,
    ) -> None:
        self.console = console
        self.editor = editor
        self.checked = checked
        self.turn_size = turn_size
        self.every = every
        self.evaluation = evaluation
        self.generated = generated
        self.curve: list[dict[str, Any]] = []

    def result(self) -> dict[str, Any]:
        """Do everything but save; return what the receipt and the JSON hold."""
        before = self._evaluate("Asking before") if self.evaluation else None
        receipt, failure = self._edit_or_stop()
        after = None
        if self.evaluation and not receipt.interrupted:
            after, failure = self._evaluate_or_stop("Asking after", before)
        return {
            **(after.to_dict() if after else {}),
            "before": before.to_dict() if before else None,
            "receipt": receipt.to_dict(),
            "failure": failure,
            "curve": self.curve,
            "edits_file": self.checked.to_dict(),
            "settings": {**self.editor.settings(), "turn_size": self.turn_size},
            "origin": self.editor.origin(),
        }

    def _edit_or_stop(self) -> tuple["Receipt", str | None]:
        """Return what was done; a turn that fails ends the run, the ones before it stay."""
        try:
            receipt, failure = self._edit(), None
        except TurnError as error:
            receipt, failure = self.editor.receipt(interrupted=True), str(error)
            if not receipt.turns:
                raise
        if not receipt.turns:
            raise KeyboardInterrupt
        return receipt, failure

    def _evaluate_or_stop(
        self, title: str, before: "Evaluation | None"
    ) -> tuple["Evaluation | None", str | None]:
        """Return the evaluation, or why there is none: all turns are done and must not be lost."""
        try:
            return self._evaluate(title, before), None
        except KeyboardInterrupt:
            return None, STOPPED_ASKING
        except (TurnError, InputError) as error:
            return None, str(error)

    def _evaluate(self, title: str, before: "Evaluation | None" = None) -> "Evaluation":
        with bar(self.console, title, self.checked.good) as advance:
            return self.editor.evaluate(
                self.checked, before=before, generated=self.generated, on_progress=advance
            )

    def _edit(self) -> "Receipt":
        n_done = n_turns = 0
        progress = bar(self.console, "Editing", self.checked.good)
        with stopping(self.console) as should_stop, progress as advance:

            def on_turn(receipt: "Receipt") -> None:
                nonlocal n_done, n_turns
                advance(receipt.edits, f"this turn: efficacy {receipt.efficacy:.0f} %")
                n_done, n_turns = n_done + receipt.edits, n_turns + 1
                if self.every and n_turns % self.every == 0:
                    point = self.editor.evaluate(islice(self.checked, n_done), generated=False)
                    self.curve.append(point.to_dict())

            return self.editor.run(
                self.checked, turn_size=self.turn_size, on_turn=on_turn, should_stop=should_stop
            )


@contextmanager
def stopping(
    console: Console, message: str = "Stopping after this turn; press Ctrl-C again to give up."
) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish, and say so; a second one stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(f"[yellow]{message}[/]")

    earlier = {name: signal.signal(name, ask) for name in SIGNALS}
    try:
        yield lambda: asked
    finally:
        for name, handler in earlier.items():
            signal.signal(name, handler)


def save(
    console: Console, editor: "Editor", out: Path, result: dict[str, Any], *, overwrite: bool
) -> None:
    """Write the edited model; neither the first Ctrl-C nor a place taken meanwhile loses it."""
    place, taken = out, None
    try:
        check_output_directory(out, overwrite=overwrite)
    except InputError as error:
        place, taken = free_name(out), error
    waiting = stopping(console, "Saving; press Ctrl-C again to lose the edited model.")
    with waiting, console.status(f"Saving to {escape(str(place))} and reading it back"):
        editor.save(place, record=result, overwrite=overwrite)
    if taken is not None:
        raise OSError(f"{taken} The result is whole and lies at {place} instead")


def show_result(console: Console, result: dict[str, Any], out: Path) -> None:
    """Print scores, time and place, and what should make a person look twice."""
    receipt = result["receipt"]
    if "efficacy" in result:
        show_scores(console, result, result["before"])
    rate = receipt["edits"] / receipt["seconds"] if receipt["seconds"] else 0.0
    console.print(
        f"[bold]{counted(receipt['edits'], 'edit')}[/] in {counted(receipt['turns'], 'turn')}, "
        f"{duration(receipt['seconds'])} ({rate:,.1f} a second). "
        f"Saved and read back: {escape(str(out))}"
    )
    if receipt["log_prob"] is not None and receipt["log_prob"] <= receipt["log_prob_before"]:
        console.print("[yellow]The answers became less likely: try another lr or other sites.[/]")
    site, change = max(receipt["sites"].items(), key=lambda item: item[1]["relative"])
    if change["relative"] > _LARGE_CHANGE:
        console.print(
            f"[yellow]The change of {site} is {change['relative']:.3g} times its weight: little "
            "of the model can be left. Use a smaller lr.[/]"
        )


def stop_if_incomplete(result: dict[str, Any]) -> None:
    """End the program with the exit code of a run that ended early; what was done is saved."""
    if result["failure"] == STOPPED_ASKING or (
        result["receipt"]["interrupted"] and not result["failure"]
    ):
        show_error("Stopped early; the edits that were done are saved.")
        raise typer.Exit(INTERRUPTED)
    if result["failure"]:
        raise TurnError(f"{result['failure']} The finished turns are saved.")
