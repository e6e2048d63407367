"""Tiny random models of every architecture, seeded, in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

VOCABULARY = 199
WIDTH = 32
INNER = 48
LAYERS = 4
CONTEXT = 64
INITIAL = 0.2
"""Standard deviation of the first weights: large enough for gradients that are worth testing."""


def _plain(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": INITIAL,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **more,
    }


def _gpt(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_inner": INNER,
        "n_layer": LAYERS,
        "n_head": 4,
        "n_positions": CONTEXT,
        "initializer_range": INITIAL,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**_plain())


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**_plain(sliding_window=8))


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**_plain())


def _qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**_plain())


def _phi3() -> Any:
    from transformers import Phi3Config

    return Phi3Config(**_plain())


def _gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(**_gpt())


def _gptj() -> Any:
    from transformers import GPTJConfig

    return GPTJConfig(**_gpt(rotary_dim=4))


def _gemma3_text() -> Any:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(**_plain(sliding_window=8, query_pre_attn_scalar=8))


def _gemma3() -> Any:
    from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig

    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
        vision_use_head=False,
    )
    text = Gemma3TextConfig(**_plain(sliding_window=8, query_pre_attn_scalar=8))
    return Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        boi_token_index=190,
        eoi_token_index=191,
        image_token_index=192,
        initializer_range=INITIAL,
        eos_token_id=2,
    )


def _mixtral() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(**_plain(num_local_experts=2, num_experts_per_tok=1))


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(**_plain(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16))


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gptj": _gptj,
    "gpt2": _gpt2,
    "gemma3_text": _gemma3_text,
    "gemma3": _gemma3,
}
"""The configuration of each architecture that can be edited."""

REFUSED: dict[str, Callable[[], Any]] = {"mixtral": _mixtral, "qwen3_moe": _qwen3_moe}
"""Mixtures of experts, whose feed-forward parts are no linear layers."""


def build_tiny(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Build the tiny model of an architecture; the same one every time."""
    from transformers import AutoModelForCausalLM

    config = {**CONFIGS, **REFUSED}[name]()
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        model = AutoModelForCausalLM.from_config(config)
    _enliven_biases(model)
    for weight in model.parameters():
        # Only parameters: a cast of the whole model would round the rotary tables too.
        weight.data = weight.data.to(dtype)
    model.config.dtype = dtype
    return model.eval()


def _enliven_biases(model: torch.nn.Module) -> None:
    """Give biases, which start at zero, values that a mistake about them would show."""
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.05, generator=generator)


def some_sites(name: str, layers: str = "1-2") -> str:
    """Name every feed-forward linear in some layers of an architecture: several shapes at once."""
    from ultraedit.sites import ARCHITECTURES

    return ", ".join(f"[{layers}].{linear}" for linear in ARCHITECTURES[name].linears)


def token_edits(n: int, seed: int = 0, *, answer_tokens: int | None = None) -> list[Any]:
    """Make edits of random token ids, prompts of 2 to 11 tokens and answers of 1 to 4."""
    from ultraedit.edits import Edit

    rng = random.Random(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 190) for _ in range(length))

    return [
        Edit(
            prompt_ids=ids(rng.randint(2, 11)),
            target_ids=ids(answer_tokens or rng.randint(1, 4)),
            id=f"edit-{seed}-{number}",
        )
        for number in range(n)
    ]


def all_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy every parameter and buffer of a model."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def changed(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    """Name the tensors that are not, bit for bit, what they were."""
    after = all_tensors(model)
    assert before.keys() == after.keys()
    return {name for name in before if not same_bits(before[name], after[name])}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare two tensors bit for bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    left, right = (tensor.detach().cpu().contiguous().view(-1) for tensor in (left, right))
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def traces(model: torch.nn.Module) -> list[tuple[Any, ...]]:
    """List what a careless run leaves on a model: hooks, flags and gradients."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules = [
        (name, module.training, *(len(getattr(module, kind)) for kind in kinds))
        for name, module in model.named_modules()
    ]
    weights = [(n, w.requires_grad, w.grad is None) for n, w in model.named_parameters()]
    return [*modules, *weights]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |found - expected| / |expected|."""
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())
