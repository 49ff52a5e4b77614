"""Attention without its spectral gap for torch, needing the extra ``torch``.

>>> import bulkedge as be
>>> be.nn.gap_free_attention.__name__
'gap_free_attention'
"""

try:
    import torch  # noqa: F401 - the whole package needs it; say so once
except ImportError as error:
    raise ImportError("bulkedge.nn needs torch: pip install 'bulkedge[torch]'") from error

from bulkedge.nn.attention import gap_free_attention, shaped_attention

__all__ = ["gap_free_attention", "shaped_attention"]
