"""Who may look at whom: masks of attention, the one rule for hidden keys, and the softmax behind it.

A mask comes in many spellings. **The rule**: an additive mask hides a key where it is at least 9000 below the largest
entry of its row, so that ``-1e4``, ``-1e9``, the least number of any type and minus infinity all hide, and what is
added by position (ALiBi) stays a bias. A row whose largest entry is itself at most -9000 sees no key. A boolean mask
hides where it is False. :func:`seen_keys` is that rule, and scans, watches, :mod:`bulkedge.nn`, operators and ensembles
all ask it.

* :class:`Mask` and its kin (``masks.py``): masks by name and size, with their mean matrix;
* :func:`structure` (``structure.py``): whether a mask is a window, or chunks, however it was written;
* :func:`seen_keys`, :func:`additive`, :func:`softmax` (``hidden.py``): arrays in any spelling, of NumPy or torch;
* :class:`Visibility` (``layers.py``): what one layer of a model sees, by a mask, the future and a window;
* ``calls.py``: masks as transformers passes them: block masks of flex attention, packed sequences.
"""

from bulkedge.visibility.hidden import additive, check_mask, seen_keys, softmax
from bulkedge.visibility.layers import Visibility
from bulkedge.visibility.masks import (
    BooleanMask,
    FullMask,
    Mask,
    MaskOrName,
    WindowMask,
    hidden_patches,
    mask_for,
    prefix_mean_values,
    visible_rows,
)

__all__ = [
    "BooleanMask",
    "FullMask",
    "Mask",
    "MaskOrName",
    "Visibility",
    "WindowMask",
    "additive",
    "check_mask",
    "hidden_patches",
    "mask_for",
    "prefix_mean_values",
    "seen_keys",
    "softmax",
    "visible_rows",
]
