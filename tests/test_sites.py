"""Sites: how people name them, which are refused, and which are the defaults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tiny_models import CONFIGS, REFUSED, build_tiny
from ultraedit.editor import defaults_for
from ultraedit.errors import InputError
from ultraedit.recipes import all_recipes, recipe_for
from ultraedit.sites import (
    ARCHITECTURES,
    architecture_of,
    at_depth,
    default_notation,
    editable_sites,
    has_experts,
    resolve_sites,
)


def names(model: Any, wanted: str | list[str]) -> list[str]:
    return [site.name for site in resolve_sites(model, wanted)]


def layers(*parts: str) -> list[str]:
    return [f"model.layers.{part}_proj" for part in parts]


@pytest.fixture(scope="module")
def model() -> Any:
    return build_tiny("llama")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("[1-2].mlp.up_proj", layers("1.mlp.up", "2.mlp.up")),
        ("[1, 3].mlp.down_proj", layers("1.mlp.down", "3.mlp.down")),
        ("[1,3].mlp.down_proj", layers("1.mlp.down", "3.mlp.down")),
        ("[ 1 , 3 ].mlp.down_proj", layers("1.mlp.down", "3.mlp.down")),
        ("[0-1, 3].mlp.up_proj", layers("0.mlp.up", "1.mlp.up", "3.mlp.up")),
        ("[2].mlp.up_proj", layers("2.mlp.up")),
        ("[2-2].mlp.up_proj", layers("2.mlp.up")),
        ("[1].mlp.up_proj, [2, 3].mlp.down_proj", layers("1.mlp.up", "2.mlp.down", "3.mlp.down")),
        ("[1].mlp.*", layers("1.mlp.gate", "1.mlp.up", "1.mlp.down")),
        ("2.mlp.up_proj", layers("2.mlp.up")),
        ("model.layers.0.mlp.gate_proj", layers("0.mlp.gate")),
        ("layers.0.mlp.gate_proj", layers("0.mlp.gate")),
        ("*.mlp.down_proj", layers(*(f"{n}.mlp.down" for n in range(4)))),
        ("model.layers.3.*.q_proj", layers("3.self_attn.q")),
        (["[1].mlp.up_proj", "3.mlp.up_proj"], layers("1.mlp.up", "3.mlp.up")),
        ("[3].mlp.up_proj, [1].mlp.up_proj,", layers("1.mlp.up", "3.mlp.up")),
        ("[1-2].mlp.up_proj, [1].mlp.up_proj", layers("1.mlp.up", "2.mlp.up")),
    ],
)
def test_sites_are_named_in_the_papers_notation_by_glob_or_in_full(model, wanted, expected):
    assert names(model, wanted) == expected


def test_the_papers_own_list_with_a_space_in_the_brackets_is_read():
    # Thirty-one layers exist as a skeleton only: names are all that is asked for.
    from transformers import AutoModelForCausalLM

    config = CONFIGS["mistral"]()
    config.num_hidden_layers = 32
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    sites = resolve_sites(skeleton, "[29, 30].mlp.down_proj", planning=True)
    assert [site.name for site in sites] == layers("29.mlp.down", "30.mlp.down")


def test_layer_one_is_not_layer_eleven():
    from transformers import AutoModelForCausalLM

    config = CONFIGS["llama"]()
    config.num_hidden_layers = 12
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    sites = resolve_sites(skeleton, "[1].mlp.up_proj", planning=True)
    assert [site.name for site in sites] == layers("1.mlp.up")


@pytest.mark.parametrize("wanted", ["[3-1].mlp.up_proj", "[1-2-3].mlp.up_proj", "[1,,2].mlp.up"])
def test_a_bad_range_is_refused_with_an_example(model, wanted):
    with pytest.raises(InputError, match=r"no range of layers; write \[11-15\]"):
        names(model, wanted)


@pytest.mark.parametrize("wanted", ["[1-9].mlp.up_proj", "[1].mlp.upproj", "nothing", "[a].mlp.up"])
def test_an_unknown_site_names_one_that_exists(model, wanted):
    with pytest.raises(InputError, match=r"One that exists: model\.layers\.\d\.mlp\.down_proj"):
        names(model, wanted)


@pytest.mark.parametrize("wanted", ["", " , ", []])
def test_no_sites_at_all_are_refused(model, wanted):
    with pytest.raises(InputError, match="No sites were named"):
        names(model, wanted)


@pytest.mark.parametrize("wanted", ["lm_head", "model.embed_tokens", "model.layers.0.mlp"])
def test_what_is_no_editable_linear_is_refused_by_name(model, wanted):
    with pytest.raises(InputError, match=f"{wanted}.* cannot be edited"):
        names(model, wanted)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_architectures_linears_are_found_where_the_table_says(architecture):
    model = build_tiny(architecture)
    row = architecture_of(model)
    found = {site.name for site in editable_sites(model)}
    for layer in range(4):
        for linear in row.linears:
            assert f"{row.layers}.{layer}.{linear}" in found
    assert all(name.startswith(f"{row.layers}.") for name in found)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_sites_matrix_maps_inputs_to_outputs_however_it_is_stored(architecture):
    model = build_tiny(architecture)
    for site in editable_sites(model):
        rows = torch.randn(3, site.d_in)
        expected = rows @ site.matrix.T
        if site.module.bias is not None:
            expected = expected + site.module.bias
        torch.testing.assert_close(site.module(rows), expected)
        assert site.matrix.data_ptr() == site.weight.data_ptr()


def test_the_vision_tower_has_no_sites():
    model = build_tiny("gemma3")
    assert any("vision_tower" in name for name, _ in model.named_modules())
    assert not any("vision" in site.name for site in editable_sites(model))
    for wanted in ("*.fc1", "model.vision_tower.encoder.layers.0.mlp.fc1"):
        with pytest.raises(InputError, match="cannot be edited"):
            names(model, wanted)


@pytest.mark.parametrize("architecture", REFUSED)
def test_experts_are_refused_and_called_so(architecture):
    model = build_tiny(architecture)
    assert has_experts(model)
    with pytest.raises(InputError, match="mixture-of-experts"):
        names(model, "[1].mlp.gate_proj")
    with pytest.raises(InputError, match="cannot be edited"):
        names(model, "model.layers.1.mlp.experts")
    with pytest.raises(InputError, match="no default sites"):
        defaults_for(model.config, "ultraedit", None)
    assert not any("experts" in site.name.split(".") for site in editable_sites(model))


class Linear8bit(nn.Linear):
    """Looks like what quantisation libraries put in the place of a linear."""


def test_a_quantised_linear_is_refused_by_name(llama):
    quantised = Linear8bit(32, 48, bias=False)
    quantised.weight = nn.Parameter(torch.ones(48, 32, dtype=torch.int8), requires_grad=False)
    llama.model.layers[1].mlp.up_proj = quantised
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj is a Linear8bit holding torch"):
        names(llama, "[1-2].mlp.up_proj")
    assert "model.layers.1.mlp.up_proj" not in {site.name for site in editable_sites(llama)}


def test_a_plain_linear_with_integers_is_refused(llama):
    weight = nn.Parameter(torch.ones(48, 32, dtype=torch.int8), requires_grad=False)
    llama.model.layers[1].mlp.up_proj.weight = weight
    with pytest.raises(InputError, match=r"holding torch\.int8"):
        names(llama, "[1].mlp.up_proj")


def test_an_offloaded_weight_is_refused(llama):
    llama.model.layers[1].mlp.up_proj.to("meta")
    with pytest.raises(InputError, match="meta device"):
        names(llama, "[1-2].mlp.up_proj")
    assert len(resolve_sites(llama, "[1-2].mlp.up_proj", planning=True)) == 2


def test_a_weight_that_two_layers_share_is_refused(llama):
    llama.model.layers[2].mlp.up_proj.weight = llama.model.layers[1].mlp.up_proj.weight
    for wanted in ("[1].mlp.up_proj", "[2].mlp.up_proj", "[1-2].mlp.up_proj"):
        with pytest.raises(InputError, match="shares its weight with"):
            names(llama, wanted)


def test_a_model_outside_the_table_can_be_edited_when_its_sites_are_named():
    from transformers import AutoModelForCausalLM, OlmoConfig

    config = OlmoConfig(
        vocab_size=99,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = AutoModelForCausalLM.from_config(config)
    assert names(model, "[1].mlp.down_proj") == ["model.layers.1.mlp.down_proj"]
    with pytest.raises(InputError, match="'olmo' models have no default sites"):
        defaults_for(model.config, "ultraedit", None)


def paper_config(name: str) -> Any:
    """Build the configuration of one of the paper's six models, with its true sizes."""
    from transformers import (
        Gemma3Config,
        GPTJConfig,
        LlamaConfig,
        MistralConfig,
        Phi3Config,
        Qwen2Config,
    )

    def sizes(depth: int, width: int, inner: int) -> dict[str, int]:
        return {"num_hidden_layers": depth, "hidden_size": width, "intermediate_size": inner}

    return {
        "llama": lambda: LlamaConfig(**sizes(32, 4096, 14336)),
        "mistral": lambda: MistralConfig(**sizes(32, 4096, 14336)),
        "qwen2": lambda: Qwen2Config(**sizes(28, 3584, 18944)),
        "gptj": lambda: GPTJConfig(n_layer=28, n_embd=4096),
        "phi3": lambda: Phi3Config(**sizes(40, 5120, 17920)),
        "gemma3": lambda: Gemma3Config(text_config=sizes(62, 5376, 21504)),
    }[name]()


