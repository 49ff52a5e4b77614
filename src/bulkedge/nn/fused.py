"""Means of values subtracted on a GPU, in as few passes over memory as there can be.

Both maps are memory traffic and little else. Values are read in the layout they come in. A head is cut into segments if
there are too few heads to fill the GPU: then one kernel sums the segments and the next adds up those it needs.

The maps are operators of torch: autograd, ``torch.compile`` and CUDA graphs take them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

BLOCK = 64
"""Tokens that a program holds at a time."""
PROGRAMS = 256
"""How many of them keep a GPU busy."""
SEGMENTS = 64
"""The most that a head is cut into."""
TRITON = find_spec("triton") is not None
"""Whether kernels can be compiled."""
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def takes(value: Tensor) -> bool:
    """Whether the kernels are for such values; torch does the others."""
    return (
        TRITON
        and value.is_cuda
        and type(value) is Tensor  # no subclass that shards it, say
        and value.dtype in TYPES
        and value.dim() == 4
        and value.numel() > 0
        and value.shape[-1] <= 256
        and torch.cuda.get_device_properties(value.device).major >= 7  # what Triton compiles for
    )


def attend_less_running_mean(attend: Callable[[Tensor], Tensor], value: Tensor, scale: float, groups: int) -> Tensor:
    """``attend(value) - scale C value`` with the running mean ``C``, ``(batch, heads, groups, tokens, dim)``.

    The gradient with respect to `value` comes through two doors, and is added up in the pass that computes the second.
    """
    value, mean = _Promise.apply(value, scale, groups)
    output = _Keep.apply(attend(value).flatten(1, 2), mean, value, scale)
    return output.unflatten(1, (-1, groups))  # type: ignore[no-any-return]


class _Promise(torch.autograd.Function):
    """The values, and a tensor without memory in the place of ``-scale C value``."""

    @staticmethod
    def forward(value: Tensor, scale: float, groups: int) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        """The mean has the shape of the output."""
        batch, heads, tokens, dim = value.shape
        return value.view_as(value), value.new_empty(1).expand(batch, heads * groups, tokens, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        """The map is linear."""
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Both gradients in one pass."""
        return less_running_mean(*gradients, ctx.scale, True), None, None  # noqa: FBT003


class _Keep(torch.autograd.Function):
    """The output with the promised mean added, which is computed here and not before."""

    @staticmethod
    def forward(output: Tensor, mean: Tensor, value: Tensor, scale: float) -> Tensor:  # noqa: ARG004
        """Reads no `mean`: there is nothing in it."""
        return less_running_mean(output, value, scale, False)  # noqa: FBT003

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """A sum needs nothing for its gradient."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ARG004
        """That of a sum; what depends on `value` went through `mean`."""
        return *2 * gradients, None, None


@torch.library.custom_op("bulkedge::centred", mutates_args=(), device_types="cuda")
def centred(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    """``(I - 1 w') V`` for values ``(batch, heads, tokens, dim)`` and weights ``(batch, heads, tokens)``.

    Parameters
    ----------
    weights : Tensor, optional
        In single precision, summing to one over tokens; uniform unless given.
    adjoint : bool
        Whether to apply ``I - w 1'``.
    """
    from bulkedge.nn import kernels

    value, result, cut = _rows(value), _like(value), _cut(value)
    _, heads, tokens, dim = value.shape
    kind = "ones" if weights is None or adjoint else "given"
    given = value if weights is None else weights.contiguous()
    with torch.cuda.device(value.device):
        totals = _totals(value, given, cut, kind)
        kernels.centre[(cut[0] * heads * len(value),)](
            *(value, given, result, totals, tokens, dim, heads, *cut),
            *(*value.stride()[:3], *result.stride()[:3]),
            *(kind, weights is not None and adjoint, cut[0] > 1, SEGMENTS, BLOCK, _width(dim)),
        )
    return result


@torch.library.custom_op("bulkedge::less_running_mean", mutates_args=(), device_types="cuda")
def less_running_mean(target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: FBT001
    """``target - scale C source`` with the running mean ``C``, or with its transpose; ``(batch, heads, tokens, dim)``.

    Heads of `target` may share those of `source`; for the adjoint it is the other way round, and shared ones add up.
    """
    from bulkedge.nn import kernels

    target, source, result, cut = _rows(target), _rows(source), _like(target), _cut(target)
    _, heads, tokens, dim = target.shape
    group = source.shape[1] // heads if adjoint else heads // source.shape[1]
    with torch.cuda.device(target.device):
        totals = _totals(source, source, cut, *(("counts", group) if adjoint else ("ones", 1)))
        kernels.run[(cut[0] * heads * len(target),)](
            *(target, source, result, totals, scale, tokens, dim, heads, *cut),
            *(*target.stride()[:3], *source.stride()[:3], *result.stride()[:3]),
            *(group, adjoint, cut[0] > 1, SEGMENTS, BLOCK, _width(dim)),
        )
    return result


@centred.register_fake
def _(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: ARG001, FBT001
    return _like(value)


@less_running_mean.register_fake
def _(target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: ARG001, FBT001
    return _like(target)


def _centred_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, bool], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1])
    ctx.adjoint = inputs[2]


def _centred_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return centred(gradient, *ctx.saved_tensors, not ctx.adjoint), None, None


def _running_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:  # noqa: ARG001
    ctx.shape, ctx.scale, ctx.adjoint = inputs[1].shape, *inputs[2:]


def _running_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
    nothing = gradient.new_zeros(ctx.shape)
    return gradient, less_running_mean(nothing, gradient, ctx.scale, not ctx.adjoint), None, None


centred.register_autograd(_centred_backward, setup_context=_centred_context)
less_running_mean.register_autograd(_running_backward, setup_context=_running_context)


def _rows(tensor: Tensor) -> Tensor:
    """Numbers of a token side by side; other dimensions as they are."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like(tensor: Tensor) -> Tensor:
    """For the result: in the layout of the tensor, if kernels can write it."""
    return torch.empty_like(tensor) if tensor.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def _width(dim: int) -> int:
    """The least power of two."""
    return 1 << (dim - 1).bit_length()


def _cut(tensor: Tensor) -> tuple[int, int]:
    """Segments of a head, and tokens in a segment."""
    batch, heads, tokens, _ = tensor.shape
    segments = min(max(1, PROGRAMS // (batch * heads)), SEGMENTS)
    blocks = -(-tokens // (segments * BLOCK))
    return -(-tokens // (blocks * BLOCK)), blocks * BLOCK


def _totals(source: Tensor, weights: Tensor, cut: tuple[int, int], kind: str, group: int = 1) -> Tensor:
    """Weighted sums of segments, over groups of heads; for a single segment none are needed."""
    from bulkedge.nn import kernels

    (batch, heads, tokens, dim), segments = source.shape, cut[0]
    if segments == 1:
        return source
    totals = source.new_empty(batch * heads // group, segments, _width(dim), dtype=torch.float32)
    kernels.sum_segments[(len(totals) * segments,)](
        *(source, weights, totals, tokens, dim, heads // group, *cut),
        *(*source.stride()[:3], kind, group, BLOCK, _width(dim)),
    )
    return totals
