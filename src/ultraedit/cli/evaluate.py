"""`ultraedit evaluate`: how well a model holds some edits, whoever edited it."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ultraedit.cli import options
from ultraedit.cli.screen import bar, console_for, show_scores, spinner


def evaluate(
    model: options.Model,
    edits: options.Edits,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The unedited model, to tell how far specificity agrees."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first edits.")] = None,
    no_generate: options.NoGenerate = False,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every probe and its answers there, as JSONL."),
    ] = None,
    skip_bad_rows: options.SkipBad = False,
    chat: options.Chat = False,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    trust_remote_code: options.RemoteCode = False,
    json_file: options.Json = None,
) -> None:
    """Measure efficacy, generalization and specificity (and personas and reasoning) of a model."""
    from ultraedit.cli.rows import check_rows
    from ultraedit.editfile import EditFile
    from ultraedit.files import check_output_files, write_json
    from ultraedit.models import load_config, load_tokenizer
    from ultraedit.tokens import Encoder

    console = console_for(json_file)
    EditFile(edits)
    check_output_files([json_file, answers], inputs=[edits, Path(model)])
    config = load_config(model, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    encoder = Encoder.of(config, tokenizer, chat=chat)
    checked = check_rows(edits, encoder, console, skip_bad=skip_bad_rows, limit=limit)
    loading = {
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "trust_remote_code": trust_remote_code,
    }
    before = None
    if base is not None:
        before = _ask(base, checked, console, loading, generated=False)
    result = _ask(
        model, checked, console, loading, generated=not no_generate, before=before, answers=answers
    )
    content = {
        **result.to_dict(),
        "model": model,
        "base": base,
        "edits_file": checked.to_dict(),
        "origin": _origin(),
    }
    if json_file is not None:
        write_json(json_file, content)
    show_scores(console, content)


def _ask(
    source: str,
    checked: Any,
    console: Console,
    loading: dict[str, Any],
    *,
    answers: Path | None = None,
    **asking: Any,
) -> Any:
    from ultraedit.evaluation import evaluate as ask_all
    from ultraedit.files import staged_file
    from ultraedit.models import load_model

    with spinner(console, f"Loading {source}"):
        model, _ = load_model(source, **loading)
    with ExitStack() as stack:
        if answers is not None:
            lines = stack.enter_context(
                stack.enter_context(staged_file(answers)).open("w", encoding="utf-8")
            )
            asking["on_answer"] = lambda row: lines.write(
                json.dumps(row, ensure_ascii=False) + "\n"
            )
        advance = stack.enter_context(bar(console, f"Asking {source}", checked.good))
        return ask_all(model, checked, encoder=checked.encoder, on_progress=advance, **asking)


def _origin() -> dict[str, Any]:
    from ultraedit.receipt import origin

    return origin()
