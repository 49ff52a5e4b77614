"""A model from what people have: a folder, a file of weights, a GGUF file, a hub id, a name, or nothing.

Nothing is fetched unless a hub id was given, no code that comes with a model runs unless that was asked for, and
pickles are read by torch's restricted reader alone. A model is whole or refused: weights that its configuration asks
for and the files do not have would be random numbers, and every number read off such a model quietly wrong.

>>> load_model("no/such/folder")
Traceback (most recent call last):
    ...
bulkedge.support.errors.DomainError: model = 'no/such/folder' is neither a file or folder here, nor a name of
['minilm'], nor a hub id, which has the form organisation/name
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bulkedge.models.circuits.checkpoints import INDEX_OF, require_regular, shards_of, weight_files
from bulkedge.models.loading.default import NAME, default_model
from bulkedge.models.loading.packaged import MODELS, packaged_model, quiet_transformers
from bulkedge.support.domains import PATH, Choice, shown, takes
from bulkedge.support.errors import DomainError, MissingPackageError, StoreError, need

DTYPES = ("float64", "float32", "bfloat16", "float16")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SAFE, PICKLED, GGUF = (".safetensors",), (".bin", ".pt", ".pth", ".ckpt"), (".gguf",)  # endings of files with weights
WRAPPERS = ("state_dict", "model_state_dict", "model")  # entries of checkpoints that hold the weights
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files of which a folder with a tokenizer has one."""


@takes(name=PATH)
def load_model(
    name: str | os.PathLike[str] | None = None,
    *,
    trust_remote_code: bool = False,
    device: Any = None,
    dtype: Any = None,
) -> tuple[Any, Any, str]:
    """A model in evaluation mode, its tokenizer where it has one, and its title.

    Parameters
    ----------
    name : str or path, optional
        Nothing or ``""``: the default model, trained here (:func:`bulkedge.models.default_model`). Else the first of
        these that fits: a name of :data:`bulkedge.models.MODELS`; a folder in the layout of ``save_pretrained``; a file
        of weights (``.safetensors``, or a ``.bin`` or ``.pt`` of tensors alone) with ``config.json`` beside it; a
        ``.gguf`` file; the id of a model on the Hugging Face hub, ``organisation/name``, which is fetched unless it is
        in the cache, and never when ``HF_HUB_OFFLINE`` is set.
    trust_remote_code : bool
        Whether code that comes with the model may run. Leave it unless you have read that code.
    device : str or torch.device, optional
        Where to put the model; the CPU unless given. ``"auto"`` spreads it over all devices, which needs accelerate.
    dtype : str or torch.dtype, optional
        Precision of the weights, one of ``float64``, ``float32``, ``bfloat16``, ``float16``; as they were saved unless
        given.

    Returns
    -------
    model : transformers.PreTrainedModel
        Of the class that its configuration names; decoders that name their stem alone come with the head that predicts,
        so that they have a loss, if that shares its weights with the embedding.
    tokenizer : transformers.PreTrainedTokenizerBase or None
        None where the files have none.
    title : str
        What to call the model: its folder, its file or its id.

    Raises
    ------
    DomainError
        If the name is none of these, or the model asks for code of its own.
    MissingPackageError
        If a package is not installed; the message has the command that installs it.
    StoreError
        If files are missing, damaged or unsafe, or if weights do not fit the configuration.

    Examples
    --------
    >>> model, tokenizer, name = load_model("minilm")                # doctest: +SKIP
    """
    trust_remote_code = Choice((False, True)).check("trust_remote_code", trust_remote_code)
    text = "" if name is None else os.fspath(name)
    path = Path(text).expanduser()
    hub = HUB_ID.fullmatch(text) is not None and path.suffix not in SAFE + PICKLED + GGUF
    if not (text in ("", *MODELS) or path.exists() or hub):
        near = "".join(f"; did you mean {each}?" for each in get_close_matches(text, MODELS, 1))
        raise DomainError(
            f"model = {shown(text)} is neither a file or folder here, nor a name of {sorted(MODELS)}, nor a hub id,"
            f" which has the form organisation/name{near}"
        )
    need("loading a model", "torch", "transformers")
    if isinstance(device, str) and device == "auto":
        need('device = "auto"', "accelerate", install="accelerate")
    target = _target(device, dtype)
    if text in ("", *MODELS):
        model, tokenizer = packaged_model(text) if text else default_model()
        return _move(model, target), tokenizer, text or NAME
    loading = {"trust_remote_code": trust_remote_code}
    with quiet_transformers(), _clear_errors(text):
        if path.exists():
            require_regular(path)
            title = path.resolve().name if path.is_dir() else path.stem
            return (*_from_disk(path, loading, target), title)
        return (*_from_hub(text, loading, target), text)


