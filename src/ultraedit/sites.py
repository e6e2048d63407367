"""Sites: the linear layers of a model that may be edited, and how people name them.

An architecture is a row of a table, not a branch: where its decoder layers are, which linears their
feed-forward part has, and which of them the paper edits. A model that is not in the table can be
edited too, when its sites are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ultraedit.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EDITABLE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_RANGES = re.compile(r"\[([\d\s,-]+)\]\.(\S+)")


@dataclass(frozen=True)
class Architecture:
    """Where the sites of one model type are."""

    model_type: str
    layers: str
    """Path of the list of decoder layers."""
    linears: tuple[str, ...]
    """Linears of the feed-forward part of a layer."""
    depth: int
    """Number of layers of the model `sites` were chosen for."""
    sites: str
    """Sites to edit in a model of that depth; other depths take the same relative place."""


_GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_FUSED = ("mlp.gate_up_proj", "mlp.down_proj")
_LLAMA = (32, "[11-15].mlp.gate_proj, [18-24].mlp.up_proj")
_QWEN = (28, "[18-26].mlp.gate_proj, [18-26].mlp.up_proj")
_GEMMA = (62, "[52-60].mlp.gate_proj, [52-60].mlp.up_proj")

ARCHITECTURES = {
    row.model_type: row
    for row in (
        Architecture("llama", "model.layers", _GATED, *_LLAMA),
        Architecture("mistral", "model.layers", _GATED, 32, "[29-30].mlp.down_proj"),
        Architecture("qwen2", "model.layers", _GATED, *_QWEN),
        Architecture("qwen3", "model.layers", _GATED, *_QWEN),
        Architecture("phi3", "model.layers", _FUSED, 40, "[30-38].mlp.down_proj"),
        Architecture(
            "gptj", "transformer.h", ("mlp.fc_in", "mlp.fc_out"), 28, "[18-26].mlp.fc_out"
        ),
        Architecture("gpt2", "transformer.h", ("mlp.c_fc", "mlp.c_proj"), 28, "[18-26].mlp.c_proj"),
        Architecture("gemma3_text", "model.layers", _GATED, *_GEMMA),
        Architecture("gemma3", "model.language_model.layers", _GATED, *_GEMMA),
    )
}


@dataclass(frozen=True, eq=False)
class Site:
    """An editable linear layer, with its weight seen as (d_out, d_in) however it is stored."""

    name: str
    module: nn.Module
    transposed: bool
    """The module keeps its weight as (d_in, d_out), as GPT-2's Conv1D does."""

    @property
    def weight(self) -> nn.Parameter:
        """The parameter as the module stores it."""
        return self.module.weight  # type: ignore[return-value]

    @property
    def matrix(self) -> Tensor:
        """The weight as (d_out, d_in); a view, never a copy."""
        data = self.weight.detach()
        return data.T if self.transposed else data

    @property
    def d_out(self) -> int:
        """Size of the output."""
        return self.matrix.shape[0]

    @property
    def d_in(self) -> int:
        """Size of the input."""
        return self.matrix.shape[1]


def architecture_of(model: PreTrainedModel) -> Architecture | None:
    """Return the row of the table for a model, if it has one."""
    return ARCHITECTURES.get(model.config.model_type)


def default_notation(config: Any) -> str | None:
    """Return the default sites of a model type at this depth, in the paper's notation."""
    row = ARCHITECTURES.get(config.model_type)
    return None if row is None else at_depth(row, config.get_text_config().num_hidden_layers)


def at_depth(row: Architecture, depth: int) -> str:
    """Move an architecture's sites to the same relative place in a model of another depth."""
    if depth < 1:
        raise InputError("The model has no layers, so there is nothing to edit.")

    def moved(match: re.Match[str]) -> str:
        scale = (depth - 1) / (row.depth - 1)
        ends = [str(round(int(layer) * scale)) for layer in match[1].split("-")]
        return "-".join(dict.fromkeys(ends))

    return re.sub(r"(?<=\[)([\d-]+)(?=\])", moved, row.sites)


def editable_sites(model: PreTrainedModel, *, planning: bool = False) -> list[Site]:
    """Return every linear that may be edited, in the order of the model."""
    return [
        Site(name, module, _is_conv1d(module))
        for name, module in _candidates(model)
        if _refusal(name, module, planning=planning) is None
    ]