def both(where: str) -> str:
    return f"{where}.mlp.gate_proj, {where}.mlp.up_proj"


@pytest.mark.parametrize(
    ("name", "paper_benchmark", "expected"),
    [
        ("llama", None, "[11-15].mlp.gate_proj, [18-24].mlp.up_proj"),
        ("llama", "zsre", "[11-15].mlp.gate_proj, [18-24].mlp.up_proj"),
        ("llama", "fever", both("[22-30]")),
        ("mistral", None, "[29, 30].mlp.down_proj"),
        ("mistral", "fever", "[29, 30].mlp.down_proj"),
        ("qwen2", None, both("[18-26]")),
        ("qwen2", "wikibigedit", both("[19-26]")),
        ("gptj", None, "[18-26].mlp.fc_out"),
        ("gptj", "fever", "[25,26].mlp.fc_out"),
        ("gptj", "wikibigedit", "[19-26].mlp.fc_out"),
        ("phi3", None, "[30-38].mlp.down_proj"),
        ("gemma3", None, both("[52-60]")),
        ("gemma3", "ultraeditbench", both("[52-60]")),
    ],
)
def test_the_papers_models_have_the_papers_sites(name, paper_benchmark, expected):
    sites, settings = defaults_for(paper_config(name), "ultraedit", paper_benchmark)
    assert sites == expected
    assert settings["lr"] == 1e-6


