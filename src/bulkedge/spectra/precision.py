"""Products in single precision that are in single precision, whatever torch was told for the sake of speed.

Networks are trained with TF32 or bfloat16 inside their products, three or two decimal digits. A basis that is made
orthonormal, or directions that are projected away, with so few digits leave parts of the largest values behind, which
are not small beside the small values of a spectrum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from array_api_compat import is_torch_array


@contextmanager
def full_precision(like: Any) -> Iterator[None]:
    """Products of torch with all digits of single precision; nothing changes for arrays of NumPy."""
    if not is_torch_array(like):
        yield
        return
    import torch

    # newer versions of torch have a setting for each device beside the one for all
    backends = (getattr(each, "matmul", None) for each in (torch.backends.cuda, torch.backends.mkldnn))
    devices: list[Any] = [each for each in backends if _has_setting(each)]
    before, each_before = _for_all(), [each.fp32_precision for each in devices]
    if before == "highest" and all(each in {"none", "ieee"} for each in each_before):
        yield
        return
    try:
        if before is not None:
            torch.set_float32_matmul_precision("highest")
        for each in devices:
            each.fp32_precision = "ieee"
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for each, setting in zip(devices, each_before, strict=True):
            each.fp32_precision = setting


def _for_all() -> str | None:
    """The setting for all devices; None where torch refuses to say, as those for each contradict it."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _has_setting(backend: Any) -> bool:
    """Whether a backend of torch has the newer setting; those of older versions refuse any name they do not know."""
    try:
        return isinstance(backend.fp32_precision, str)
    except (AttributeError, AssertionError):
        return False
