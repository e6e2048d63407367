"""Options that several verbs share, and flags made from the settings of the methods."""

import inspect as signatures
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ultraedit.methods import METHODS, method_class, method_settings
from ultraedit.settings import Setting

Model = Annotated[str, typer.Argument(help="A model directory or hub id.", show_default=False)]
Edits = Annotated[
    Path,
    typer.Argument(
        help="A file of edits: .jsonl, .json, .csv, .tsv or .parquet with 'prompt' and 'target'.",
        show_default=False,
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result there; - prints it.")
]


class Accumulating(StrEnum):
    """In which precision changes add up."""

    float32 = "float32"
    native = "native"


_LOADING = "Loading the model"

Dtype = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="auto (as stored), float32, bfloat16, float16 or float64.",
        rich_help_panel=_LOADING,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where to compute; by default an accelerator if there is one.",
        rich_help_panel=_LOADING,
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Spread the model over devices, e.g. auto (needs accelerate).",
        rich_help_panel=_LOADING,
    ),
]
RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code that comes with the model.",
        rich_help_panel=_LOADING,
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put prompts into the tokenizer's chat template.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that are no edits, and list them.")
]
NoGenerate = Annotated[
    bool, typer.Option("--no-generate", help="Do not let the model write answers by itself.")
]
Accumulation = Annotated[Accumulating, typer.Option(help="Precision in which changes add up.")]
Sites = Annotated[
    str | None,
    typer.Option(
        "--sites",
        metavar="SITES",
        help="What to edit: '[11-15].mlp.gate_proj, [18-24].mlp.up_proj', a pattern such as "
        "'layers.*.mlp.down_proj', or a benchmark of the paper (zsre, fever, wikibigedit, "
        "ultraeditbench, unke). Default: the paper's for its models, the same depth for others.",
    ),
]
MethodName = Annotated[str, typer.Option("--method", help=f"One of: {', '.join(METHODS)}.")]


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one flag for every setting of every method; it gets them as `settings`."""
    own = signatures.signature(verb)
    flags: dict[str, signatures.Parameter] = {}
    for method in METHODS:
        for setting in method_settings(method):
            option = typer.Option(
                f"--{setting.name.replace('_', '-')}",
                metavar=metavar(setting.kind),
                help=help_text(setting),
                rich_help_panel=f"Settings of {method}",
                show_default=False,
            )
            flags.setdefault(
                setting.name,
                signatures.Parameter(
                    setting.name,
                    signatures.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=Annotated[str | None, option],
                ),
            )

    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name) for name in flags}
        verb(**values, settings={name: text for name, text in given.items() if text is not None})

    parameters = [
        parameter.replace(kind=signatures.Parameter.KEYWORD_ONLY)
        for name, parameter in own.parameters.items()
        if name != "settings"
    ]
    wrapped.__signature__ = own.replace(parameters=[*parameters, *flags.values()])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*parameters, *flags.values()]}
    wrapped.__name__, wrapped.__doc__ = verb.__name__, verb.__doc__
    return wrapped


def metavar(kind: str) -> str:
    """Write a type as people read it: `a|b` for a choice, else its name."""
    choices = kind.removeprefix("Literal[")
    if choices != kind:
        return choices.rstrip("]").replace("'", "").replace(", ", "|")
    return kind.removesuffix(" | None").upper()


def help_text(setting: Setting) -> str:
    """Explain a setting, with its default where the explanation does not name one."""
    has_own = "Default:" in setting.help or setting.default == "None"
    default = setting.default.strip("'")
    return setting.help if has_own else f"{setting.help} Default: {default}."


def parsed(method: str, settings: dict[str, str]) -> dict[str, Any]:
    """Turn the text of flags into the values a method's settings have."""
    from ultraedit.settings import parse

    config = method_class(method).Config
    return {name: parse(config, name, text) for name, text in settings.items()}
