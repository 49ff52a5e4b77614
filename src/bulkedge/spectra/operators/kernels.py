"""Kernels for products with attention on a GPU, to single precision and without ever forming the matrix.

Tensor cores multiply bfloat16, which has eight digits of two. A number in single precision is the sum of ``PARTS`` such
numbers, the first of which holds its leading digits, and a product of two is the sum of the products of parts a and b
with ``a + b < PARTS``: three of them for two parts (relative error about 1e-5), six for three (1e-7). Parts of queries,
keys and vectors are made once, those of the weights in registers.

Each program owns a block of tokens, on one side of the scores, and walks along the blocks of the other side. With the
normaliser of every row known, a weight is ``exp(score - log normaliser)`` on both sides: rows own the product with A,
columns that with its transpose. Triton compiles the kernels; :mod:`bulkedge.spectra.operators.tiles` launches them.

Arrays are contiguous: parts (PARTS, heads, tokens, dim), normalisers (heads, tokens), results (heads, tokens, columns).
Capital letters are known when compiled.
"""
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917 - signatures as Triton has them
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _load(parts, part, heads, head, token, tokens, dim, WIDTH: tl.constexpr):
    """One part of some tokens, zero where there are none."""
    column = tl.arange(0, WIDTH)[None, :]
    where = ((part * heads + head).to(tl.int64) * tokens + token.to(tl.int64)[:, None]) * dim + column
    return tl.load(parts + where, mask=(token < tokens)[:, None] & (column < dim), other=0.0)


@triton.jit
def _add_product(sums, first, second, WIDEN: tl.constexpr):
    """``sums`` plus a product of bfloat16 tiles; Triton's interpreter needs these in single precision."""
    if WIDEN:
        found = tl.dot(first.to(tl.float32), second.to(tl.float32), sums, input_precision="ieee")
    else:
        found = tl.dot(first, second, sums)
    return found