def test_another_size_has_no_recipe_but_the_same_relative_place():
    from transformers import LlamaConfig, Qwen2Config

    small = LlamaConfig(num_hidden_layers=16, hidden_size=2048, intermediate_size=8192)
    assert recipe_for(small) is None
    sites, settings = defaults_for(small, "ultraedit", None)
    assert sites == "[5-7].mlp.gate_proj, [9-12].mlp.up_proj"
    assert settings["lr"] > 1e-6
    qwen = Qwen2Config(num_hidden_layers=64, hidden_size=5120, intermediate_size=27648)
    assert defaults_for(qwen, "ultraedit", None)[0] == both("[42-61]")


def test_named_sites_stand_whatever_the_recipe_says():
    wanted = "[1].mlp.up_proj"
    assert defaults_for(paper_config("llama"), "ultraedit", wanted)[0] == wanted


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 12, 40, 126])
@pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_default_sites_lie_inside_a_model_of_any_depth(row, depth):
    import re

    numbers = [int(number) for number in re.findall(r"\d+", at_depth(row, depth))]
    assert numbers
    assert all(0 <= number < depth for number in numbers)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_default_sites_exist_in_every_architecture(architecture):
    model = build_tiny(architecture)
    assert names(model, default_notation(model.config))


@pytest.mark.parametrize("recipe", all_recipes(), ids=lambda recipe: recipe.name)
def test_every_recipe_names_sites_that_its_model_has(recipe):
    from transformers import AutoModelForCausalLM

    config = CONFIGS[recipe.shape["model_type"]]()
    config.get_text_config().num_hidden_layers = recipe.shape["num_hidden_layers"]
    if getattr(config.get_text_config(), "layer_types", None) is not None:
        config.get_text_config().layer_types = ["full_attention"] * recipe.shape[
            "num_hidden_layers"
        ]
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    for method, settings in recipe.methods.items():
        assert recipe.sites(method)
        assert set(recipe.settings(method)) <= {"lr"}
        for wanted in settings["sites"].values():
            assert resolve_sites(skeleton, wanted, planning=True)


def test_every_recipe_is_found_by_its_models_shape():
    found = {recipe_for(paper_config(name)).name for name in ("llama", "mistral", "qwen2")}
    found |= {recipe_for(paper_config(name)).name for name in ("gptj", "phi3", "gemma3")}
    assert found == {recipe.name for recipe in all_recipes()}
