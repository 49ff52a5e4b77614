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
def _dot(first, second, WIDEN: tl.constexpr):
    """Product of bfloat16 tiles, summed in single precision; Triton's interpreter needs it in single throughout."""
    if WIDEN:
        product = tl.dot(first.to(tl.float32), second.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(first, second)
    return product


@triton.jit
def _scores(
    own_parts, other_parts, heads, head, own, owns, other, others, dim,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Scores of a block of tokens with a block of the other side, summed from the smallest products of parts on."""
    scores = tl.zeros((own.shape[0], other.shape[0]), tl.float32)
    for order in tl.static_range(PARTS - 1, -1, -1):
        for part in tl.static_range(order + 1):
            mine = _load(own_parts, part, heads, head, own, owns, dim, WIDTH)
            theirs = _load(other_parts, order - part, heads, head, other, others, dim, WIDTH)
            scores += _dot(mine, tl.trans(theirs), WIDEN)
    return scores


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
    largest = tl.full((OWN,), -float("inf"), tl.float32)
    total = tl.zeros((OWN,), tl.float32)
    start, stop = 0, keys
    if WINDOW:
        start, stop = tl.maximum(first - width + 1, 0) // OTHER * OTHER, tl.minimum(first + OWN, keys)
    for begin in range(start, stop, OTHER):
        column = begin + tl.arange(0, OTHER)
        scores = _scores(query_parts, key_parts, heads, head, row, queries, column, keys, dim, WIDTH, PARTS, WIDEN)
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
        scores = _scores(own_parts, other_parts, heads, head, own, owns, other, others, dim, WIDTH, PARTS, WIDEN)
        if TRANSPOSED:
            shift = tl.load(log_normaliser + other, mask=other < others, other=0.0)[None, :]
            visible = _visible(other[None, :], own[:, None], others, owns, width, WINDOW)
        else:
            shift = tl.load(log_normaliser + own, mask=own < owns, other=0.0)[:, None]
            visible = _visible(own[:, None], other[None, :], owns, others, width, WINDOW)
        weights = tl.exp(tl.where(visible, scores - shift, -float("inf")))
        for part in tl.static_range(VECTOR_PARTS):
            piece = weights.to(tl.bfloat16)
            weights -= piece.to(tl.float32)
            for second in tl.static_range(VECTOR_PARTS - part):
                vectors = _load(vector_parts, second, heads, head, other, others, columns, COLUMNS)
                sums += _dot(piece, vectors, WIDEN)
    column = tl.arange(0, COLUMNS)[None, :]
    where = (head.to(tl.int64) * owns + own.to(tl.int64)[:, None]) * columns + column
    tl.store(result + where, sums, mask=(own < owns)[:, None] & (column < columns))
