"""Attention without its spectral gap for torch, which the extra ``torch`` installs.

>>> import bulkedge as be
>>> be.nn.gap_free_attention.__name__
'gap_free_attention'
"""

from bulkedge.errors import MissingPackageError

try:
    import torch  # noqa: F401 - the whole package needs it; say so once
except ImportError as error:
    raise MissingPackageError("bulkedge.nn needs torch: pip install 'bulkedge[torch]'") from error

from bulkedge.nn.attention import gap_free_attention, shaped_attention
from bulkedge.nn.init import attention_variance, initialise, query_key_std, skip_weights, value_std
from bulkedge.nn.modules import GapFreeAttention
from bulkedge.nn.patch import GapRemoved, remove_gap, restore_gap

__all__ = [
    "GapFreeAttention",
    "GapRemoved",
    "attention_variance",
    "gap_free_attention",
    "initialise",
    "query_key_std",
    "remove_gap",
    "restore_gap",
    "shaped_attention",
    "skip_weights",
    "value_std",
]
