"""A small generated world of facts, and a model trained on it in a minute: something to edit."""

from ultraedit.world.facts import Fact, counterfactual_edits, sentences, world_facts

__all__ = ["DEMO_LR", "DEMO_SITES", "Fact", "counterfactual_edits", "sentences", "world_facts"]

DEMO_SITES = "[0].mlp.gate_proj, [1].mlp.up_proj"
"""The sites at which the world's model is edited best."""

DEMO_LR = 1.2e-3
"""The `lr` that goes with them."""
