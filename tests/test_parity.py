"""The published implementation's results on a tiny model, site by site and turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tiny_models import relative_error
from ultraedit.editor import Editor
from ultraedit.edits import Edit

GOLDEN = Path(__file__).parent / "golden"

VARIANTS = {
    "authors": (
        "float32",
        {"statistics": "authors", "pool": "shape", "micro_batch_edits": 4},
        1e-3,
    ),
    "paper_shape": ("float64", {"statistics": "exact", "pool": "shape"}, 1e-6),
    "paper_module": ("float64", {"statistics": "exact", "pool": "module"}, 1e-6),
}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "turns.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "expected.safetensors")


def as_edits(turn: list[dict[str, Any]]) -> list[Edit]:
    return [Edit(prompt_ids=row["prompt"], target_ids=row["answer"]) for row in turn]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_weights_follow_the_published_results_turn_by_turn(variant, golden, expected):
    dtype, settings, tolerance = VARIANTS[variant]
    editor = Editor.load(
        GOLDEN / "model", dtype=dtype, sites=golden["modules"], lr=golden["eta"], **settings
    )
    assert [site.name for site in editor.sites] == golden["modules"]
    base = {site.name: site.matrix.clone() for site in editor.sites}
    for number, turn in enumerate(golden["turns"]):
        assert len(turn) == golden["edits_per_turn"]
        editor.apply(as_edits(turn), measure=False)
        for site in editor.sites:
            change = site.matrix - base[site.name]
            wanted = expected[f"{variant}/turn{number}/{site.name}"].double()
            assert relative_error(change, wanted - base[site.name].double()) <= tolerance


def test_the_authors_statistics_follow_the_published_ones(golden, expected):
    dtype, settings, tolerance = VARIANTS["authors"]
    assert settings["micro_batch_edits"] == golden["micro_batch"]
    editor = Editor.load(
        GOLDEN / "model", dtype=dtype, sites=golden["modules"], lr=golden["eta"], **settings
    )
    for turn in golden["turns"]:
        editor.apply(as_edits(turn), measure=False)
    state = editor.method.state_dict()
    for d_in, d_out in ((32, 88), (88, 32)):
        group = f"{d_in}x{d_out}"
        published = f"authors/stats/({d_in}, {d_out})"
        count = int(state[f"{group}.count"])
        deviation = (state[f"{group}.squares"] / (count - 1)).sqrt()
        assert count == int(expected[f"{published}/n"])
        assert relative_error(state[f"{group}.mean"], expected[f"{published}/mean"]) <= tolerance
        assert relative_error(deviation, expected[f"{published}/std"]) <= tolerance
