"""Recipes: settings that belong to a known model, one TOML file each.

A recipe is found by the model's shape, so that it also fits copies under another name.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

BENCHMARKS = ("zsre", "fever", "wikibigedit", "ultraeditbench", "unke")
"""The paper's benchmarks, by which recipes name sites."""


@dataclass(frozen=True)
class Recipe:
    """What is known to work for one model."""

    name: str
    shape: dict[str, Any]
    """Values of the model's configuration that tell it from others."""
    methods: dict[str, dict[str, Any]]
    """For each method its settings; `sites` maps the name of a benchmark to sites."""

    def sites(self, method: str, benchmark: str | None = None) -> str | None:
        """Return the sites for a benchmark, or the ones for any text."""
        table = self.methods.get(method, {}).get("sites", {})
        return table.get(benchmark or "default")

    def settings(self, method: str) -> dict[str, Any]:
        """Return the method's settings other than its sites."""
        return {key: value for key, value in self.methods.get(method, {}).items() if key != "sites"}


@cache
def all_recipes() -> tuple[Recipe, ...]:
    """Read every recipe that comes with the package."""
    found = []
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            name = file.name.removesuffix(".toml")
            found.append(Recipe(name, content.pop("shape"), content))
    return tuple(found)


def recipe_for(config: Any) -> Recipe | None:
    """Return the recipe whose shape a model's configuration has."""
    text = config.get_text_config()
    values = {**text.to_dict(), "model_type": config.model_type}
    values["num_hidden_layers"] = text.num_hidden_layers
    values["hidden_size"] = text.hidden_size
    for recipe in all_recipes():
        if all(values.get(key) == value for key, value in recipe.shape.items()):
            return recipe
    return None


def default_lr(config: Any) -> float:
    """Return a step for a model without a recipe.

    The paper's 1e-6 was chosen at widths of 3,584 and more, and narrower models need more. The
    power law is a guess that errs on the small side; `docs/method.md` shows it beside a better one.
    """
    width = max(1, config.get_text_config().hidden_size)
    return float(f"{1e-6 * max(1.0, 4096 / width) ** 2.3:.2g}")
