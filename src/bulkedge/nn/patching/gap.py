"""Remove the spectral gap from the attention of transformers models, and put it back.

>>> from transformers import BertConfig, BertModel
>>> import torch
>>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64))
>>> with remove_gap(model):
...     repaired = model(torch.arange(12)[None]).last_hidden_state
>>> model.config._attn_implementation
'sdpa'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from bulkedge.nn.patching.interface import Call, transform
from bulkedge.nn.patching.patch import Patch, apply_patch, patches, restore
from bulkedge.support.errors import DomainError

GAP_FREE = "gap_free"
"""The kind of these patches."""


def remove_gap(model: nn.Module) -> Patch:
    """Replace ``A`` by ``A - C`` in every attention of a transformers model, on torch's fused kernels.

    Weights are left alone; :func:`restore_gap`, :func:`bulkedge.nn.restore` or the end of a ``with`` block undoes it.
    Where a decoder is causal, its first token gets nothing from attention. With windows, packed sequences, padding and
    caches, every row's mean is over the keys that it sees. A model whose gap was removed twice has no gap until both
    are undone.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As for :func:`bulkedge.nn.apply_patch`.

    Returns
    -------
    Patch
        A context manager, for those who want the gap back.

    Raises
    ------
    DomainError
        If the model, or a model inside it, is not of that kind: nothing is changed then.
    RuntimeError
        By the first forward pass, if that never came to the attention: the gap is put back then.
    """
    return apply_patch(model, GAP_FREE)


def restore_gap(model: nn.Module) -> None:
    """Undo every :func:`remove_gap` of a model, also of a copied or loaded one; other patches stay.

    Without patches outputs are bit for bit what they were.

    Parameters
    ----------
    model : torch.nn.Module
        A patched transformers model.

    Raises
    ------
    DomainError
        If its gap was not removed.
    """
    if all(each.kind != GAP_FREE for each in patches(model)):
        raise DomainError(f"the gap of {type(model).__name__} was not removed")
    restore(model, GAP_FREE)


@transform(GAP_FREE)
def _gap_free(call: Call, parameters: Mapping[str, Any]) -> Call:  # noqa: ARG001 - it has none
    """All of the mean is taken, also of a second such patch: rows that sum to zero have no mean left."""
    return call._replace(gamma=1.0)
