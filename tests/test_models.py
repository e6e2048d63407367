"""Loading and saving: nothing random, nothing pickled, nothing lost."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_models import all_tensors, build_tiny, changed, token_edits
from ultraedit.editor import Editor
from ultraedit.errors import InputError
from ultraedit.models import check_saved, load_config, load_model, load_skeleton, save_model


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """Return a copy of a saved Llama, free to be damaged."""
    return Path(shutil.copytree(saved("llama"), tmp_path / "model"))


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors in a model's file; None takes one out."""
    content = {**load_file(folder / "model.safetensors"), **tensors}
    content = {name: tensor for name, tensor in content.items() if tensor is not None}
    save_file(content, folder / "model.safetensors", metadata={"format": "pt"})


UP = "model.layers.1.mlp.up_proj.weight"


def test_a_saved_model_loads_as_it_was_without_a_tokenizer(folder):
    model, tokenizer = load_model(folder)
    assert tokenizer is None
    assert not model.training
    assert changed(all_tensors(build_tiny("llama")), model) == set()


def test_missing_weights_are_refused_by_name(folder):
    rewrite(folder, **{UP: None})
    with pytest.raises(InputError, match=rf"missing.*random.*{UP}"):
        load_model(folder)


def test_unexpected_weights_are_refused_by_name(folder):
    rewrite(folder, **{"model.layers.9.mlp.up_proj.weight": torch.ones(2, 2)})
    with pytest.raises(InputError, match=r"no place in the model: model\.layers\.9"):
        load_model(folder)


def test_weights_of_another_shape_are_refused(folder):
    rewrite(folder, **{UP: torch.ones(48, 31)})
    with pytest.raises(InputError, match=r"shape|size"):
        load_model(folder)


@pytest.mark.parametrize(
    ("architecture", "prefix"), [("gptj", "transformer.h.0.attn"), ("gpt2", "transformer.h.0.attn")]
)
def test_mask_tables_that_old_files_carry_are_no_reason_to_refuse(
    architecture, prefix, saved, tmp_path
):
    folder = Path(shutil.copytree(saved(architecture), tmp_path / "model"))
    rewrite(
        folder,
        **{
            f"{prefix}.bias": torch.ones(1, 1, 64, 64, dtype=torch.bool).tril(),
            f"{prefix}.masked_bias": torch.tensor(-1e9),
        },
    )
    model, _ = load_model(folder)
    assert changed(all_tensors(build_tiny(architecture)), model) == set()


def test_a_directory_with_pickles_only_is_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*safetensors only"):
        load_model(folder)


def test_a_directory_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds no weights"):
        load_model(folder)


def test_a_damaged_weight_file_is_refused_in_a_sentence(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(InputError, match=r"weights of .* cannot be loaded"):
        load_model(folder)


def test_a_directory_without_a_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_model(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "no-such-type"}'])
def test_a_damaged_config_is_refused_in_a_sentence(folder, content):
    (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"configuration of .* cannot be read"):
        load_model(folder)


def test_a_path_that_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="There is no directory"):
        load_model(tmp_path / "missing")


def test_a_file_is_refused_with_advice(folder):
    with pytest.raises(InputError, match="is a file; name the model's directory"):
        load_model(folder / "config.json")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_an_unknown_hub_id_fails_within_ten_seconds(offline, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    # A port where nobody listens stands in for a network that is not there.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"no directory nobody/no-such-model.*hub"):
        load_model("nobody/no-such-model")
    assert time.perf_counter() - start < 10


def test_a_name_too_long_for_a_path_is_refused_in_a_sentence():
    with pytest.raises(InputError):
        load_model("x" * 300)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_a_dtype_is_named_or_given(folder, name):
    for dtype in (name, getattr(torch, name)):
        model, _ = load_model(folder, dtype=dtype)
        assert model.dtype == getattr(torch, name)


def test_auto_keeps_the_dtype_of_the_files(saved):
    assert load_model(saved("llama", torch.bfloat16))[0].dtype == torch.bfloat16
    assert load_model(saved("llama"))[0].dtype == torch.float32


@pytest.mark.parametrize("name", ["float31", "int8", "nn", ""])
def test_an_unknown_dtype_is_refused_with_the_known_ones(folder, name):
    with pytest.raises(InputError, match="bfloat16"):
        load_model(folder, dtype=name)


def test_an_unknown_device_is_refused_by_name(folder):
    with pytest.raises(InputError, match="'nowhere'"):
        load_model(folder, device="nowhere")


def test_encoder_decoders_and_quantised_models_are_refused(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for more, reason in (
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **more}), encoding="utf-8")
        with pytest.raises(InputError, match=reason):
            load_config(folder)


