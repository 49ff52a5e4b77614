"""Kernels that subtract means of values on a GPU: each program walks through a segment of a head, block by block.

Sums stay in registers in single precision, and what is subtracted is never written. Triton compiles the kernels; it
comes with torch where there is CUDA. :mod:`bulkedge.nn.fused` launches them and says what they compute.

Names: ``by_batch, by_head, by_token`` are strides, whose last is one; capital letters are known when compiled.
"""
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917 - signatures as Triton has them
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
def _weights(weights, token, tokens, KIND: tl.constexpr):
    """Of tokens in a sum: from memory, one over the number of tokens up to this one, or one."""
    if KIND == "given":
        weight = tl.load(weights + token, mask=token < tokens, other=0.0)[:, None]
    elif KIND == "counts":
        weight = 1.0 / (token + 1)[:, None]
    else:
        weight = 1.0
    return weight


@triton.jit
def _sum(
    source, weights, first, length, tokens, dim, by_head, by_token,
    KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Weighted sum of the tokens of a segment, over a group of heads."""
    sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in tl.range(first, min(first + length, tokens), BLOCK, num_stages=3 if GROUP == 1 else 1):
        token, where, exists = _tile(start, by_token, tokens, dim, BLOCK, WIDTH)
        weight = _weights(weights, token, tokens, KIND)
        for member in tl.static_range(GROUP):
            sums += weight * tl.load(source + member * by_head + where, mask=exists, other=0.0).to(tl.float32)
    return tl.sum(sums, 0)


@triton.jit
def sum_segments(
    source, weights, totals, tokens, dim, heads, segments, length, by_batch, by_head, by_token,
    KIND: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``totals``: weighted sums of segments, over groups of heads."""
    program = tl.program_id(0).to(tl.int64)
    head, segment = program // segments, program % segments
    source += head // heads * by_batch + head % heads * GROUP * by_head
    weights += head * tokens
    total = _sum(
        source, weights, segment * length, length, tokens, dim, by_head, by_token, KIND, GROUP, BLOCK, WIDTH
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
def centre(
    value, weights, result, totals, tokens, dim, heads, segments, length,
    value_by_batch, value_by_head, value_by_token, result_by_batch, result_by_head, result_by_token,
    KIND: tl.constexpr, WEIGH_TOTAL: tl.constexpr, SEGMENTED: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``result``: values less the weighted sum of a head, or less the plain sum times the weights."""
    # last ones first: the cache still holds them
    program = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    head, segment = program // segments, program % segments
    value += head // heads * value_by_batch + head % heads * value_by_head
    result += head // heads * result_by_batch + head % heads * result_by_head
    weights += head * tokens
    if SEGMENTED:
        total = _add_up(totals + head * segments * dim, 0, segments, dim, SEGMENTS, WIDTH)
    else:
        total = _sum(value, weights, 0, length, tokens, dim, 0, value_by_token, KIND, 1, BLOCK, WIDTH)
    if KIND == "ones" and not WEIGH_TOTAL:
        total /= tokens
    first = segment * length
    for start in tl.range(first, min(first + length, tokens), BLOCK, num_stages=3):
        token, where, exists = _tile(start, value_by_token, tokens, dim, BLOCK, WIDTH)
        weight = _weights(weights, token, tokens, "given" if WEIGH_TOTAL else "ones")
        less = tl.load(value + where, mask=exists).to(tl.float32) - weight * total[None, :]
        token, where, exists = _tile(start, result_by_token, tokens, dim, BLOCK, WIDTH)
        tl.store(result + where, less.to(result.dtype.element_ty), mask=exists)


@triton.jit
def run(
    target, source, result, totals, keep, own, scale, tokens, dim, heads, segments, length,
    target_by_batch, target_by_head, target_by_token, source_by_batch, source_by_head, source_by_token,
    result_by_batch, result_by_head, result_by_token,
    GROUP: tl.constexpr, ADJOINT: tl.constexpr, TARGET: tl.constexpr, SEGMENTED: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``result``: ``keep`` times the target, plus ``own`` times the source, less ``scale`` times its running mean.

    For the adjoint, less running sums of the source over counts, from the end. Without a `TARGET` none is read.
    """
    program = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    head, segment = program // segments, program % segments
    target += head // heads * target_by_batch + head % heads * target_by_head
    result += head // heads * result_by_batch + head % heads * result_by_head
    first = head % heads * GROUP if ADJOINT else head % heads // GROUP
    source += head // heads * source_by_batch + first * source_by_head
    totals += (head if ADJOINT else head // GROUP) * segments * dim
    if not SEGMENTED:
        before = tl.zeros((WIDTH,), tl.float32)
    elif ADJOINT:
        before = _add_up(totals, segment + 1, segments, dim, SEGMENTS, WIDTH)
    else:
        before = _add_up(totals, 0, segment, dim, SEGMENTS, WIDTH)
    # loads of shared heads are many enough without a pipeline
    for step in tl.range(0, length, BLOCK, num_stages=1 if ADJOINT and GROUP > 1 else 3):
        start = segment * length + (length - BLOCK - step if ADJOINT else step)
        token, where, exists = _tile(start, source_by_token, tokens, dim, BLOCK, WIDTH)
        weight = _weights(source, token, tokens, "counts")
        terms = tl.load(source + where, mask=exists, other=0.0).to(tl.float32)
        if ADJOINT:
            for member in tl.static_range(1, GROUP):
                terms += tl.load(source + member * source_by_head + where, mask=exists, other=0.0).to(tl.float32)
            weighted = terms * weight
            total = tl.sum(weighted, 0)
            # Triton has reverse sums, but turns the block around for them
            sums = (before + total)[None, :] - tl.cumsum(weighted, 0) + weighted
        else:
            total = tl.sum(terms, 0)
            sums = (before[None, :] + tl.cumsum(terms, 0)) * weight
        before += total
        less = own * terms - scale * sums
        if TARGET:
            token, where, exists = _tile(start, target_by_token, tokens, dim, BLOCK, WIDTH)
            less += keep * tl.load(target + where, mask=exists, other=0.0).to(tl.float32)
        token, where, exists = _tile(start, result_by_token, tokens, dim, BLOCK, WIDTH)
        tl.store(result + where, less.to(result.dtype.element_ty), mask=exists)
