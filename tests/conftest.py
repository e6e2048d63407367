"""What the tests share: tiny models saved once a session, and edits as token ids."""

from __future__ import annotations

import os

# No test may reach for the network, and all compute where the recorded results were made.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_models import build_tiny, token_edits

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of a tiny model, saved when it is first asked for."""
    folders: dict[tuple[str, torch.dtype], Path] = {}

    def folder(name: str, dtype: torch.dtype = torch.float32) -> Path:
        key = name, dtype
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(f"{name}-{str(dtype).removeprefix('torch.')}")
            build_tiny(name, dtype).save_pretrained(folders[key])
        return folders[key]

    return folder


@pytest.fixture
def llama() -> Any:
    """Return a fresh tiny Llama."""
    return build_tiny("llama")


@pytest.fixture(scope="session")
def turns() -> list[list[Any]]:
    """Return three turns of six edits each."""
    return [token_edits(6, seed) for seed in (1, 2, 3)]