def test_a_skeleton_has_every_shape_and_no_weight(folder):
    skeleton = load_skeleton(folder)
    assert all(weight.is_meta for weight in skeleton.parameters())
    shapes = {name: weight.shape for name, weight in skeleton.named_parameters()}
    assert shapes == {n: weight.shape for n, weight in build_tiny("llama").named_parameters()}


def test_a_saved_directory_has_what_the_source_had_and_one_set_of_weights(folder, tmp_path):
    for name in ("preprocessor_config.json", "README.md", "special.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    for name in ("pytorch_model.bin", "optimizer.pt", ".hidden"):
        (folder / name).write_bytes(b"")
    (folder / "model.safetensors.index.json").unlink()
    editor = Editor.load(folder, lr=1e-3)
    editor.apply(token_edits(3))
    editor.save(tmp_path / "out")
    found = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"preprocessor_config.json", "README.md", "special.json", "config.json"} <= found
    assert not found & {"pytorch_model.bin", "optimizer.pt", ".hidden"}
    assert {name for name in found if name.endswith(".safetensors")} == {"model.safetensors"}
    assert not any(file.name.endswith(".index.json") for file in (tmp_path / "out").iterdir())


def test_a_model_that_was_never_a_directory_takes_no_strangers_along(llama, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "here" / "private.txt").write_text("not the model's", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    save_model(llama, tmp_path / "out")
    assert not (tmp_path / "out" / "private.txt").exists()


def test_a_generation_config_that_its_library_calls_invalid_is_kept(folder, tmp_path):
    content = {"temperature": 0.6, "top_p": 0.9, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")
    model, _ = load_model(folder)
    (tmp_path / "out").mkdir()
    save_model(model, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text(encoding="utf-8"))
    assert written["temperature"] == 0.6
    assert model.generation_config is not None


def test_a_weight_that_reads_back_differently_is_noticed(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    check_saved(llama, tmp_path)
    with torch.no_grad():
        llama.get_submodule("model.layers.1.mlp.up_proj").weight[0, 0] += 1e-6
    with pytest.raises(OSError, match=UP):
        check_saved(llama, tmp_path)


def test_zeros_of_either_sign_are_told_apart_and_nan_is_equal_to_itself(llama, tmp_path):
    weight = llama.get_submodule("model.layers.1.mlp.up_proj").weight
    with torch.no_grad():
        weight[0, 0], weight[0, 1] = torch.nan, 0.0
    llama.save_pretrained(tmp_path)
    check_saved(llama, tmp_path)
    with torch.no_grad():
        weight[0, 1] = -0.0
    with pytest.raises(OSError, match=UP):
        check_saved(llama, tmp_path)


def test_a_model_with_layers_on_disk_can_be_edited_and_saved(folder, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    parts = ["embed_tokens", "norm", "rotary_emb", *(f"layers.{n}" for n in range(4))]
    places = {"lm_head": "cpu", **{f"model.{part}": "cpu" for part in parts}}
    editor = Editor.load(
        folder,
        device_map={**places, "model.layers.0": "disk"},
        sites="[1-2].mlp.up_proj",
        lr=1e-3,
    )
    assert editor.apply(token_edits(3)).moved
    editor.save(tmp_path / "out")
    whole, _ = load_model(tmp_path / "out")
    expected = {f"{site.name}.weight" for site in editor.sites}
    assert changed(all_tensors(build_tiny("llama")), whole) == expected


def test_auto_is_what_the_files_hold_whatever_the_configuration_says(saved, tmp_path):
    shutil.copytree(saved("llama"), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "bfloat16"}))
    model, _ = load_model(tmp_path / "model")
    assert model.dtype == torch.float32


def test_a_device_and_a_map_together_are_refused(saved):
    with pytest.raises(InputError, match="not both"):
        load_model(saved("llama"), device="cpu", device_map="auto")


def test_a_loaded_model_asks_for_no_gradients(saved):
    model, _ = load_model(saved("llama"))
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
