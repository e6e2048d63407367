"""Compare what `ultraedit plan` estimates with what turns take, at a model's true shape.

    python benchmarks/plan_check.py --shape mistral-7b --turns 5 --json result.json

The weights are random, made on the device; the edits have UltraEditBench's average lengths.
"""

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from ultraedit import Edit, Editor
from ultraedit.models import best_device
from ultraedit.plan import ROWS_PER_EDIT, TOKENS_PER_EDIT, Workload, estimate, measure_flops
from ultraedit.receipt import origin

SHAPES: dict[str, Any] = {
    "mistral-7b": MistralConfig(
        vocab_size=32768,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
    "llama-3-8b": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
    "qwen2.5-0.5b": Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "llama-40m": LlamaConfig(
        vocab_size=16000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
    ),
}


def main() -> None:
    """Build, edit, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    device = best_device()
    model = build(options.shape, dtype, device)
    editor = Editor(model)
    work = Workload(100, dtype=dtype, flops=measure_flops(device, dtype))
    plan = estimate(model, editor.sites, work)
    measured = measure(editor, options.turns, device)
    result = {
        "shape": options.shape,
        "dtype": options.dtype,
        "tflops": work.flops / 1e12,
        "planned_seconds": plan.seconds_per_turn,
        "planned_over_weights": plan.masters + plan.turn,
        **measured,
        "origin": origin(),
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def build(shape: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Make a model of that shape with random weights, on the device."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype).eval()


def measure(editor: Editor, turns: int, device: torch.device) -> dict[str, Any]:
    """Apply turns of 100 edits; the first warms up and is not counted."""
    draw = random.Random(0)
    seconds = []
    weights = _allocated(device)
    for number in range(turns + 1):
        edits = [_edit(draw, editor.encoder.vocabulary) for _ in range(100)]
        receipt = editor.apply(edits)
        if number:
            seconds.append(receipt.seconds)
    return {
        "seconds": statistics.median(seconds),
        "spread": max(seconds) - min(seconds),
        "over_weights": _peak(device) - weights + _masters(editor) if weights else None,
    }


def _edit(draw: random.Random, vocabulary: int) -> Edit:
    answer = draw.randint(1, round(2 * ROWS_PER_EDIT) - 1)
    prompt = draw.randint(8, round(2 * (TOKENS_PER_EDIT - ROWS_PER_EDIT)) - 8)
    ids = [draw.randrange(vocabulary) for _ in range(prompt + answer)]
    return Edit(prompt_ids=tuple(ids[:prompt]), target_ids=tuple(ids[prompt:]))


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def _masters(editor: Editor) -> int:
    half = editor.model.dtype.itemsize < 4
    return sum(4 * site.weight.numel() for site in editor.sites) if half else 0


if __name__ == "__main__":
    main()
