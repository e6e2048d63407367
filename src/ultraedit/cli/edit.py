"""`ultraedit edit`: edits in, an edited model directory and a receipt out."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ultraedit.cli import options
from ultraedit.cli.editrun import EditRun, save, show_result, stop_if_incomplete
from ultraedit.cli.screen import console_for, size, spinner
from ultraedit.errors import InputError


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
    from ultraedit.cli.rows import check_rows
    from ultraedit.editor import Editor
    from ultraedit.files import write_json
    from ultraedit.methods import method_class
    from ultraedit.models import load_tokenizer, loading_dtype
    from ultraedit.plan import Workload, estimate
    from ultraedit.settings import build
    from ultraedit.tokens import Encoder

    console = console_for(json_file)
    _check_places(model, edits, out, json_file, overwrite=overwrite)
    values = options.parsed(method, settings)
    with spinner(console, f"Reading the configuration of {model}"):
        build(method_class(method).Config, values)
        skeleton, notation, chosen = _check_model(model, method, sites, trust_remote_code)
        work = Workload(edits=1, dtype=loading_dtype(model, dtype, skeleton))
        _check_space(estimate(skeleton, chosen, work).disk, out)
        tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
        encoder = Encoder.of(skeleton.config, tokenizer, chat=chat)
    checked = check_rows(edits, encoder, console, skip_bad=skip_bad_rows, limit=limit)
    if dry_run:
        console.print(f"Everything fits: {checked.good:,} edits, nothing was changed.")
        return
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
            **values,
        )
    run = EditRun(
        console,
        editor,
        checked,
        turn_size=turn_size,
        every=every,
        evaluation=not no_evaluate,
        generated=not no_generate,
    )
    result = run.result()
    result["settings"] |= {"limit": limit, "skip_bad_rows": skip_bad_rows}
    save(console, editor, out, result, overwrite=overwrite)
    show_result(console, result, out)
    if json_file is not None:
        write_json(json_file, result)
    stop_if_incomplete(result)
    console.print(f"Next: [cyan]ultraedit evaluate {escape(str(out))} FILE_OF_OTHER_EDITS[/]")


def _check_places(
    model: str, edits: Path, out: Path, json_file: Path | None, *, overwrite: bool
) -> None:
    from ultraedit.editfile import EditFile
    from ultraedit.files import check_output_directory, check_output_files

    EditFile(edits)
    check_output_files([json_file], inputs=[edits, Path(model)])
    check_output_directory(out, overwrite=overwrite)


def _check_model(
    source: str, method: str, sites: str | None, trust_remote_code: bool
) -> tuple[Any, str | list[str], list[Any]]:
    """Return a model's structure, the names of its sites and the sites; refuse what cannot be."""
    from ultraedit.editor import defaults_for
    from ultraedit.models import load_skeleton
    from ultraedit.sites import resolve_sites

    skeleton = load_skeleton(source, trust_remote_code=trust_remote_code)
    notation, _ = defaults_for(skeleton.config, method, sites)
    return skeleton, notation, resolve_sites(skeleton, notation, planning=True)


def _check_space(needed: int, out: Path) -> None:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise InputError(
            f"The edited model needs {size(needed)} at {out}, but only {size(free)} are free there."
        )
