"""Means of values subtracted on a GPU, in as few passes over memory as there can be.

Both maps are memory traffic and little else. Values are read in the layout they come in. A head is cut into segments if
there are too few heads to fill the GPU: then one kernel sums the segments and the next adds up those it needs.

Autograd, ``torch.compile`` and CUDA graphs take both maps; ``torch.func`` does not.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CENTRE, RUN = (256, 8), (32, 1)  # tokens that a program holds, and its warps: one warp waits for nobody
WIDTH = 64  # numbers of each token that it holds
PROGRAMS = 512  # how many of them keep a GPU busy
SEGMENTS = 64  # the most that a head is cut into
REMEMBERED = 4096  # launches whose kernels are kept at hand
TRITON = find_spec("triton") is not None  # whether kernels can be compiled
# in the names of compiled graphs, which torch keeps on disk: it does not see when our kernels change
BUILD = sha256(b"".join(Path(__file__).with_name(name).read_bytes() for name in ("fused.py", "kernels.py"))).hexdigest()


def takes(value: Tensor) -> bool:
    """Whether the kernels are for such values; torch does the others."""
    return (
        TRITON
        and value.is_cuda
        and type(value) is Tensor  # no subclass that shards it, say
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and value.dim() == 4
        and value.numel() > 0
        and value.shape[-1] <= 256
        and _recent(value.device.index)
    )


def _recent(device: int) -> bool:
    """Whether the GPU has bfloat16; asked once for each, and not by what is compiled."""
    if device not in _generations:
        _generations[device] = torch.cuda.get_device_properties(device).major
    return _generations[device] >= 8


_generations: dict[int, int] = {}


def remove_mean(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    """``(I - 1 w') V`` for values ``(batch, heads, tokens, dim)``; for the adjoint ``(I - w 1') V``."""
    # Weights are (batch, heads, tokens) in single precision and sum to one over tokens; uniform unless given.
    return _FusedMeanRemoval.apply(value, weights, adjoint)


def less_running_mean(  # noqa: PLR0913 - a linear combination
    target: Tensor | None,
    source: Tensor,
    *,
    keep: float = 1.0,
    own: float = 0.0,
    scale: float = 1.0,
    adjoint: bool = False,
    heads: int | None = None,
) -> Tensor:
    """``keep target + own source - scale C source`` with the running mean ``C``, ``(batch, heads, tokens, dim)``."""
    # Heads of `target` may share those of `source`. For the adjoint C is transposed and it is the other way round:
    # heads that share one add up.
    heads = (source if target is None else target).shape[1] if heads is None else heads
    if torch.compiler.is_compiling():
        return _operate(target, source, keep, own, scale, adjoint, heads)
    return _RunningMeanRemoval.apply(target, source, keep, own, scale, adjoint, heads)


class _FusedMeanRemoval(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
        ctx.save_for_backward(weights)
        ctx.adjoint = adjoint
        # dispatching an operator, which compilers need, takes longer than launching this kernel
        return (_centre_operator if torch.compiler.is_compiling() else _launch_centre)(value, weights, adjoint)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return remove_mean(gradients[0], weights, adjoint=not ctx.adjoint), None, None


class _RunningMeanRemoval(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, target: Tensor | None, source: Tensor, *rest: Any) -> Tensor:
        ctx.rest, ctx.heads = rest, source.shape[1]
        return _run(_launch, target, source, *rest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate_running(_RunningMeanRemoval.apply, ctx, *gradients)


def _differentiate_running(again: Any, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments: that of the source is the same map with C transposed, of the gradient alone."""
    keep, own, scale, adjoint, _ = ctx.rest
    of_target, of_source = ctx.needs_input_grad[:2]
    through = None if not of_target else gradient if keep == 1 else keep * gradient
    mean = again(None, gradient, 0.0, own, scale, not adjoint, ctx.heads) if of_source else None
    return through, mean, *5 * (None,)


def _launch_centre(value: Tensor, weights: Tensor | None, adjoint: bool) -> Tensor:  # noqa: FBT001
    from bulkedge.nn import kernels

    value, result, cut, (block, warps) = _rows(value), _like(value), _cut(value, CENTRE[0]), CENTRE
    _, heads, tokens, dim = value.shape
    kind = "ones" if weights is None or adjoint else "given"
    given = value if weights is None else weights.contiguous()
    with torch.cuda.device(value.device):
        totals = _totals(_launch, value, given, cut, CENTRE, kind)
        kernels.centre[_grid(cut[0] * heads * len(value), dim)](
            *(value, given, result, totals, tokens, dim, heads, *cut),
            *(*value.stride()[:3], *result.stride()[:3]),
            *(kind, weights is not None and adjoint, cut[0] > 1, SEGMENTS, block, _width(dim)),
            num_warps=warps,
        )
    return result


