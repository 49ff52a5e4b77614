"""Means of values subtracted on a GPU, in as few passes over memory as there can be.

Both maps are memory traffic and little else. Values are read in the layout they come in. A head is cut into segments if
there are too few heads to fill the GPU: then one kernel sums the segments and the next adds up those it needs.

Autograd, ``torch.compile`` and CUDA graphs take both maps; ``torch.func`` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

CENTRE, RUN = (256, 8), (32, 1)
"""Tokens that a program holds at a time, and its warps: running sums are fastest in one, which waits for nobody."""
WIDTH = 64
"""Numbers of each token that it holds."""
PROGRAMS = 512
"""How many of them keep a GPU busy."""
SEGMENTS = 64
"""The most that a head is cut into."""
TRITON = find_spec("triton") is not None
"""Whether kernels can be compiled."""
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def takes(value: Tensor) -> bool:
    """Whether the kernels are for such values; torch does the others.

    Parameters
    ----------
    value : Tensor
        Values of attention, ``(batch, heads, tokens, dim)``.

    Returns
    -------
    bool
        True for tensors on a GPU that Triton supports, in single, half or bfloat16 precision, with dim up to 256.
    """
    return (
        TRITON
        and value.is_cuda
        and type(value) is Tensor  # no subclass that shards it, say
        and value.dtype in TYPES
        and value.dim() == 4
        and value.numel() > 0
        and value.shape[-1] <= 256
        and torch.cuda.get_device_properties(value.device).major >= 8  # bfloat16
    )


def centred(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    """``(I - 1 w') V`` for values ``(batch, heads, tokens, dim)``; for the adjoint ``(I - w 1') V``.

    Weights are ``(batch, heads, tokens)`` in single precision and sum to one over tokens; uniform unless given.

    Parameters
    ----------
    value : Tensor
        ``(batch, heads, tokens, dim)``.
    weights : Tensor, optional
        ``(batch, heads, tokens)``.
    adjoint : bool
        Whether to apply the transpose, as gradients need it.

    Returns
    -------
    Tensor
        Of the shape and type of the values.
    """
    return _Centred.apply(value, weights, adjoint)


def less_running_mean(target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: FBT001
    """``target - scale C source`` with the running mean ``C``, or with its transpose; ``(batch, heads, tokens, dim)``.

    Heads of `target` may share those of `source`; for the adjoint it is the other way round, and shared ones add up.

    Parameters
    ----------
    target : Tensor
        What to subtract from.
    source : Tensor
        Whose running mean.
    scale : float
        Its factor.
    adjoint : bool
        Whether to apply the transpose, as gradients need it.

    Returns
    -------
    Tensor
        Of the shape and type of the target.
    """
    return _Less.apply(target, source, scale, adjoint)


def attend_less_running_mean(attend: Callable[[Tensor], Tensor], value: Tensor, scale: float, groups: int) -> Tensor:
    """``attend(value) - scale C value`` with the running mean ``C``, ``(batch, heads, groups, tokens, dim)``.

    The gradient with respect to `value` has two parts, through `attend` and through the running mean. The kernel that
    computes the second part adds the first to it, so that no pass over memory is spent on their sum.

    Parameters
    ----------
    attend : callable
        From values ``(batch, heads, tokens, dim)`` to ``(batch, heads, groups, tokens, dim)``.
    value : Tensor
        ``(batch, heads, tokens, dim)``.
    scale : float
        Factor of the running mean.
    groups : int
        How many heads of queries share one of values.

    Returns
    -------
    Tensor
        ``(batch, heads, groups, tokens, dim)``.
    """
    if value.requires_grad and torch.is_grad_enabled():
        value, mean = _Promise.apply(value, scale, groups)
        output = _Keep.apply(attend(value).flatten(1, 2), mean, value, scale)
    else:
        output = _subtract(attend(value).flatten(1, 2), value, scale, adjoint=False)
    return output.unflatten(1, (-1, groups))


class _Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
        ctx.save_for_backward(weights)
        ctx.adjoint = adjoint
        return _centre(value, weights, adjoint)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return centred(gradients[0], weights, adjoint=not ctx.adjoint), None, None


class _Less(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: FBT001
        ctx.shape, ctx.scale, ctx.adjoint = source.shape, scale, adjoint
        return _subtract(target, source, scale, adjoint)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        nothing = gradient.new_zeros(ctx.shape)
        return gradient, less_running_mean(nothing, gradient, ctx.scale, adjoint=not ctx.adjoint), None, None


class _Promise(torch.autograd.Function):
    """The values, and a tensor without memory in the place of ``-scale C value``, of the shape of the output."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: float, groups: int) -> tuple[Tensor, Tensor]:
        ctx.scale = scale
        batch, heads, tokens, dim = value.shape
        return value.view_as(value), value.new_empty(1).expand(batch, heads * groups, tokens, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        attended, mean = gradients
        return less_running_mean(attended, mean, ctx.scale, adjoint=True), None, None


class _Keep(torch.autograd.Function):
    """``output - scale C value``, computed here; autograd sees it as the sum of `output` and the promised mean.

    So the gradient goes to both unchanged, and :class:`_Promise` turns that of the mean into one of the values.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, mean: Tensor, value: Tensor, scale: float) -> Tensor:  # noqa: ARG004
        return _subtract(output, value, scale, adjoint=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ARG004
        return gradients[0], gradients[0], None, None


def _centre(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    """Launch the kernel; as a registered operator where torch compiles, which it needs, and directly elsewhere.

    Dispatching an operator takes longer than launching this kernel.
    """
    return (_centre_operator if torch.compiler.is_compiling() else _launch_centre)(value, weights, adjoint)


def _subtract(target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: FBT001
    launch = _subtract_operator if torch.compiler.is_compiling() else _launch_run
    return launch(target, source, scale, adjoint)


def _launch_centre(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    from bulkedge.nn import kernels

    value, result, cut, (block, warps) = _rows(value), _like(value), _cut(value, CENTRE[0]), CENTRE
    _, heads, tokens, dim = value.shape
    kind = "ones" if weights is None or adjoint else "given"
    given = value if weights is None else weights.contiguous()
    with torch.cuda.device(value.device):
        totals = _totals(value, given, cut, CENTRE, kind)
        kernels.centre[_grid(cut[0] * heads * len(value), dim)](
            *(value, given, result, totals, tokens, dim, heads, *cut),
            *(*value.stride()[:3], *result.stride()[:3]),
            *(kind, weights is not None and adjoint, cut[0] > 1, SEGMENTS, block, _width(dim)),
            num_warps=warps,
        )
    return result


def _launch_run(target: Tensor, source: Tensor, scale: float, adjoint: bool) -> Tensor:  # noqa: FBT001
    from bulkedge.nn import kernels

    target, source, result, cut, (block, warps) = _rows(target), _rows(source), _like(target), _cut(target, RUN[0]), RUN
    _, heads, tokens, dim = target.shape
    group = source.shape[1] // heads if adjoint else heads // source.shape[1]
    with torch.cuda.device(target.device):
        totals = _totals(source, source, cut, RUN, *(("counts", group) if adjoint else ("ones", 1)))
        kernels.run[_grid(cut[0] * heads * len(target), dim)](
            *(target, source, result, totals, scale, tokens, dim, heads, *cut),
            *(*target.stride()[:3], *source.stride()[:3], *result.stride()[:3]),
            *(group, adjoint, cut[0] > 1, SEGMENTS, block, _width(dim)),
            num_warps=warps,
        )
    return result


_operator = partial(torch.library.custom_op, mutates_args=(), device_types="cuda")
_centre_operator: Any = _operator("bulkedge::centre", _launch_centre)
_subtract_operator: Any = _operator("bulkedge::subtract_running_mean", _launch_run)
for _each in (_centre_operator, _subtract_operator):
    _each.register_fake(lambda tensor, *_: _like(tensor))


def _rows(tensor: Tensor) -> Tensor:
    """Numbers of a token side by side; other dimensions as they are."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like(tensor: Tensor) -> Tensor:
    """For the result: in the layout of the tensor, if kernels can write it."""
    return torch.empty_like(tensor) if tensor.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def _width(dim: int) -> int:
    """A power of two, of which products of matrices need sixteen."""
    return min(WIDTH, max(16, 1 << (dim - 1).bit_length()))


def _grid(programs: int, dim: int) -> tuple[int, int]:
    return programs, -(-dim // _width(dim))


def _cut(tensor: Tensor, block: int) -> tuple[int, int]:
    """Segments of a head, and tokens in a segment."""
    batch, heads, tokens, _ = tensor.shape
    enough = batch * heads >= PROGRAMS
    segments = 1 if enough else min(2 * PROGRAMS // (batch * heads), SEGMENTS)
    blocks = -(-tokens // (segments * block))
    return -(-tokens // (blocks * block)), blocks * block


def _totals(  # noqa: PLR0913, PLR0917
    source: Tensor, weights: Tensor, cut: tuple[int, int], size: tuple[int, int], kind: str, group: int = 1
) -> Tensor:
    """Weighted sums of segments, over groups of heads; for a single segment none are needed."""
    from bulkedge.nn import kernels

    (batch, heads, tokens, dim), (segments, _), (block, warps) = source.shape, cut, size
    if segments == 1:
        return source
    totals = source.new_empty(batch * heads // group, segments, dim, dtype=torch.float32)
    kernels.sum_segments[_grid(len(totals) * segments, dim)](
        *(source, weights, totals, tokens, dim, heads // group, *cut),
        *(*source.stride()[:3], kind, group, block, _width(dim)),
        num_warps=warps,
    )
    return totals
