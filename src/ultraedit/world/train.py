"""Train a small language model on the world, from nothing, on a CPU."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ultraedit.world.facts import Fact, sentences, world_facts

_END = "<|endoftext|>"
_VOCABULARY = 1200
_CONTEXT = 64
_BATCH = 64
_EPOCHS = 7
_PEAK_LR = 1e-3


def train_world_model(
    folder: Path,
    *,
    seed: int = 0,
    facts: Sequence[Fact] | None = None,
    epochs: int = _EPOCHS,
    on_step: Callable[[int, int, float], None] = lambda step, n_steps, loss: None,
) -> None:
    """Train tokenizer and model on `facts`, the world's own unless given, and save both.

    `on_step` sees each step's number, the number of steps, and the loss.
    """
    pairs = sentences(world_facts(seed) if facts is None else facts)
    tokenizer = build_tokenizer(f"{prompt} {answer}" for prompt, answer in pairs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build_model(tokenizer)
    batches = _batches(_encode(tokenizer, pairs), epochs, random.Random(seed))
    _train(model, batches, on_step)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer made for some texts: a word carries the space before it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, model_max_length=_CONTEXT
    )


def _build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    # Wide, with large first weights: of the few shapes tried, this learned fast and edited best.
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=2048,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.05,
        max_position_embeddings=_CONTEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _encode(
    tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], int]]:
    """Return the ids of each sentence with its end, and where its answer starts."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    answers = tokenizer([f" {answer}{_END}" for _, answer in pairs])["input_ids"]
    return [(p + a, len(p)) for p, a in zip(prompts, answers, strict=True)]


def _batches(
    examples: Sequence[tuple[list[int], int]], epochs: int, rng: random.Random
) -> list[tuple[Tensor, Tensor]]:
    """Return ids and labels of all steps; only sentences of one length share a batch."""
    buckets: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
    for example in examples:
        buckets[len(example[0])].append(example)
    steps = []
    for _ in range(epochs):
        epoch = []
        for bucket in buckets.values():
            rng.shuffle(bucket)
            epoch += [bucket[i : i + _BATCH] for i in range(0, len(bucket), _BATCH)]
        rng.shuffle(epoch)
        steps += epoch
    return [_tensors(batch) for batch in steps]


def _tensors(batch: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([ids for ids, _ in batch])  # (b, t)
    starts = torch.tensor([[start] for _, start in batch])  # (b, 1)
    labels = ids.masked_fill(torch.arange(ids.shape[1]) < starts, -100)  # (b, t)
    return ids, labels


def _train(
    model: LlamaForCausalLM,
    batches: Sequence[tuple[Tensor, Tensor]],
    on_step: Callable[[int, int, float], None],
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_LR, weight_decay=0.01)
    schedule = OneCycleLR(optimizer, max_lr=_PEAK_LR, total_steps=len(batches) + 1, pct_start=0.1)
    model.train()
    for step, (ids, labels) in enumerate(batches, 1):
        logits = model(ids, use_cache=False).logits[:, :-1]  # (b, t - 1, vocabulary)
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        on_step(step, len(batches), loss.item())
    model.eval()