@triton.jit
def _three(parts, heads, head, token, tokens, dim, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """All parts of some tokens; where there are fewer than three the last ones are not used, and not loaded."""
    first = _load(parts, 0, heads, head, token, tokens, dim, WIDTH)
    second = first
    third = first
    if PARTS > 1:
        second = _load(parts, 1, heads, head, token, tokens, dim, WIDTH)
    if PARTS > 2:
        third = _load(parts, 2, heads, head, token, tokens, dim, WIDTH)
    return first, second, third


@triton.jit
def _scores(
    own_1, own_2, own_3, other_parts, heads, head, other, others, dim,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Scores of a block of tokens with a block of the other side, summed from the smallest products of parts on."""
    other_1, other_2, other_3 = _three(other_parts, heads, head, other, others, dim, WIDTH, PARTS)
    scores = tl.zeros((own_1.shape[0], other.shape[0]), tl.float32)
    if PARTS > 2:
        scores = _add_product(scores, own_3, tl.trans(other_1), WIDEN)
        scores = _add_product(scores, own_2, tl.trans(other_2), WIDEN)
        scores = _add_product(scores, own_1, tl.trans(other_3), WIDEN)
    if PARTS > 1:
        scores = _add_product(scores, own_2, tl.trans(other_1), WIDEN)
        scores = _add_product(scores, own_1, tl.trans(other_2), WIDEN)
    return _add_product(scores, own_1, tl.trans(other_1), WIDEN)


@triton.jit
def _visible(query, key, queries, keys, width, WINDOW: tl.constexpr):
    """Which queries see which keys; those that do not exist see nothing and are not seen."""
    visible = (query < queries) & (key < keys)
    if WINDOW:
        visible &= (query >= key) & (query - key < width)
    return visible


@triton.jit
def normalise(
    query_parts, key_parts, log_normaliser, heads, queries, keys, dim, width,
    WINDOW: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
    WIDTH: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """``log_normaliser``: logarithm of the sum of the exponentials of each row's scores."""
    first, head = tl.program_id(0) * OWN, tl.program_id(1)
    row = first + tl.arange(0, OWN)
    own_1, own_2, own_3 = _three(query_parts, heads, head, row, queries, dim, WIDTH, PARTS)
    largest = tl.full((OWN,), -float("inf"), tl.float32)
    total = tl.zeros((OWN,), tl.float32)
    start, stop = 0, keys
    if WINDOW:
        start, stop = tl.maximum(first - width + 1, 0) // OTHER * OTHER, tl.minimum(first + OWN, keys)
    for begin in range(start, stop, OTHER):
        column = begin + tl.arange(0, OTHER)
        scores = _scores(own_1, own_2, own_3, key_parts, heads, head, column, keys, dim, WIDTH, PARTS, WIDEN)
        visible = _visible(row[:, None], column[None, :], queries, keys, width, WINDOW)
        scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # a row that has seen nothing yet has no largest score to compare with
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(tl.minimum(largest - shift, 0.0)) + tl.sum(tl.exp(scores - shift[:, None]), 1)
        largest = higher
    where = head.to(tl.int64) * queries + row
    tl.store(log_normaliser + where, largest + tl.log(tl.maximum(total, 1.0)), mask=row < queries)


@triton.jit
def multiply(
    own_parts, other_parts, log_normaliser, vector_parts, result, heads, owns, others, dim, columns, width,
    TRANSPOSED: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr, VECTOR_PARTS: tl.constexpr,
    WIDEN: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """``result``: A times vectors, where rows are a program's own; its transpose times vectors, where columns are."""
    first, head = tl.program_id(0) * OWN, tl.program_id(1)
    own = first + tl.arange(0, OWN)
    own_1, own_2, own_3 = _three(own_parts, heads, head, own, owns, dim, WIDTH, PARTS)
    sums = tl.zeros((OWN, COLUMNS), tl.float32)
    start, stop = 0, others
    if WINDOW:
        if TRANSPOSED:
            start, stop = first // OTHER * OTHER, tl.minimum(first + OWN + width - 1, others)
        else:
            start, stop = tl.maximum(first - width + 1, 0) // OTHER * OTHER, tl.minimum(first + OWN, others)
    rows = owns
    if TRANSPOSED:
        rows = others
    log_normaliser += head.to(tl.int64) * rows
    for begin in range(start, stop, OTHER):
        other = begin + tl.arange(0, OTHER)
        scores = _scores(own_1, own_2, own_3, other_parts, heads, head, other, others, dim, WIDTH, PARTS, WIDEN)
        if TRANSPOSED:
            shift = tl.load(log_normaliser + other, mask=other < others, other=0.0)[None, :]
            visible = _visible(other[None, :], own[:, None], others, owns, width, WINDOW)
        else:
            shift = tl.load(log_normaliser + own, mask=own < owns, other=0.0)[:, None]
            visible = _visible(own[:, None], other[None, :], owns, others, width, WINDOW)
        weights = tl.exp(tl.where(visible, scores - shift, -float("inf")))
        one, two, three = _three(vector_parts, heads, head, other, others, columns, COLUMNS, VECTOR_PARTS)
        weights_1 = weights.to(tl.bfloat16)
        if VECTOR_PARTS > 1:
            weights -= weights_1.to(tl.float32)
            weights_2 = weights.to(tl.bfloat16)
            if VECTOR_PARTS > 2:
                weights_3 = (weights - weights_2.to(tl.float32)).to(tl.bfloat16)
                sums = _add_product(sums, weights_3, one, WIDEN)
                sums = _add_product(sums, weights_2, two, WIDEN)
                sums = _add_product(sums, weights_1, three, WIDEN)
            sums = _add_product(sums, weights_2, one, WIDEN)
            sums = _add_product(sums, weights_1, two, WIDEN)
        sums = _add_product(sums, weights_1, one, WIDEN)
    column = tl.arange(0, COLUMNS)[None, :]
    where = (head.to(tl.int64) * owns + own.to(tl.int64)[:, None]) * columns + column
    tl.store(result + where, sums, mask=(own < owns)[:, None] & (column < columns))
