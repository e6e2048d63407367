"""`ultraedit inspect` and `ultraedit plan`: what can be edited, and what it will cost."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from ultraedit.cli import options
from ultraedit.cli.screen import console_for, duration, size, spinner


def inspect(
    model: options.Model,
    sites: options.Sites = None,
    method: options.MethodName = "ultraedit",
    trust_remote_code: options.RemoteCode = False,
    json_file: options.Json = None,
) -> None:
    """List every site of a model that can be edited, its shape, and the default ones."""
    from ultraedit.errors import InputError
    from ultraedit.files import check_output_files, write_json
    from ultraedit.sites import editable_sites

    console = console_for(json_file)
    check_output_files([json_file])
    with spinner(console, f"Reading the configuration of {model}"):
        skeleton, chosen, notation, lr = _skeleton(model, method, sites, trust_remote_code)
    names = {site.name for site in chosen}
    found = editable_sites(skeleton, planning=True)
    if not found:
        raise InputError(f"{model} has no plain linear layers that could be edited.")
    rows = [
        {"site": s.name, "d_in": s.d_in, "d_out": s.d_out, "default": s.name in names}
        for s in found
    ]
    if json_file is not None:
        content = {"model": model, "model_type": skeleton.config.model_type, "sites": rows}
        write_json(json_file, {**content, "default_sites": notation, "default_lr": lr})
    table = Table("site", "inputs", "outputs", "chosen" if sites else "default")
    for row in rows:
        mark = "[green]✓[/]" if row["default"] else ""
        table.add_row(str(row["site"]), f"{row['d_in']:,}", f"{row['d_out']:,}", mark)
    console.print(table)
    what = "Chosen" if sites else "Default"
    console.print(
        f"{skeleton.config.model_type}: {len(rows)} sites, {len(names)} of them {what.lower()}."
    )
    if notation:
        console.print(f"{what}: {notation}, lr {lr:g}", markup=False)
    else:
        console.print("This model type has no default sites; name them with --sites.")


def plan(
    model: options.Model,
    edits: Annotated[int, typer.Option(min=1, help="Number of edits.")] = 1000,
    turn_size: Annotated[int, typer.Option(min=1, help="Edits applied together.")] = 100,
    micro_batch_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens that pass through the model at once.")
    ] = 4096,
    sites: options.Sites = None,
    method: options.MethodName = "ultraedit",
    dtype: options.Dtype = "auto",
    accumulate: options.Accumulation = options.Accumulating.float32,
    device: options.Device = None,
    tflops: Annotated[
        float | None,
        typer.Option(min=1e-3, help="Speed of another machine's matrix products, in TFLOP/s."),
    ] = None,
    trust_remote_code: options.RemoteCode = False,
    json_file: options.Json = None,
) -> None:
    """Estimate memory and time of an edit run from the configuration alone; no weight is loaded."""
    from ultraedit.files import check_output_files, write_json
    from ultraedit.models import best_device, loading_dtype
    from ultraedit.plan import Workload, estimate, measure_flops

    console = console_for(json_file)
    check_output_files([json_file])
    with spinner(console, f"Reading the configuration of {model}"):
        skeleton, chosen, notation, _ = _skeleton(
            model, method, sites, trust_remote_code, needed=True
        )
        precision = loading_dtype(model, dtype, skeleton)
        where = best_device(device)
        flops = 1e12 * tflops if tflops else measure_flops(where, precision)
    work = Workload(edits, turn_size, micro_batch_tokens, precision, accumulate.value, flops)
    found = estimate(skeleton, chosen, work)
    if json_file is not None:
        sizes = {**asdict(found), "peak": found.peak, "seconds": found.seconds}
        write_json(json_file, {"model": model, "edits": edits, "sites": notation, **sizes})
    table = Table(
        title=f"{edits:,} edits in {found.turns:,} turns on {len(chosen)} sites", show_header=False
    )
    for name, value in _lines(found, str(precision).removeprefix("torch.")):
        table.add_row(name, value)
    console.print(table)
    speed = f"{flops / 1e12:.3g} TFLOP/s {'as given' if tflops else f'measured here on {where}'}"
    console.print(f"[dim]An estimate: prompts of average length, {speed}, probes not counted.[/]")


def _lines(found: Any, precision: str) -> list[tuple[str, str]]:
    return [
        (
            "parameters",
            f"{found.parameters:,} in {precision}, {found.site_parameters:,} at the sites",
        ),
        ("weights", size(found.weights)),
        ("float32 copies of the sites", size(found.masters)),
        ("a turn, at most", size(found.turn)),
        ("peak on the device", f"[bold]{size(found.peak)}[/]"),
        ("host memory beside it", size(found.host)),
        ("disk for the result", size(found.disk)),
        ("time a turn", f"about {duration(found.seconds_per_turn)}"),
        ("time in all", f"[bold]about {duration(found.seconds)}[/]"),
    ]


def _skeleton(
    source: str, method: str, sites: str | None, trust_remote_code: bool, *, needed: bool = False
) -> tuple[Any, list[Any], Any, float]:
    """Return a model's structure, the sites that would be edited, their notation and the lr."""
    from ultraedit.editor import defaults_for
    from ultraedit.errors import InputError
    from ultraedit.methods import method_class
    from ultraedit.models import load_skeleton
    from ultraedit.sites import resolve_sites

    cls = method_class(method)
    skeleton = load_skeleton(source, trust_remote_code=trust_remote_code)
    try:
        notation, settings = defaults_for(skeleton.config, method, sites)
        chosen = resolve_sites(skeleton, notation, planning=True)
    except InputError:
        if needed or sites is not None:
            raise
        return skeleton, [], None, 0.0
    return skeleton, chosen, notation, settings.get("lr", getattr(cls.Config, "lr", 0.0))