def _target(device: Any, dtype: Any) -> dict[str, Any]:
    """Keywords of ``from_pretrained`` for precision and device; a single device is moved to afterwards."""
    import torch

    name = str(dtype).removeprefix("torch.")
    dtype = "auto" if dtype is None else getattr(torch, Choice(DTYPES).check("dtype", name))
    if device is None or (isinstance(device, str) and device == "auto"):
        return {"dtype": dtype, "device_map": device}
    return {"dtype": dtype, "device_map": None, "device": device_of(device)}


def device_of(device: Any) -> Any:
    """The device of that name."""
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise DomainError(f"device = {shown(device)} is none that torch knows: {_first_line(error)}") from None


def _move(model: Any, target: Mapping[str, Any]) -> Any:
    """The model moved to where it was asked for, if it was."""
    dtype = None if target["dtype"] == "auto" else target["dtype"]
    try:
        moved = {"device": target.get("device"), "dtype": dtype}
        return model.to(**{key: value for key, value in moved.items() if value is not None}).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        raise DomainError(f"device = {shown(str(target.get('device')))} cannot be used: {_first_line(error)}") from None


def _from_disk(path: Path, loading: dict[str, Any], target: dict[str, Any]) -> tuple[Any, Any]:
    """A folder, or one file of weights: GGUF has its own configuration, others have it beside them."""
    from transformers import AutoConfig, AutoTokenizer

    if not path.is_dir() and path.suffix in GGUF:
        return _from_gguf(path, loading, target)
    if not path.is_dir() and path.suffix not in SAFE + PICKLED:
        raise DomainError(f"model = {shown(str(path))} ends in none of {', '.join(SAFE + PICKLED + GGUF)}")
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise StoreError(f"{folder} has no config.json, which says what the weights mean: save_pretrained writes it")
    config = _check_code(AutoConfig.from_pretrained(folder, local_files_only=True, **loading), loading)
    if path.is_dir():
        weight_files(folder)  # transformers follows an index wherever it leads
        model = _build(config, loading, target, folder, local_files_only=True)
    else:
        model = _build(config, loading, target, None, state_dict=_weights(path))
    known = any((folder / name).is_file() for name in TOKENIZERS)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True, **loading) if known else None


def _from_gguf(path: Path, loading: dict[str, Any], target: dict[str, Any]) -> tuple[Any, Any]:
    """Transformers always wants accelerate for these, and gguf for what its own reader does not know."""
    need("a GGUF file", "accelerate", install="gguf accelerate")
    try:
        return _from_repository(str(path.parent), loading | {"gguf_file": path.name, "local_files_only": True}, target)
    except ImportError:
        need(f"{path.name}, a GGUF file,", "gguf", install="gguf accelerate")
        raise


def _from_hub(name: str, loading: dict[str, Any], target: dict[str, Any]) -> tuple[Any, Any]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for index in INDEX_OF.values():
        with suppress(EntryNotFoundError):
            shards_of(Path(hf_hub_download(name, index, local_files_only=_offline())))
    return _from_repository(name, loading | {"local_files_only": _offline()}, target)


def _from_repository(source: str, loading: dict[str, Any], target: dict[str, Any]) -> tuple[Any, Any]:
    """Configuration, weights and tokenizer from a place that transformers reads as a whole."""
    from transformers import AutoConfig, AutoTokenizer

    config = _check_code(AutoConfig.from_pretrained(source, **loading), loading)
    where = {key: value for key, value in loading.items() if key != "trust_remote_code"}
    model = _build(config, loading, target, source, **where)
    try:
        return model, AutoTokenizer.from_pretrained(source, **loading)
    except (OSError, ValueError):  # a model of images, say, has none
        return model, None


