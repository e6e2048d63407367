"""`ultraedit edit`: edits in, an edited model directory and a receipt out."""

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ultraedit.cli import options
from ultraedit.cli.screen import bar, console_for, duration, show_scores, size, spinner
from ultraedit.errors import InputError

_INTERRUPTED = 130


@options.with_settings
def edit(
    model: options.Model,
    edits: options.Edits,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory to write the edited model to.", show_default=False
        ),
    ],
    method: options.MethodName = "ultraedit",
    sites: options.Sites = None,
    turn_size: Annotated[int, typer.Option(min=1, help="Edits applied together.")] = 100,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first edits.")] = None,
    every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Evaluate after every N turns too: a curve."),
    ] = None,
    no_evaluate: Annotated[
        bool, typer.Option("--no-evaluate", help="Do not ask the probes before and after editing.")
    ] = False,
    no_generate: options.NoGenerate = False,
    skip_bad_rows: options.SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier result at --out.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that can be checked, then stop.")
    ] = False,
    accumulate: options.Accumulation = options.Accumulating.float32,
    chat: options.Chat = False,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    trust_remote_code: options.RemoteCode = False,
    json_file: options.Json = None,
    *,
    settings: dict[str, str],
) -> None:
    """Edit a model: apply a file of edits, turn by turn, and save the result.

    The new directory is an ordinary model that plain transformers loads. Its folder `ultraedit/`
    holds the receipt, the settings and the change in float32. Ctrl-C stops after the turn at hand
    and saves what was done.
    """
    console = console_for(json_file)
    work = _Work(console, out, turn_size, every, not no_evaluate, not no_generate)
    checked, notation = _check_all(locals(), console)
    if dry_run:
        console.print(f"Everything fits: {checked.good:,} edits, nothing was changed.")
        return
    from ultraedit.editor import Editor

    with spinner(console, f"Loading {model}"):
        editor = Editor.load(
            model,
            method=method,
            sites=notation,
            accumulate=accumulate.value,
            chat=chat,
            dtype=dtype,
            device=device,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            **options.parsed(method, settings),
        )
    result = work.run(editor, checked)
    _finish(console, result, out, json_file)


class _Work:
    """The long part: evaluate, edit, evaluate, save."""

    def __init__(
        self,
        console: Console,
        out: Path,
        turn_size: int,
        every: int | None,
        evaluation: bool,
        generated: bool,
    ) -> None:
        self.console = console
        self.out = out
        self.turn_size = turn_size
        self.every = every
        self.generated = generated
        self.evaluation = evaluation
        self.curve: list[dict[str, Any]] = []

    def run(self, editor: Any, checked: Any) -> dict[str, Any]:
        """Do everything and return what the receipt and the JSON hold."""
        before = self._evaluate(editor, checked, "Asking before") if self.evaluation else None
        receipt = self._edit(editor, checked)
        after = None
        if self.evaluation and not receipt.interrupted:
            after = self._evaluate(editor, checked, "Asking after", before)
        scores = after.to_dict() if after else {}
        result = {
            **scores,
            "before": before.to_dict() if before else None,
            "receipt": receipt.to_dict(),
            "curve": self.curve,
            "edits_file": checked.to_dict(),
            "settings": {**editor.settings(), "turn_size": self.turn_size},
            "origin": editor.origin(),
        }
        with spinner(self.console, f"Saving to {self.out} and reading it back"):
            editor.save(self.out, record=result)
        return result

    def _evaluate(
        self, editor: Any, checked: Any, title: str, before: Any = None, n_edits: int | None = None
    ) -> Any:
        total = n_edits or checked.good
        generated = self.generated and n_edits is None
        with bar(self.console, title, total) as advance:
            return editor.evaluate(
                islice(checked, total), before=before, generated=generated, on_progress=advance
            )

    def _edit(self, editor: Any, checked: Any) -> Any:
        n_done = n_turns = 0
        title = bar(self.console, "Editing", checked.good)
        with _stopping(self.console) as should_stop, title as advance:

            def on_turn(receipt: Any) -> None:
                nonlocal n_done, n_turns
                advance(receipt.edits, f"this turn: efficacy {receipt.efficacy:.0f} %")
                n_done, n_turns = n_done + receipt.edits, n_turns + 1
                if self.every and n_turns % self.every == 0:
                    point = editor.evaluate(islice(checked, n_done), generated=False)
                    self.curve.append(point.to_dict())

            return editor.run(
                checked, turn_size=self.turn_size, on_turn=on_turn, should_stop=should_stop
            )


def _check_all(given: dict[str, Any], console: Console) -> tuple[Any, Any]:
    """Refuse everything that can be refused before a weight is loaded."""
    from ultraedit.cli.rows import check_rows
    from ultraedit.editfile import EditFile
    from ultraedit.editor import defaults_for
    from ultraedit.files import check_output_directory, check_output_file
    from ultraedit.methods import method_class
    from ultraedit.models import load_skeleton, load_tokenizer
    from ultraedit.settings import build
    from ultraedit.sites import resolve_sites
    from ultraedit.tokens import Encoder

    if given["json_file"] is not None:
        check_output_file(given["json_file"])
    check_output_directory(given["out"], overwrite=given["overwrite"])
    EditFile(given["edits"])
    method = given["method"]
    build(method_class(method).Config, options.parsed(method, given["settings"]))
    trust = {"trust_remote_code": given["trust_remote_code"]}
    with spinner(console, f"Reading the configuration of {given['model']}"):
        skeleton = load_skeleton(given["model"], **trust)
        notation, _ = defaults_for(skeleton.config, method, given["sites"])
        resolve_sites(skeleton, notation, planning=True)
        tokenizer = load_tokenizer(given["model"], **trust)
    _check_space(skeleton, given["out"])
    encoder = Encoder.of(skeleton.config, tokenizer, chat=given["chat"])
    limits = {"skip_bad": given["skip_bad_rows"], "limit": given["limit"]}
    return check_rows(given["edits"], encoder, console, **limits), notation


def _check_space(skeleton: Any, out: Path) -> None:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    needed = sum(weight.numel() * weight.element_size() for weight in skeleton.parameters())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise InputError(
            f"The edited model needs {size(needed)} at {out}, but only {size(free)} are free there."
        )


@contextmanager
def _stopping(console: Console) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish to stop after this turn; a second one stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("[yellow]Stopping after this turn; press Ctrl-C again to give up.[/]")

    earlier = {name: signal.signal(name, ask) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for name, handler in earlier.items():
            signal.signal(name, handler)


def _finish(console: Console, result: dict[str, Any], out: Path, json_file: Path | None) -> None:
    from ultraedit.files import write_json

    receipt = result["receipt"]
    if json_file is not None:
        write_json(json_file, result)
    if "efficacy" in result:
        show_scores(console, result, result["before"])
    rate = receipt["edits"] / receipt["seconds"]
    console.print(
        f"[bold]{receipt['edits']:,} edits[/] in {receipt['turns']:,} turns, "
        f"{duration(receipt['seconds'])} ({rate:,.1f} a second). Saved and read back: {out}"
    )
    if receipt["interrupted"]:
        console.print(
            "[yellow]Stopped before all edits were done; the finished turns are saved.[/]"
        )
        raise typer.Exit(_INTERRUPTED)
    if receipt["log_prob"] is not None and receipt["log_prob"] <= receipt["log_prob_before"]:
        console.print(
            "[yellow]The answers became less likely, not more: try another lr or sites.[/]"
        )
    console.print(f"Next: [cyan]ultraedit evaluate {out} FILE_OF_OTHER_EDITS[/]")
