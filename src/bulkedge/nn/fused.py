"""Means of values subtracted on a GPU, in as few passes over memory as there can be.

One operator, ``bulkedge::less_mean``, for full, causal, windowed and padded attention and for shared heads. It is
memory traffic and little else. Values are read in the layout they come in. A head is cut into segments if there are too
few heads to fill the GPU: then one kernel sums the segments and the next adds up those it needs.

Autograd, ``torch.compile`` and CUDA graphs take it; ``torch.func`` does not.
"""

from __future__ import annotations

import warnings
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALL, CAUSAL = 0, 2**31 - 1  # how far back a token sees: to the end of all, to the first
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
    if value.is_cuda and not TRITON and not torch.compiler.is_compiling():
        _say_what_is_missing()
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


@cache
def _say_what_is_missing() -> None:
    """Once in a process: results are the same."""
    warnings.warn(
        "Triton is not installed: torch computes the means of attention without its gap, in more passes over memory; "
        "pip install triton",
        stacklevel=2,
    )


def _recent(device: int) -> bool:
    """Whether the GPU has bfloat16; asked once for each, and not by what is compiled."""
    if device not in _generations:
        _generations[device] = torch.cuda.get_device_properties(device).major
    return _generations[device] >= 8


_generations: dict[int, int] = {}


def less_mean(  # noqa: PLR0913 - a linear combination
    target: Tensor | None,
    source: Tensor,
    weights: Tensor | None = None,
    *,
    reach: int = CAUSAL,
    keep: float = 1.0,
    own: float = 0.0,
    scale: float = 1.0,
    adjoint: bool = False,
    heads: int | None = None,
) -> Tensor:
    """``keep target + own source - scale C source`` with the mean ``C``, ``(batch, heads, tokens, dim)``."""
    # C is uniform over the last `reach` tokens up to each, or over ALL; for these there may be weights, (batch, heads,
    # tokens) in single precision, which sum to one over tokens. Heads of `target` may share those of `source`. For the
    # adjoint C is transposed and it is the other way round: heads that share one add up.
    heads = (source if target is None else target).shape[1] if heads is None else heads
    given = (target, source, weights, keep, own, scale, reach, adjoint, heads)
    # dispatching an operator, which compilers need, takes longer than launching a kernel
    return _operate(*given) if torch.compiler.is_compiling() else _LessMean.apply(*given)


class _LessMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        _keep_context(ctx, given, None)
        return _run(_launch, *given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(_LessMean.apply, ctx, *gradients)


def _keep_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[2])
    ctx.rest, ctx.heads = inputs[3:8], inputs[1].shape[1]


def _differentiate(again: Any, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments: that of the source is the same map with C transposed, of the gradient alone."""
    keep, own, scale, reach, adjoint = ctx.rest
    of_target, of_source = ctx.needs_input_grad[:2]
    through = None if not of_target else gradient if keep == 1 else keep * gradient
    given = (None, gradient, *ctx.saved_tensors, 0.0, own, scale, reach, not adjoint, ctx.heads)
    return through, again(*given) if of_source else None, *7 * (None,)


def _compiled(  # noqa: PLR0913, PLR0917
    target: Tensor | None,
    source: Tensor,
    weights: Tensor | None,
    keep: float,
    own: float,
    scale: float,
    reach: int,
    adjoint: bool,  # noqa: FBT001
    heads: int,
    build: str,  # noqa: ARG001 - for the names of compiled graphs
) -> Tensor:
    """What the compiler sees: it launches the kernels by itself, without Python in between."""
    return _run(_wrapped_launch, target, source, weights, keep, own, scale, reach, adjoint, heads)


# without Triton, which looks for its kernels in the operator, there is nothing to find
_register = torch.library.triton_op if TRITON else torch.library.custom_op
_operator: Any = _register("bulkedge::less_mean", _compiled, mutates_args=())
_operator.register_fake(lambda target, source, *rest: _allocate(target, source, rest[-2]))
_operator.register_autograd(lambda *given: (*_differentiate(_operate, *given), None), setup_context=_keep_context)


def _operate(*given: Any) -> Tensor:
    return _operator(*given, BUILD)


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


def _run(launch: Any, target: Tensor | None, source: Tensor, weights: Tensor | None, *rest: Any) -> Tensor:
    from bulkedge.nn import kernels

    keep, own, scale, reach, adjoint, heads = rest
    out, source = _allocate(target, source, heads), _rows(source)
    target = None if target is None else _rows(target)
    given = source if weights is None else weights.contiguous()
    batch, _, tokens, dim = source.shape
    kind = ("all" if weights is None else "given") if reach == ALL else "window" if reach < tokens else "causal"
    block, warps = CENTRE if reach == ALL else RUN
    segments, length = _cut(out, block)
    group = source.shape[1] // heads if adjoint else heads // source.shape[1]
    read = out if target is None else target
    with torch.cuda.device(source.device):
        totals = source  # not read
        if segments > 1:
            members = group if adjoint else 1
            totals = source.new_empty(batch * source.shape[1] // members, segments, dim, dtype=torch.float32)
            weighing = "ones" if adjoint or kind != "given" else "given"
            launch(
                kernels.sum_segments,
                _grid(len(totals) * segments, dim),
                (source, given, totals),
                (),
                (tokens, dim, source.shape[1] // members, reach, segments, length, *source.stride()[:3]),
                ("counts" if adjoint and reach != ALL else weighing, members, block, _width(dim)),
                warps,
            )
        launch(
            kernels.less_mean,
            _grid(segments * heads * batch, dim),
            (read, source, given, out, totals),
            (float(keep), float(own), float(scale)),
            (tokens, dim, heads, reach, segments, length, *read.stride()[:3], *source.stride()[:3], *out.stride()[:3]),
            (kind, group, adjoint, target is not None, segments > 1, SEGMENTS, block, _width(dim)),
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
    known = _launched.get(key)
    if known is not None:
        known[*grid, 1](*tensors, *factors, *numbers, *constants)
        return
    if len(_launched) >= REMEMBERED:
        _launched.clear()
    _launched[key] = kernel[grid](*tensors, *factors, *numbers, *constants, num_warps=warps)


_launched: dict[Any, Any] = {}


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
