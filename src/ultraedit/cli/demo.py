"""`ultraedit demo`: the whole story on a small model, from wrong answers to a saved model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ultraedit.cli import options
from ultraedit.cli.editrun import EditRun, save, show_result, stop_if_incomplete
from ultraedit.cli.screen import bar, console_for

if TYPE_CHECKING:
    from ultraedit.editor import Editor
    from ultraedit.edits import Edit, Text

_QUESTION_TOKENS = 8
_MARK = ".ultraedit-demo"
"""An empty file that tells a demo's folder from other ones."""


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the models, the edits and the picture.")
    ] = Path("demo"),
    count: Annotated[int, typer.Option("--edits", min=1, help="Number of edits.")] = 200,
    turn_size: Annotated[int, typer.Option(min=1, help="Edits applied together.")] = 50,
    seed: Annotated[int, typer.Option(help="Draws other edits.")] = 0,
    json_file: options.Json = None,
) -> None:
    """Edit a small model live: what it answers before and after, how well the edits hold.

    The model is trained on the spot the first time, on a small generated world of facts.
    """
    from ultraedit.cli.rows import check_rows
    from ultraedit.editor import Editor
    from ultraedit.files import check_output_files, write_json
    from ultraedit.world import DEMO_LR, DEMO_SITES, counterfactual_edits, world_facts

    console = console_for(json_file)
    check_output_files([json_file])
    _check_folder(out)
    edits = counterfactual_edits(world_facts(), count, seed)
    base = _trained_model(out / "model", console)
    _write_edits(out / "edits.jsonl", edits)
    editor = Editor.load(str(base), sites=DEMO_SITES, lr=DEMO_LR)
    checked = check_rows(out / "edits.jsonl", editor.encoder, console, skip_bad=False)
    questions = _questions(edits)
    before = _written(editor, questions)
    result = EditRun(console, editor, checked, turn_size=turn_size, every=1).result()
    save(console, editor, out / "edited", result, overwrite=True)
    _show_questions(console, questions, before, _written(editor, questions))
    show_result(console, result, out / "edited")
    if json_file is not None:
        write_json(json_file, result)
    stop_if_incomplete(result)
    _draw(console, result, out / "curve.png")
    console.print(
        f"Next: [cyan]ultraedit edit {escape(str(base))} YOUR_EDITS.jsonl --out mine "
        f"--lr {DEMO_LR:g} --sites '{escape(DEMO_SITES)}'[/]"
    )


def _check_folder(out: Path) -> None:
    """Take a folder that is new, empty, or an earlier demo's."""
    from ultraedit.errors import InputError
    from ultraedit.files import check_output_directory

    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).is_file():
        raise InputError(f"{out} holds other things than a demo; name another folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
    check_output_directory(out / "edited", overwrite=True)


def _trained_model(folder: Path, console: Console) -> Path:
    """Train the small model, or take the one an earlier demo trained."""
    from ultraedit.files import staged_directory
    from ultraedit.models import quiet
    from ultraedit.world.train import train_world_model

    if (folder / "config.json").is_file():
        return folder
    training = bar(console, "Training a small model", None, "steps")
    with staged_directory(folder) as staging, quiet(), training as advance:
        train_world_model(
            staging,
            on_step=lambda step, total, loss: advance(1, f"loss {loss:.3f}", total=total),
        )
    return folder


def _write_edits(path: Path, edits: Sequence["Edit"]) -> None:
    from dataclasses import asdict

    from ultraedit.files import staged_file

    with staged_file(path) as staging:
        rows = ({key: value for key, value in asdict(edit).items() if value} for edit in edits)
        staging.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _questions(edits: Sequence["Edit"]) -> list[tuple[str, Any]]:
    """Choose what a person would ask: a changed fact in its phrasings, then untouched ones."""
    first = edits[0]
    asked = [("edited", first.question)]
    asked += [
        ("rephrased", probe) for family, probe in first.probes() if family == "generalization"
    ]
    asked += [("untouched", probe) for probe in first.unrelated]
    return asked


def _written(editor: "Editor", questions: Sequence[tuple[str, Any]]) -> list[str]:
    from ultraedit.evaluation.generate import generate
    from ultraedit.tokens import Example

    examples = editor.encoder.encode([probe for _, probe in questions])
    prompts = [example.prompt for example in examples if isinstance(example, Example)]
    ids = generate(editor.model, prompts, [_QUESTION_TOKENS] * len(prompts), max_tokens=4096)
    return [(editor.encoder.decode(one) or "").strip() for one in ids]


def _show_questions(
    console: Console, questions: Sequence[tuple[str, Any]], before: list[str], after: list[str]
) -> None:
    table = Table("", "asked", "before", "after", "wanted", title="Six questions")
    for (kind, probe), old, new in zip(questions, before, after, strict=True):
        wanted: Text = probe.answer
        colour = "green" if new == str(wanted).strip() else "yellow"
        table.add_row(kind, str(probe.prompt), old, f"[{colour}]{new}[/]", str(wanted))
    console.print(table)


def _draw(console: Console, result: dict[str, Any], path: Path) -> None:
    from ultraedit.errors import InputError
    from ultraedit.report.curve import draw_curve

    try:
        points = [{**result["before"], "edits": 0}, *result["curve"]]
        draw_curve(points, path, title="UltraEdit, one pass a turn, on the demo's model")
    except InputError as error:
        console.print(f"[dim]{error}[/]")
    else:
        console.print(f"The scores along the run as a picture: {escape(str(path))}")
