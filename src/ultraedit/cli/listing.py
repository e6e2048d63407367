"""`ultraedit ls`: what there is."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ultraedit.cli import options
from ultraedit.cli.screen import console_for
from ultraedit.errors import unknown_name
from ultraedit.methods import METHODS, method_settings

Rows = list[dict[str, str]]


def ls(
    what: Annotated[
        str | None,
        typer.Argument(
            help="methods, settings, architectures, recipes or metrics; all when left out."
        ),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """List methods and their settings, architectures, recipes and metrics."""
    from ultraedit.files import check_output_files, write_json

    if what is not None and what not in _LISTINGS:
        raise unknown_name("list of", what, _LISTINGS)
    check_output_files([json_file])
    chosen = {name: rows() for name, rows in _LISTINGS.items() if what in (None, name)}
    if json_file is not None:
        write_json(json_file, chosen)
    console = console_for(json_file)
    for name, rows in chosen.items():
        table = Table(*rows[0], title=name, title_justify="left")
        for row in rows:
            table.add_row(*(escape(value) for value in row.values()))
        console.print(table)


def _methods() -> Rows:
    return [{"method": name, "what it is": about} for name, (_, about) in METHODS.items()]


def _settings() -> Rows:
    return [
        {
            "method": name,
            "setting": s.name,
            "values": options.metavar(s.kind),
            "meaning": options.help_text(s),
        }
        for name in METHODS
        for s in method_settings(name)
    ]


def _architectures() -> Rows:
    from ultraedit.sites import ARCHITECTURES

    return [
        {
            "model type": row.model_type,
            "layers": row.layers,
            "linears": ", ".join(row.linears),
            "default sites": f"{row.sites} of {row.depth} layers",
        }
        for row in ARCHITECTURES.values()
    ]


def _recipes() -> Rows:
    from ultraedit.recipes import all_recipes

    return [
        {"recipe": recipe.name, "method": method, "benchmark": benchmark, "sites": sites}
        for recipe in all_recipes()
        for method, settings in recipe.methods.items()
        for benchmark, sites in _site_rows(settings)
    ]


def _site_rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return list(settings.get("sites", {}).items())


def _metrics() -> Rows:
    from ultraedit.evaluation.scores import DEFINITIONS

    return [{"reading": name, "definition": text} for name, text in DEFINITIONS.items()]


_LISTINGS: dict[str, Callable[[], Rows]] = {
    "methods": _methods,
    "settings": _settings,
    "architectures": _architectures,
    "recipes": _recipes,
    "metrics": _metrics,
}
