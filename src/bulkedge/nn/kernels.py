"""Kernels that subtract means of values on a GPU: each program walks through a segment of a head, block by block.

Sums stay in registers in single precision, and what is subtracted is never written. Triton compiles the kernels; it
comes with torch where there is CUDA. :mod:`bulkedge.nn.fused` launches them and says what they compute.

Names: ``by_batch, by_head, by_token`` are strides, whose last is one; capital letters are known when compiled.
"""
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0913, PLR0917 - signatures as Triton has them
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _columns(WIDTH: tl.constexpr):
    return tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)


@triton.jit
def _tile(start, stride, tokens, dim, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Tokens from `start` on, where their numbers are, and which of them exist."""
    token, column = start + tl.arange(0, BLOCK), _columns(WIDTH)[None, :]
    where = token.to(tl.int64)[:, None] * stride + column
    return token, where, (token < tokens)[:, None] & (column < dim)


@triton.jit
def _weights(weights, token, tokens, reach, KIND: tl.constexpr):
    """Of tokens in a sum: from memory, one over the number of tokens that this one sees, or one."""
    if KIND == "given":
        weight = tl.load(weights + token, mask=token < tokens, other=0.0)[:, None]
    elif KIND == "counts":
        weight = 1.0 / tl.minimum(token + 1, reach)[:, None]
    else:
        weight = 1.0
    return weight


@triton.jit
def _terms(
    source, weights, start, tokens, dim, by_head, by_token, reach,
    KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums over a group of heads, and the same by weight; nothing before the first token and behind the last."""
    token, where, exists = _tile(start, by_token, tokens, dim, BLOCK, WIDTH)
    exists &= (token >= 0)[:, None]
    terms = tl.load(source + where, mask=exists, other=0.0).to(tl.float32)
    for member in tl.static_range(1, GROUP):
        terms += tl.load(source + member * by_head + where, mask=exists, other=0.0).to(tl.float32)
    return terms, terms * _weights(weights, token, tokens, reach, KIND)


@triton.jit
def _sum(
    source, weights, first, last, tokens, dim, by_head, by_token, reach,
    KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Weighted sum of the tokens from `first` until before `last`, over a group of heads."""
    sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    last = min(last, tokens)
    for start in tl.range(first, last, BLOCK, num_stages=3 if GROUP == 1 else 1):
        sums += _terms(source, weights, start, last, dim, by_head, by_token, reach, KIND, GROUP, BLOCK, WIDTH)[1]
    return tl.sum(sums, 0)


@triton.jit
def sum_segments(
    source, weights, totals, tokens, dim, heads, reach, segments, length, by_batch, by_head, by_token,
    KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``totals``: weighted sums of segments, over groups of heads."""
    program = tl.program_id(0).to(tl.int64)
    head, segment = program // segments, program % segments
    source += head // heads * by_batch + head % heads * GROUP * by_head
    weights += head * tokens
    first = segment * length
    total = _sum(
        source, weights, first, first + length, tokens, dim, by_head, by_token, reach, KIND, GROUP, BLOCK, WIDTH
    )  # fmt: skip
    column = _columns(WIDTH)
    tl.store(totals + program * dim + column, total, mask=column < dim)


@triton.jit
def _add_up(totals, first, last, dim, SEGMENTS: tl.constexpr, WIDTH: tl.constexpr):
    """Sum over the segments from `first` until before `last`."""
    segment, column = tl.arange(0, SEGMENTS)[:, None], _columns(WIDTH)[None, :]
    inside = (segment >= first) & (segment < last) & (column < dim)
    return tl.sum(tl.load(totals + segment * dim + column, mask=inside, other=0.0), 0)


@triton.jit
def _before(
    source, weights, totals, segment, segments, length, tokens, dim, by_head, by_token, reach,
    KIND: tl.constexpr, MEMBERS: tl.constexpr, WEIGHING: tl.constexpr, ADJOINT: tl.constexpr, SEGMENTED: tl.constexpr,
    SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What the mean of a segment's first token, or its last for the adjoint, has of other segments; or the whole."""
    RUNNING: tl.constexpr = KIND == "causal" or KIND == "window"  # noqa: PLR1714 - Triton knows no "in"
    before = tl.zeros((WIDTH,), tl.float32)
    if SEGMENTED:
        least, most = 0, segments
        if RUNNING:
            least, most = (segment + 1, segments) if ADJOINT else (0, segment)
        if KIND == "window":  # whole segments that the window reaches into, without what it does not reach
            if ADJOINT:
                start = min((segment + 1) * length + reach, segments * length)
                most = (start + length - 1) // length
                stop = most * length
            else:
                stop = max(segment * length - reach, 0)
                least = stop // length
                start = least * length
            before -= _sum(
                source, weights, start, stop, tokens, dim, by_head, by_token, reach, WEIGHING, MEMBERS, BLOCK, WIDTH
            )  # fmt: skip
        before += _add_up(totals, least, most, dim, SEGMENTS, WIDTH)
    elif not RUNNING:
        before += _sum(source, weights, 0, tokens, tokens, dim, 0, by_token, reach, WEIGHING, 1, BLOCK, WIDTH)
    return before


@triton.jit
def less_mean(
    target, source, weights, result, totals, keep, own, scale, tokens, dim, heads, reach, segments, length,
    target_by_batch, target_by_head, target_by_token, source_by_batch, source_by_head, source_by_token,
    result_by_batch, result_by_head, result_by_token,
    KIND: tl.constexpr, GROUP: tl.constexpr, ADJOINT: tl.constexpr, TARGET: tl.constexpr, SEGMENTED: tl.constexpr,
    SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``result``: ``keep`` times the target, plus ``own`` times the source, less ``scale`` times its mean.

    The mean is over all tokens ("all", or "given" weights), those up to this one ("causal"), or the last `reach` of
    these ("window"); for the adjoint its transpose. Without a `TARGET` none is read.
    """
    # last ones first: the cache still holds them
    program = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    head, segment = program // segments, program % segments
    target += head // heads * target_by_batch + head % heads * target_by_head
    result += head // heads * result_by_batch + head % heads * result_by_head
    source += head // heads * source_by_batch
    source += (head % heads * GROUP if ADJOINT else head % heads // GROUP) * source_by_head
    totals += (head if ADJOINT else head // GROUP) * segments * dim
    weights += head * tokens
    RUNNING: tl.constexpr = KIND == "causal" or KIND == "window"  # noqa: PLR1714 - Triton knows no "in"
    MEMBERS: tl.constexpr = GROUP if ADJOINT else 1
    WEIGHING: tl.constexpr = ("counts" if ADJOINT else "ones") if RUNNING else "ones" if ADJOINT else KIND
    first = segment * length
    before = _before(
        source, weights, totals, segment, segments, length, tokens, dim, source_by_head, source_by_token, reach,
        KIND, MEMBERS, WEIGHING, ADJOINT, SEGMENTED, SEGMENTS, BLOCK, WIDTH,
    )  # fmt: skip
    if KIND == "all":
        before /= tokens
    # loads of shared heads are many enough without a pipeline
    for step in tl.range(0, length, BLOCK, num_stages=1 if MEMBERS > 1 else 3):
        start = first + (length - BLOCK - step if ADJOINT and RUNNING else step)
        terms, weighted = _terms(
            source, weights, start, tokens, dim, source_by_head, source_by_token, reach,
            WEIGHING, MEMBERS, BLOCK, WIDTH,
        )  # fmt: skip
        token = start + tl.arange(0, BLOCK)
        if RUNNING:
            change = weighted
            if KIND == "window":
                change -= _terms(
                    source, weights, start + reach if ADJOINT else start - reach, tokens, dim, source_by_head,
                    source_by_token, reach, WEIGHING, MEMBERS, BLOCK, WIDTH,
                )[1]  # fmt: skip
            total = tl.sum(change, 0)
            if ADJOINT:  # Triton has reverse sums, but turns the block around for them
                mean = (before + total)[None, :] - tl.cumsum(change, 0) + change
            else:
                mean = (before[None, :] + tl.cumsum(change, 0)) * _weights(weights, token, tokens, reach, "counts")
            before += total
        else:
            mean = before[None, :] * _weights(weights, token, tokens, reach, KIND if ADJOINT else "ones")
        less = own * terms - scale * mean
        if TARGET:
            _, where, exists = _tile(start, target_by_token, tokens, dim, BLOCK, WIDTH)
            less += keep * tl.load(target + where, mask=exists, other=0.0).to(tl.float32)
        _, where, exists = _tile(start, result_by_token, tokens, dim, BLOCK, WIDTH)
        tl.store(result + where, less.to(result.dtype.element_ty), mask=exists)
