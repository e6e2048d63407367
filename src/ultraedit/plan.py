"""What editing a model will cost, counted from its configuration before any weight is loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ultraedit.sites import Site
from ultraedit.weights import Accumulate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS_PER_EDIT = 15.3
"""Prompt and answer tokens of an average edit (UltraEditBench, 100 edits: 1,526)."""
ROWS_PER_EDIT = 3.0
"""Answer tokens of an average edit (UltraEditBench, 100 edits: 296)."""
EFFICIENCY = 0.4
"""Share of the speed of a large matrix product that whole turns reach."""
SHORTEST_TURN = 0.1
"""Seconds a turn takes however small the model: launches, hooks and checks."""


@dataclass(frozen=True)
class Plan:
    """An estimate; sizes in bytes, times in seconds."""

    parameters: int
    site_parameters: int
    weights: int
    masters: int
    """Float32 copies of the sites, when the model is in half precision."""
    turn: int
    """Most memory a turn takes beside weights and masters."""
    host: int
    """Memory of the machine for the untouched copy of the sites and for checking what was saved."""
    disk: int
    seconds_per_turn: float
    turns: int

    @property
    def peak(self) -> int:
        """Most memory on the device that holds the model."""
        return self.weights + self.masters + self.turn

    @property
    def seconds(self) -> float:
        """Time for all turns."""
        return self.turns * self.seconds_per_turn


@dataclass(frozen=True)
class Workload:
    """What shall be done."""

    edits: int
    turn_size: int = 100
    micro_batch_tokens: int = 4096
    dtype: torch.dtype = torch.float32
    accumulate: Accumulate = "float32"
    flops: float = 1e11
    """Multiplications and additions a second of the device in large matrix products."""


def estimate(model: PreTrainedModel, sites: Sequence[Site], work: Workload) -> Plan:
    """Count memory and time for a model whose structure is known."""
    size = work.dtype.itemsize
    parameters = sum(weight.numel() for weight in model.parameters())
    site_parameters = sum(site.weight.numel() for site in sites)
    has_masters = size < 4 and work.accumulate == "float32"
    masters = 4 * site_parameters if has_masters else 0
    edits_per_turn = min(work.turn_size, work.edits)
    rows = round(edits_per_turn * ROWS_PER_EDIT)
    features = rows * sum(site.d_in + site.d_out for site in sites) * 4
    snapshot = masters or size * site_parameters
    capture = _activations(model, sites, work) + features
    return Plan(
        parameters=parameters,
        site_parameters=site_parameters,
        weights=size * parameters,
        masters=masters,
        turn=max(capture, snapshot + 2 * features + _solve(sites, rows)),
        host=size * site_parameters + size * parameters,
        disk=size * parameters + 4 * site_parameters,
        seconds_per_turn=max(
            SHORTEST_TURN, _flops(model, sites, edits_per_turn) / (EFFICIENCY * work.flops)
        ),
        turns=-(-work.edits // work.turn_size),
    )


def _activations(model: PreTrainedModel, sites: Sequence[Site], work: Workload) -> int:
    """Count what a micro-batch keeps for its backward pass: all layers from the lowest site up."""
    config = model.config.get_text_config()
    per_layer = 12 * config.hidden_size + 4 * _inner_size(config)
    tokens = min(work.micro_batch_tokens, work.turn_size * TOKENS_PER_EDIT)
    logits = tokens * ROWS_PER_EDIT / TOKENS_PER_EDIT * config.vocab_size * 4 * 3
    layers = max(1, _depth_above(model, sites))
    return round(tokens * per_layer * layers * work.dtype.itemsize + logits)


def _solve(sites: Sequence[Site], rows: int) -> int:
    """Count the float64 copies of the largest site's rows while its system is solved."""
    return 8 * max(6 * rows * (site.d_in + site.d_out) + 2 * rows * rows for site in sites)


def _flops(model: PreTrainedModel, sites: Sequence[Site], edits: int) -> float:
    """Count a turn: forward twice, backward from the top to the lowest site, solve and apply."""
    tokens, rows = edits * TOKENS_PER_EDIT, edits * ROWS_PER_EDIT
    config = model.config.get_text_config()
    head = config.vocab_size * config.hidden_size
    body = sum(weight.numel() for weight in model.parameters()) - head
    above = body * _depth_above(model, sites) / config.num_hidden_layers
    passes = 2 * 2 * (body * tokens + head * rows) + 2 * (above * tokens + head * rows)
    closed_form = sum(
        4 * rows * rows * site.d_in + 2 * rows * site.d_in * site.d_out for site in sites
    )
    return float(passes + closed_form)


def _depth_above(model: PreTrainedModel, sites: Sequence[Site]) -> int:
    """Return the number of layers from the lowest site to the top."""
    depth = int(model.config.get_text_config().num_hidden_layers)
    numbers = [int(part) for site in sites for part in site.name.split(".") if part.isdigit()]
    return depth - min(numbers, default=0)


def _inner_size(config: Any) -> int:
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return int(inner or 4 * config.hidden_size)


def measure_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Time matrix products, ever larger ones until they keep the device busy."""
    size, seconds = 256, 0.0
    while seconds < 0.01 and size < 8192:
        size *= 2
        matrix = torch.randn(size, size, device=device).to(dtype)
        seconds = min(_product_seconds(matrix) for _ in range(3))
    return float(2 * size**3 / seconds)


def _product_seconds(matrix: torch.Tensor) -> float:
    start = time.perf_counter()
    float((matrix @ matrix)[0, 0])  # reading a number waits for the device
    return time.perf_counter() - start
