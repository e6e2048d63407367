"""What a model writes by itself: greedy, batched by length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ultraedit.capture import frozen, input_device

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

Ids = tuple[int, ...]

_BUCKET = 8
"""Prompts whose lengths differ by less than this may share a batch."""


@torch.no_grad()
def generate(
    model: PreTrainedModel, prompts: Sequence[Ids], lengths: Sequence[int], *, max_tokens: int
) -> list[Ids]:
    """Continue each prompt by at most its length of new tokens, always taking the likeliest.

    Prompts of about one length share a batch; the shorter ones are padded on the left.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        key = _rounded(len(prompt)), _rounded(length)
        # Near the end of the context a neighbour's length would lead past it.
        fits = context is None or sum(key) <= context
        buckets[key if fits else (len(prompt), length)].append(number)
    written: dict[int, Ids] = {}
    with frozen(model):
        for (width, length), numbers in buckets.items():
            size = max(1, max_tokens // (width + length))
            for start in range(0, len(numbers), size):
                chosen = numbers[start : start + size]
                longest = max(lengths[number] for number in chosen)
                texts = _continue(model, [prompts[number] for number in chosen], longest)
                written.update(zip(chosen, texts, strict=True))
    return [written[number][: lengths[number]] for number in range(len(prompts))]


def _rounded(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET


def _continue(model: PreTrainedModel, prompts: Sequence[Ids], length: int) -> list[Ids]:
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    device = input_device(model)
    padded = [(0,) * (width - len(prompt)) + prompt for prompt in prompts]
    ids = torch.tensor(padded, device=device)  # (b, t)
    starts = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
    mask = (torch.arange(width, device=device) >= starts[:, None]).long()  # (b, t)
    ends = _end_ids(model)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=length,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    with _plain_generation(model, config):
        output = model.generate(ids, attention_mask=mask, generation_config=config)
    return [_until_end(row, ends) for row in output[:, width:].tolist()]


def _end_ids(model: PreTrainedModel) -> list[int]:
    config = getattr(model, "generation_config", None)
    ends = getattr(config, "eos_token_id", None)
    if ends is None:
        ends = getattr(model.config.get_text_config(), "eos_token_id", None)
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def _until_end(ids: list[int], ends: list[int]) -> Ids:
    stop = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[:stop])


@contextmanager
def _plain_generation(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Put the model's own generation settings aside: its sampling and penalties are not greedy."""
    own = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own
