"""Attention without its spectral gap, or at other score scales, for torch, which the extra ``torch`` installs.

>>> import bulkedge as be
>>> be.nn.gap_free_attention.__name__
'gap_free_attention'
"""

from bulkedge.support.errors import MissingPackageError

try:
    import torch  # noqa: F401 - the whole package needs it; say so once
except ImportError as error:
    raise MissingPackageError("bulkedge.nn needs torch: pip install 'bulkedge[torch]'") from error

from bulkedge.nn.attention import gap_free_attention, shaped_attention
from bulkedge.nn.init import attention_variance, initialise, initialise_stack, query_key_std, skip_weights, value_std
from bulkedge.nn.modules import GapFreeAttention
from bulkedge.nn.patching.interface import Call, Record, install, records_of, transform, transform_call
from bulkedge.nn.patching.patch import Patch, apply_patch, check_interface, patches, remove_gap, restore, restore_gap
from bulkedge.nn.patching.score_scales import scale_scores
from bulkedge.nn.power import attended_power
from bulkedge.nn.pruning import Pruning, prune_heads
from bulkedge.nn.scales import Scales, initial_scales

install()  # so that patched models that were saved or pickled come back as they were

__all__ = [
    "Call", "GapFreeAttention", "Patch", "Pruning", "Record", "Scales", "apply_patch", "attended_power",
    "attention_variance", "check_interface", "gap_free_attention", "initial_scales", "initialise",
    "initialise_stack", "patches", "prune_heads", "query_key_std", "records_of", "remove_gap", "restore",
    "restore_gap", "scale_scores", "shaped_attention", "skip_weights", "transform", "transform_call", "value_std",
]  # fmt: skip