_centre_operator: Any = torch.library.custom_op(
    "bulkedge::centre", _launch_centre, mutates_args=(), device_types="cuda"
)
_centre_operator.register_fake(lambda tensor, *_: _like(tensor))


def _compiled_running(  # noqa: PLR0913, PLR0917
    target: Tensor | None,
    source: Tensor,
    keep: float,
    own: float,
    scale: float,
    adjoint: bool,  # noqa: FBT001
    heads: int,
    build: str,  # noqa: ARG001 - for the names of compiled graphs
) -> Tensor:
    """What the compiler sees: it launches the kernels by itself, without Python in between."""
    return _run(_wrapped_launch, target, source, keep, own, scale, adjoint, heads)


def _keep_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.rest, ctx.heads = inputs[2:-1], inputs[1].shape[1]


# without Triton, which looks for its kernels in the operator, there is nothing to find
_register = torch.library.triton_op if TRITON else torch.library.custom_op
_running_operator: Any = _register("bulkedge::less_running_mean", _compiled_running, mutates_args=())
_running_operator.register_fake(lambda target, source, *rest: _allocate(target, source, rest[-2]))
_running_operator.register_autograd(
    lambda *given: (*_differentiate_running(_operate, *given), None), setup_context=_keep_context
)


def _operate(target: Tensor | None, source: Tensor, *rest: Any) -> Tensor:
    return _running_operator(target, source, *rest, BUILD)


def _allocate(target: Tensor | None, source: Tensor, heads: int) -> Tensor:
    """For the result, in the layout of the target, or of a source that has as many heads."""
    if target is None and heads != source.shape[1]:
        batch, _, tokens, dim = source.shape
        return source.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    return _like(source if target is None else target)


def _wrapped_launch(  # noqa: PLR0913, PLR0917 - as _launch has them
    kernel: Any, grid: Any, tensors: Any, factors: Any, numbers: Any, constants: Any, warps: int
) -> None:
    torch.library.wrap_triton(kernel)[grid](*tensors, *factors, *numbers, *constants, num_warps=warps)


def _run(launch: Any, target: Tensor | None, source: Tensor, *rest: Any) -> Tensor:
    from bulkedge.nn import kernels

    keep, own, scale, adjoint, heads = rest
    out, source, (block, warps) = _allocate(target, source, heads), _rows(source), RUN
    target = None if target is None else _rows(target)
    batch, _, tokens, dim = source.shape
    segments, length = _cut(out, block)
    group = source.shape[1] // heads if adjoint else heads // source.shape[1]
    with torch.cuda.device(source.device):
        kind = ("counts", group) if adjoint else ("ones", 1)
        given = out if target is None else target
        launch(
            kernels.run,
            _grid(segments * heads * batch, dim),
            (given, source, out, _totals(launch, source, source, (segments, length), RUN, *kind)),
            (float(keep), float(own), float(scale)),
            (tokens, dim, heads, segments, length, *given.stride()[:3], *source.stride()[:3], *out.stride()[:3]),
            (group, adjoint, target is not None, segments > 1, SEGMENTS, block, _width(dim)),
            warps,
        )
    return out


def _launch(  # noqa: PLR0913, PLR0917 - what a launch has
    kernel: Any,
    grid: tuple[int, int],
    tensors: tuple[Tensor, ...],
    factors: Any,
    numbers: Any,
    constants: Any,
    warps: int,
) -> None:
    """Launch a kernel; the second time past Triton's look at all arguments, which takes longer than the launch."""
    # What was compiled depends on the types of tensors, on whether addresses and integers are multiples of sixteen, and
    # on integers that are one: the key holds at least that.
    alike = tuple((each.dtype, each.data_ptr() % 16) for each in tensors)
    key = (id(kernel), tensors[0].device.index, alike, numbers, constants)
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[*grid, 1](*tensors, *factors, *numbers, *constants)
        return
    if len(_compiled) >= REMEMBERED:
        _compiled.clear()
    _compiled[key] = kernel[grid](*tensors, *factors, *numbers, *constants, num_warps=warps)


_compiled: dict[Any, Any] = {}


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
    launch: Any, source: Tensor, weights: Tensor, cut: tuple[int, int], size: tuple[int, int], kind: str, group: int = 1
) -> Tensor:
    """Weighted sums of segments, over groups of heads; for a single segment none are needed."""
    from bulkedge.nn import kernels

    (batch, heads, tokens, dim), (segments, _), (block, warps) = source.shape, cut, size
    if segments == 1:
        return source
    totals = source.new_empty(batch * heads // group, segments, dim, dtype=torch.float32)
    launch(
        kernels.sum_segments,
        _grid(len(totals) * segments, dim),
        (source, weights, totals),
        (),
        (tokens, dim, heads // group, *cut, *source.stride()[:3]),
        (kind, group, block, _width(dim)),
        warps,
    )
    return totals
