"""Load and save models: no pickle, no silently missing weights, no network by accident."""

from __future__ import annotations

import math
import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ultraedit.errors import InputError
from ultraedit.files import OWN_FOLDER

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
_WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".gguf",
    ".onnx",
)
_MAX_SHARD = "5GB"
_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_MAX_COMPANION_BYTES = 64 << 20
"""Larger files beside a model's weights are not taken along."""
_MASK_BUFFERS = re.compile(r"\.(attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
"""Constants that old files of GPT-2, GPT-J and Llama carry beside the weights."""


def load_model(
    source: str | Path,
    *,
    dtype: str | torch.dtype | None = "auto",
    device: str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a causal language model and its tokenizer, if it has one, from a directory or hub id.

    It comes in evaluation mode, and no parameter of it requires a gradient.
    """
    from transformers import AutoModelForCausalLM

    if device is not None and device_map is not None:
        raise InputError("Give a device or a device map, not both.")
    config = load_config(source, trust_remote_code=trust_remote_code)
    _refuse_pickles(source)
    with quiet(), _sentences(f"The weights of {source} cannot be loaded"):
        model, info = AutoModelForCausalLM.from_pretrained(
            str(source),
            config=config,
            dtype=torch_dtype(dtype, stored_in=Path(source)),
            device_map=device_map,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused in our words
            output_loading_info=True,
        )
    _refuse_incomplete(source, info)
    if device_map is None:
        model.to(best_device(device))
    model.requires_grad_(False).eval()
    return model, load_tokenizer(source, trust_remote_code=trust_remote_code)


def load_config(source: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Read a model's configuration; a wrong name is refused at once, without retries."""
    from transformers import AutoConfig

    _check_source(source)
    with quiet(), _sentences(f"The configuration of {source} cannot be read"):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{source} is an encoder-decoder model; causal language models can be edited."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            f"{source} is quantised, and quantised weights cannot be edited. Edit the original in "
            "bfloat16 or float32 and quantise the result."
        )
    return config


def load_skeleton(source: str | Path, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Build a model's structure from its configuration alone: every shape, no weight."""
    from transformers import AutoModelForCausalLM

    config = load_config(source, trust_remote_code=trust_remote_code)
    with quiet(), _sentences(f"{source} is not a causal language model"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def load_tokenizer(
    source: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """Load a tokenizer, or return None where there is none."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    with quiet(), _sentences(f"The tokenizer of {source} cannot be loaded"):
        return AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code)


def torch_dtype(
    name: str | torch.dtype | None, *, stored_in: Path | None = None
) -> str | torch.dtype:
    """Return the type of a name; `auto` is the one most weights in a folder are stored in."""
    if isinstance(name, torch.dtype):
        return name
    if name is None or name == "auto":
        return _stored_dtype(stored_in) or "auto" if stored_in else "auto"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            f"There is no dtype {name!r}; use auto, float32, bfloat16, float16, float64."
        )
    return dtype


def loading_dtype(source: str | Path, dtype: str, skeleton: PreTrainedModel) -> torch.dtype:
    """Return the type a model's weights will have once they are loaded."""
    found = torch_dtype(dtype, stored_in=Path(source))
    if isinstance(found, torch.dtype):
        return found
    return skeleton.config.dtype or skeleton.dtype


def best_device(name: str | None = None) -> torch.device:
    """Return the named device, or an accelerator where there is one."""
    if name is None:
        # A build for an accelerator names it even on a machine that has none.
        found = torch.accelerator.is_available() and torch.accelerator.current_accelerator()
        return found or torch.empty(0).device
    try:
        probe = torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"The device {name!r} cannot be used: {_first_line(error)}") from error
    if probe.is_meta:
        raise InputError(f"The device {name!r} holds no numbers; nothing can be computed there.")
    return probe.device


def _stored_dtype(folder: Path) -> torch.dtype | None:
    """Return the type that most bytes of a folder's weights have; the configuration may differ."""
    from safetensors import safe_open

    sizes: Counter[torch.dtype] = Counter()
    for file in folder.glob("*.safetensors"):
        reading = _sentences(f"The weights of {folder} cannot be loaded")
        with reading, safe_open(file, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118 - the reader is no mapping
                part = weights.get_slice(key)
                dtype = _SAFETENSORS_DTYPES.get(part.get_dtype())
                if dtype is not None:
                    sizes[dtype] += math.prod(part.get_shape()) * dtype.itemsize
    return sizes.most_common(1)[0][0] if sizes else None


def local_folder(model: PreTrainedModel) -> Path | None:
    """Return the folder a model was loaded from, if it was loaded from one."""
    name = model.config._name_or_path
    return Path(name).resolve() if name and Path(name).is_dir() else None


def save_model(model: PreTrainedModel, folder: Path, source: Path | None = None) -> None:
    """Write an ordinary model directory, with what its source had beside the weights."""
    with quiet(), _lenient_generation_config(model, folder), disk_errors():
        model.save_pretrained(folder, max_shard_size=_MAX_SHARD)
    if source is not None and source.is_dir():
        for file in source.iterdir():
            if _belongs_along(file) and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Call a full or broken disk what it is: safetensors has an exception of its own for it."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"The weights could not be written: {_first_line(error)}") from error


def save_tokenizer(tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write a tokenizer where its files were not copied already."""
    if tokenizer is not None and not any((folder / name).exists() for name in _TOKENIZER_FILES):
        tokenizer.save_pretrained(folder)


def check_saved(model: PreTrainedModel, folder: Path) -> None:
    """Load what was written with plain transformers and compare every weight, bit for bit."""
    from transformers import AutoModelForCausalLM

    with quiet():
        loaded, info = AutoModelForCausalLM.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True
        )
    _refuse_incomplete(folder, info)
    written = dict(loaded.named_parameters())
    for name, weight in model.named_parameters():
        other = written.get(name)
        if weight.is_meta:
            continue  # offloaded to disk: never edited, and not here to compare with
        if other is not None and other.dtype != weight.dtype:
            raise InputError(
                f"{name} is {weight.dtype} in memory, but a saved model has one type for all "
                f"({other.dtype}); convert the model to one type before editing it."
            )
        if other is None or not _same_bits(weight, other):
            raise OSError(
                f"{name} reads back differently from how it was written; the disk or its driver "
                "cannot be trusted, and nothing was kept."
            )


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[left.element_size()]
    left, right = (tensor.detach().cpu().contiguous().view(integers) for tensor in (left, right))
    return torch.equal(left, right)


def _check_source(source: str | Path) -> None:
    """Refuse a model that is not there; a hub id is looked up in the cache, then on the hub."""
    try:
        is_folder, exists = Path(source).is_dir(), Path(source).exists()
    except (OSError, ValueError) as error:
        raise InputError(
            f"There is no model of that name: {str(source)[:80]} ({error})."
        ) from error
    if is_folder:
        if not (Path(source) / "config.json").is_file():
            raise InputError(f"{source} has no config.json: it is no Hugging Face model directory.")
        return
    if exists:
        raise InputError(f"{source} is a file; name the model's directory.")
    if not _HUB_ID.fullmatch(str(source)):
        raise InputError(f"There is no directory {source}.")
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if isinstance(try_to_load_from_cache(str(source), "config.json"), str):
            return
        HfApi().model_info(str(source), timeout=5)
    except Exception as error:
        raise InputError(
            f"There is no directory {source}, and no model of that name could be found on the hub "
            f"({_first_line(error)})."
        ) from error


def _refuse_pickles(source: str | Path) -> None:
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        names = [file.name for file in folder.iterdir() if file.suffix in _WEIGHT_SUFFIXES]
        raise InputError(
            f"{source} holds {names[0]}, but weights are read from safetensors only; convert it."
            if names
            else f"{source} holds no weights (*.safetensors)."
        )


def _refuse_incomplete(source: str | Path, info: dict[str, Any]) -> None:
    for kind, what in (
        ("missing_keys", "weights are missing and would be random"),
        ("mismatched_keys", "weights have another shape than the configuration says"),
        ("unexpected_keys", "weights in the files have no place in the model"),
        ("error_msgs", "errors occurred while loading"),
    ):
        found = sorted(_key_name(key) for key in info.get(kind) or ())
        if kind == "unexpected_keys":
            found = [name for name in found if not _MASK_BUFFERS.search(name)]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise InputError(f"{source}: {what}: {', '.join(found[:3])}{more}. It was not loaded.")


def _key_name(key: object) -> str:
    """Return the name in an entry; entries about shapes carry the two shapes as well."""
    if isinstance(key, tuple):
        name, *shapes = key
        return f"{name} ({' against '.join(str(tuple(shape)) for shape in shapes)})"
    return str(key)


def _belongs_along(file: Path) -> bool:
    is_weight = file.suffix in _WEIGHT_SUFFIXES or file.name.endswith(".index.json")
    if is_weight or file.name.startswith(".") or file.name == OWN_FOLDER or not file.is_file():
        return False
    if not os.access(file, os.R_OK):
        return False
    return file.stat().st_size <= _MAX_COMPANION_BYTES


@contextmanager
def _lenient_generation_config(model: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Save a generation config as it is, even where its own library calls it invalid."""
    from transformers import GenerationConfig

    config = getattr(model, "generation_config", None)
    try:
        if config is not None:
            config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        if config is not None and model.generation_config is not config:
            model.generation_config = config
            config.to_json_file(folder / "generation_config.json")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own bars and warnings off the screen."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _sentences(failure: str) -> Iterator[None]:
    """Turn whatever a library raises about a bad file into one sentence."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(f"{failure}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