def _check_code(config: Any, loading: Mapping[str, Any]) -> Any:
    """The configuration, unless it asks for an attention of somebody's repository, which is code as well."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    wanted = {str(getattr(part, "_attn_implementation", None)) for part in parts}
    foreign = sorted(each for each in wanted if "/" in each)
    if foreign and not loading["trust_remote_code"]:
        raise DomainError(f"the configuration asks for the code of {foreign[0]}; it needs trust_remote_code=True")
    return config


def _weights(path: Path) -> dict[str, Any]:
    """The tensors of a file by name."""
    import torch
    from safetensors.torch import load_file

    if path.suffix in SAFE:
        return load_file(path)
    found = torch.load(path, map_location="cpu", weights_only=True)
    for key in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(each, torch.Tensor) for each in found.values()):
        raise StoreError(f"{path} is not a table of tensors by name, as model.state_dict() is")
    return found


def _model_class(config: Any, loading: Mapping[str, Any]) -> Any:
    """The class to build: what the configuration names, for stems of decoders what predicts with them."""
    # A name in a file chooses among transformers' models and nothing else. The head of a stem has no weights of its own
    # if embeddings are tied; else it would be random.
    import transformers
    from transformers.models.auto import modeling_auto

    remote = getattr(config, "auto_map", None) or {}
    if loading["trust_remote_code"] and any(key.startswith("AutoModel") for key in remote):
        return transformers.AutoModelForCausalLM if "AutoModelForCausalLM" in remote else transformers.AutoModel
    predicting = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    encodes = config.is_encoder_decoder or config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    stem = modeling_auto.MODEL_MAPPING_NAMES.get(config.model_type)
    name = (config.architectures or [None])[0]  # GGUF files name none, and have the head
    if predicting and not encodes and (not name or (name == stem and config.get_text_config().tie_word_embeddings)):
        name = predicting
    name = name or stem
    found = getattr(transformers, str(name), None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    raise DomainError(f"the configuration names {shown(name)}, no model of transformers {transformers.__version__}")


def _build(
    config: Any, loading: Mapping[str, Any], target: Mapping[str, Any], source: str | Path | None, **where: Any
) -> Any:
    """The model with all of its weights from the files, or an error that says what does not fit."""
    keywords = {"dtype": target["dtype"], "device_map": target["device_map"], "weights_only": True}
    keywords |= {"ignore_mismatched_sizes": True, "output_loading_info": True}  # they are refused below, by name
    cls = _model_class(config, loading)
    if cls.__module__.startswith("transformers.models.auto"):
        keywords["trust_remote_code"] = loading["trust_remote_code"]
    model, report = cls.from_pretrained(source, config=config, **where, **keywords)
    _check_fit(type(model).__name__, set(model.state_dict()), report)
    return model.eval() if target["device_map"] else _move(model, target)


def _check_fit(cls: str, wanted: set[str], report: Mapping[str, Any]) -> None:
    """Refuse weights that are missing or of another shape, and layers that the configuration does not have."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise StoreError(
            f"the files lack {len(missing)} weights that the configuration of {cls} asks for ({_few(missing)}): they"
            " would be random. If the weights are in several files, give the folder"
        )
    mismatched = sorted(f"{key} of {tuple(found)} for {tuple(due)}" for key, found, due in report["mismatched_keys"])
    if mismatched:
        raise StoreError(f"weights do not have the shapes that the configuration of {cls} asks for: {_few(mismatched)}")
    if report["error_msgs"]:
        raise StoreError(f"weights could not be read into {cls}: {_few([str(each) for each in report['error_msgs']])}")
    kinds = {re.sub(r"\d+", "#", each) for each in wanted}
    beyond = sorted(each for each in report["unexpected_keys"] if _differs_in_number(each, kinds))
    if beyond:
        raise StoreError(f"the files have more layers than the configuration of {cls}: {_few(beyond)}")


def _differs_in_number(key: str, kinds: set[str]) -> bool:
    """Whether a weight is like one of the model but for the number of its layer; other extras are never used."""
    kind = re.sub(r"\d+", "#", key)
    return "#" in kind and any(each == kind or each.endswith(f".{kind}") or kind.endswith(f".{each}") for each in kinds)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _clear_errors(name: str) -> Iterator[None]:
    """Errors of transformers, torch and safetensors as ours, with what to do."""
    from safetensors import SafetensorError

    try:
        yield
    except (DomainError, MissingPackageError, StoreError):
        raise
    except pickle.UnpicklingError as error:
        raise StoreError(
            f"{name}: a pickle with more in it than tensors, which could run any code, or a damaged one; it was not"
            f" read. Ask for safetensors ({_first_line(error)})"
        ) from None
    except ImportError as error:
        raise MissingPackageError(f"{name} needs a package that is not installed: {_first_line(error)}") from error
    except SafetensorError as error:
        raise StoreError(f"{name}: damaged or no safetensors ({_first_line(error)})") from error
    except OSError as error:
        offline = " (HF_HUB_OFFLINE is set, so the cache alone was searched)" if _offline() else ""
        raise StoreError(f"{name} could not be read{offline}: {_first_line(error)}") from error
    except Exception as error:  # readers of damaged files raise whatever they run into; it stays as the cause
        if "trust_remote_code" in str(error):
            raise DomainError(f"{name} comes with code of its own; it runs with trust_remote_code=True only") from None
        raise StoreError(f"{name} is not a model that transformers can build: {_first_line(error)}") from error


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def load_config(source: str | os.PathLike[str]) -> Any:
    """The configuration of a folder, of its ``config.json``, or of a hub id; nothing else is read or fetched."""
    need("reading a configuration", "torch", "transformers")
    from transformers import AutoConfig

    text, path = os.fspath(source), Path(os.fspath(source)).expanduser()
    if not path.exists() and (HUB_ID.fullmatch(text) is None or path.suffix == ".json"):
        raise DomainError(
            f"config_or_model = {shown(text)} is neither a config.json or its folder here, nor a hub id, which has the"
            " form organisation/name"
        )
    with quiet_transformers(), _clear_errors(text):
        if path.exists():
            require_regular(path)
            if path.is_dir() and not (path / "config.json").is_file():
                raise StoreError(f"{path} has no config.json: save_pretrained writes it")
            return AutoConfig.from_pretrained(path, local_files_only=True)
        return AutoConfig.from_pretrained(text, local_files_only=_offline())
