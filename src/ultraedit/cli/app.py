"""The verbs together, and what happens to an error: one sentence and an exit code."""

import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

import ultraedit
from ultraedit.cli.demo import demo
from ultraedit.cli.edit import edit
from ultraedit.cli.editrun import INTERRUPTED
from ultraedit.cli.evaluate import evaluate
from ultraedit.cli.listing import ls
from ultraedit.cli.model import inspect, plan
from ultraedit.cli.screen import show_error
from ultraedit.cli.signals import treat_as_ctrl_c
from ultraedit.errors import EditError, InputError

EXIT_CODES = (
    "Exit codes: 0 done · 1 unexpected error · 2 something given cannot be used · "
    "3 the edits did not take · 4 the machine failed (disk, memory, permission) · "
    "130 stopped by Ctrl-C, finished turns are saved."
)

_NO_MEMORY = "The machine is out of memory. `ultraedit plan` shows what a model needs."

app = typer.Typer(
    name="ultraedit",
    help="Change what a language model knows, edit after edit, without retraining.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _saying_when_stopped(verb: Callable[..., None]) -> Callable[..., None]:
    @wraps(verb)
    def wrapped(*words: Any, **options: Any) -> None:
        try:
            verb(*words, **options)
        except KeyboardInterrupt as error:
            show_error("Stopped; nothing was written.")
            raise typer.Exit(INTERRUPTED) from error

    return wrapped


for verb in (demo, edit, evaluate, inspect, plan, ls):
    app.command()(_saying_when_stopped(verb))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ultraedit {ultraedit.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a verb; an error becomes a sentence, with a traceback where ULTRAEDIT_DEBUG is set."""
    treat_as_ctrl_c()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no → shows ? for it
    try:
        app()
    except InputError as error:
        _stop(str(error), 2)
    except EditError as error:
        _stop(str(error), 3)
    except (OSError, MemoryError) as error:
        _stop(_machine_failure(error), 4)
    except Exception as error:  # noqa: BLE001 - the last line of defence of a program people run
        if _is_out_of_memory(error):
            _stop(_NO_MEMORY, 4)
        hint = "Please report it; set ULTRAEDIT_DEBUG=1 to see where it happened."
        _stop(f"Unexpected {type(error).__name__}: {error}\n{hint}", 1)


def _machine_failure(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    place = f" ({error.filename})" if getattr(error, "filename", None) else ""
    return f"{error.strerror or error}{place}. Nothing half-written was left behind."


def _is_out_of_memory(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return False
    from ultraedit.editor import is_out_of_memory

    return is_out_of_memory(error)


def _stop(message: str, code: int) -> None:
    if os.environ.get("ULTRAEDIT_DEBUG"):
        raise
    show_error(message)
    sys.exit(code)