def resolve_sites(
    model: PreTrainedModel, wanted: str | Sequence[str], *, planning: bool = False
) -> list[Site]:
    """Return the sites named by full name, glob pattern or the paper's `[11-15].mlp.up_proj`.

    With `planning` the model is a skeleton without weights.
    """
    items = wanted if isinstance(wanted, str) else ", ".join(wanted)
    patterns = _split(items)
    if not patterns:
        raise InputError("No sites were named; leave --sites out to take the defaults.")
    candidates = dict(_candidates(model))
    chosen: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in candidates if _matches(name, pattern)]
        if not names:
            raise InputError(_nothing_matches(model, pattern))
        chosen.update(dict.fromkeys(names))
    for name in chosen:
        reason = _refusal(name, candidates[name], planning=planning)
        if reason is not None:
            raise InputError(reason)
    modules = {name: module for name, module in candidates.items() if name in chosen}
    sites = [Site(name, module, _is_conv1d(module)) for name, module in modules.items()]
    _refuse_shared(model, sites)
    return sites


def _split(items: str) -> list[str]:
    """Cut a list at commas outside brackets and spell `[11-13].x` out as one pattern a layer."""
    patterns: list[str] = []
    for item in re.split(r",(?![^\[]*\])", items):
        match = _RANGES.fullmatch(item.strip())
        if match:
            patterns.extend(f"{layer}.{match[2]}" for layer in _layers(match[1], item))
        elif item.strip():
            patterns.append(item.strip())
    return patterns


def _layers(ranges: str, item: str) -> Iterator[int]:
    for part in ranges.split(","):
        ends = [end.strip() for end in part.split("-")]
        numbers = [int(end) for end in ends if end.isdigit() and len(end) <= 4]
        if len(ends) > 2 or len(numbers) != len(ends) or numbers[0] > numbers[-1]:
            raise InputError(f"{item.strip()!r} is no range of layers; write [11-15] or [29, 30].")
        yield from range(numbers[0], numbers[-1] + 1)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _candidates(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield what looks like a linear inside the language model's layers; the head is none."""
    row = architecture_of(model)
    prefix = "" if row is None else f"{row.layers}."
    outside = {id(model.get_output_embeddings()), id(model.get_input_embeddings())}
    for name, module in model.named_modules():
        looks_linear = isinstance(module, nn.Linear) or "linear" in type(module).__name__.lower()
        inside = name.startswith(prefix) and id(module) not in outside
        if inside and (looks_linear or _is_conv1d(module)):
            yield name, module


def _is_conv1d(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return type(module) is Conv1D


def _refusal(name: str, module: nn.Module, *, planning: bool = False) -> str | None:
    """Say why a linear cannot be edited, or None."""
    if "experts" in name.split("."):
        return f"{name} is part of a mixture-of-experts block; experts cannot be edited."
    weight = getattr(module, "weight", None)
    # A subclass may compute with something else than its weight, and a weight may be packed.
    plain = type(module) is nn.Linear or _is_conv1d(module)
    if not plain or type(weight) is not nn.Parameter or weight.dtype not in EDITABLE_DTYPES:
        kind = type(module).__name__
        dtype = f" holding {weight.dtype}" if isinstance(weight, Tensor) else ""
        return (
            f"{name} is a {kind}{dtype}, not a plain linear: quantised or wrapped layers cannot be "
            "edited. Edit the model in bfloat16 or float32 and quantise the result."
        )
    if weight.is_meta and not planning:
        return (
            f"The weight of {name} is offloaded (on the meta device), where a change would be "
            "lost. Load the model so that its sites are in memory."
        )
    return None


def _refuse_shared(model: PreTrainedModel, sites: Iterable[Site]) -> None:
    owners = {_storage(site.weight): site.name for site in sites}
    for name, module in model.named_modules(remove_duplicate=False):
        owner = owners.get(_storage(getattr(module, "weight", None)))
        if owner is not None and owner != name:
            raise InputError(f"{owner} shares its weight with {name}; editing one would edit both.")


def _storage(weight: object) -> int:
    """Tell weights apart by where they lie; without storage, by what they are."""
    held = isinstance(weight, Tensor) and not weight.is_meta and weight.numel() > 0
    return weight.data_ptr() if held else id(weight)  # type: ignore[attr-defined]


def _nothing_matches(model: PreTrainedModel, pattern: str) -> str:
    named = [name for name, _ in model.named_modules() if name and _matches(name, pattern)]
    if named:
        kind = type(model.get_submodule(named[0])).__name__
        return f"{named[0]}, of type {kind}, cannot be edited; `ultraedit inspect` lists the sites."
    if has_experts(model):
        return (
            f"No site matches {pattern!r}: this is a mixture-of-experts model, whose experts are "
            "not linear layers and cannot be edited. Use a dense model."
        )
    names = [name for name, _ in _candidates(model)]
    example = f" One that exists: {names[-1]}." if names else ""
    return f"No site matches {pattern!r}.{example} `ultraedit inspect` lists them all."


def has_experts(model: PreTrainedModel) -> bool:
    """Tell whether a model has mixture-of-experts blocks."""
    return any(name.endswith(".experts") for name, _ in model.named_modules())
