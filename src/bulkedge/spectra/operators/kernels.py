"""Kernels for products with attention on a GPU, to single precision and without ever forming the matrix.

Tensor cores multiply bfloat16, which has eight digits of two. A number in single precision is the sum of ``PARTS`` such
numbers, the first of which holds its leading digits, and a product of two is the sum of the products of parts a and b
with ``a + b < PARTS``: three of them for two parts (relative error about 1e-5), six for three (1e-7). Parts of queries,
keys and vectors are made once, those of the weights in registers.

Each program owns a block of tokens, on one side of the scores, and walks along the blocks of the other side. With the
normaliser of every row known, a weight is ``2**(score - normaliser)`` on both sides: rows own the product with A,
columns that with its transpose. Scores and normalisers are logarithms to the base two, the one that a GPU computes
with. Blocks that are seen as a whole are walked without a mask, which would take as long as the exponentials.

Arrays are contiguous: parts (PARTS, heads, tokens, dim), normalisers (heads, tokens), results (heads, tokens, columns).
Capital letters are known when compiled. Triton compiles the kernels;
:mod:`bulkedge.spectra.operators.torch_products` launches them.
"""
# ruff: noqa: ANN001, ANN201, ANN202, FBT003, N803, PLR0913, PLR0917 - signatures as Triton has them
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _load(
    parts, part, heads, head, first, tokens,
    BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One part of the tokens from `first` on, zero where there are none; `WHOLE` if all of them exist."""
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    start = parts + ((part * heads + head).to(tl.int64) * tokens + first) * DIM
    if WHOLE and DIM == WIDTH:
        found = tl.load(start + row * DIM + column)
    else:
        found = tl.load(start + row * DIM + column, mask=(first + row < tokens) & (column < DIM), other=0.0)
    return found


@triton.jit
def _add_product(sums, first, second, WIDEN: tl.constexpr):
    """``sums`` plus a product of bfloat16 tiles; Triton's interpreter needs these in single precision."""
    if WIDEN:
        found = tl.dot(first.to(tl.float32), second.to(tl.float32), sums, input_precision="ieee")
    else:
        found = tl.dot(first, second, sums)
    return found


@triton.jit
def _three(
    parts, heads, head, first, tokens,
    BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """All parts of some tokens; where there are fewer than three the last ones are not used, and not loaded."""
    one = _load(parts, 0, heads, head, first, tokens, BLOCK, DIM, WIDTH, WHOLE)
    two = one
    three = one
    if PARTS > 1:
        two = _load(parts, 1, heads, head, first, tokens, BLOCK, DIM, WIDTH, WHOLE)
    if PARTS > 2:
        three = _load(parts, 2, heads, head, first, tokens, BLOCK, DIM, WIDTH, WHOLE)
    return one, two, three


@triton.jit
def _add_scores(sums, own_1, own_2, own_3, other_1, other_2, other_3, PARTS: tl.constexpr, WIDEN: tl.constexpr):
    """``sums`` plus the scores of two blocks of tokens, from the smallest products of parts on."""
    if PARTS > 2:
        sums = _add_product(sums, own_3, tl.trans(other_1), WIDEN)
        sums = _add_product(sums, own_2, tl.trans(other_2), WIDEN)
        sums = _add_product(sums, own_1, tl.trans(other_3), WIDEN)
    if PARTS > 1:
        sums = _add_product(sums, own_2, tl.trans(other_1), WIDEN)
        sums = _add_product(sums, own_1, tl.trans(other_2), WIDEN)
    return _add_product(sums, own_1, tl.trans(other_1), WIDEN)


@triton.jit
def _visible(query, key, queries, keys, width, WINDOW: tl.constexpr):
    """Which queries see which keys; those that do not exist see nothing and are not seen."""
    visible = (query < queries) & (key < keys)
    if WINDOW:
        visible &= (query >= key) & (query - key < width)
    return visible


@triton.jit
def _reach(
    first, others, width, TRANSPOSED: tl.constexpr, WINDOW: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr
):
    """Where the walk of a program starts, is seen as a whole from and until, and stops; in blocks but for the end."""
    if not WINDOW:
        start, whole_from, whole_until, stop = 0, 0, others // OTHER * OTHER, others
    elif TRANSPOSED:  # the queries that see all own keys: from the last key on, until the first one leaves their window
        start, stop = first // OTHER * OTHER, tl.minimum(first + OWN + width - 1, others)
        whole_from = tl.cdiv(first + OWN - 1, OTHER) * OTHER
        whole_until = tl.minimum(first + width, others) // OTHER * OTHER
    else:  # the keys that all own queries see
        start, stop = tl.maximum(first - width + 1, 0) // OTHER * OTHER, tl.minimum(first + OWN, others)
        whole_from = tl.cdiv(tl.maximum(first + OWN - width, 0), OTHER) * OTHER
        whole_until = tl.minimum(first + 1, others) // OTHER * OTHER
    whole_from = tl.minimum(whole_from, tl.cdiv(stop, OTHER) * OTHER)
    return start, whole_from, tl.maximum(whole_until, whole_from), stop


@triton.jit
def _add_exponentials(
    largest, total, own_1, own_2, own_3, key_parts, heads, head, row, queries, keys, width, start, stop,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """The largest score of each row so far, and the sum of all relative to it, over some blocks of keys."""
    for begin in range(start, stop, OTHER):
        one, two, three = _three(key_parts, heads, head, begin, keys, OTHER, DIM, WIDTH, PARTS, not MASKED)
        scores = tl.zeros((OWN, OTHER), tl.float32)
        scores = _add_scores(scores, own_1, own_2, own_3, one, two, three, PARTS, WIDEN)
        if MASKED:
            column = begin + tl.arange(0, OTHER)
            visible = _visible(row[:, None], column[None, :], queries, keys, width, WINDOW)
            scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # a row that has seen nothing yet has no largest score to compare with
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2(tl.minimum(largest - shift, 0.0)) + tl.sum(tl.exp2(scores - shift[:, None]), 1)
        largest = higher
    return largest, total


@triton.jit
def normalise(
    query_parts, key_parts, normaliser, heads, queries, keys, width,
    WINDOW: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """``normaliser``: logarithm to the base two of the sum of ``2**score`` over each row."""
    # the last rows of a window see most, and come first
    first, head = (tl.num_programs(0) - 1 - tl.program_id(0)) * OWN, tl.program_id(1)
    row = first + tl.arange(0, OWN)
    own_1, own_2, own_3 = _three(query_parts, heads, head, first, queries, OWN, DIM, WIDTH, PARTS, False)
    largest, total = tl.full((OWN,), -float("inf"), tl.float32), tl.zeros((OWN,), tl.float32)
    start, whole_from, whole_until, stop = _reach(first, keys, width, False, WINDOW, OWN, OTHER)
    if WINDOW:
        largest, total = _add_exponentials(
            largest, total, own_1, own_2, own_3, key_parts, heads, head, row, queries, keys, width, start, whole_from,
            True, WINDOW, PARTS, WIDEN, DIM, WIDTH, OWN, OTHER,
        )  # fmt: skip
    largest, total = _add_exponentials(
        largest, total, own_1, own_2, own_3, key_parts, heads, head, row, queries, keys, width, whole_from, whole_until,
        False, WINDOW, PARTS, WIDEN, DIM, WIDTH, OWN, OTHER,
    )  # fmt: skip
    largest, total = _add_exponentials(
        largest, total, own_1, own_2, own_3, key_parts, heads, head, row, queries, keys, width, whole_until, stop,
        True, WINDOW, PARTS, WIDEN, DIM, WIDTH, OWN, OTHER,
    )  # fmt: skip
    where = head.to(tl.int64) * queries + row
    tl.store(normaliser + where, largest + tl.log2(tl.maximum(total, 1.0)), mask=row < queries)


@triton.jit
def _add_products(
    sums, own_1, own_2, own_3, other_parts, vector_parts, normaliser, shift, heads, head, own, owns, others, width,
    start, stop, MASKED: tl.constexpr, TRANSPOSED: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr,
    VECTOR_PARTS: tl.constexpr, WIDEN: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    COLUMNS: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """``sums`` plus weights times vectors, over some blocks of the other side."""
    for begin in range(start, stop, OTHER):
        other = begin + tl.arange(0, OTHER)
        if TRANSPOSED:  # the other side has the normalisers; tokens that do not exist have no weight
            shift = tl.load(normaliser + other, mask=other < others, other=float("inf"))[None, :]
        one, two, three = _three(other_parts, heads, head, begin, others, OTHER, DIM, WIDTH, PARTS, not MASKED)
        scores = tl.zeros((OWN, OTHER), tl.float32) - shift
        scores = _add_scores(scores, own_1, own_2, own_3, one, two, three, PARTS, WIDEN)
        if MASKED:
            if TRANSPOSED:
                visible = _visible(other[None, :], own[:, None], others, owns, width, WINDOW)
            else:
                visible = _visible(own[:, None], other[None, :], owns, others, width, WINDOW)
            scores = tl.where(visible, scores, -float("inf"))
        weights = tl.exp2(scores)
        one, two, three = _three(
            vector_parts, heads, head, begin, others, OTHER, COUNT, COLUMNS, VECTOR_PARTS, not MASKED
        )  # fmt: skip
        weights_1 = weights.to(tl.bfloat16)
        # a block has sums of its own: tensor cores round towards zero, which adds up along a walk
        block = tl.zeros((OWN, COLUMNS), tl.float32)
        if VECTOR_PARTS > 1:
            weights -= weights_1.to(tl.float32)
            weights_2 = weights.to(tl.bfloat16)
            if VECTOR_PARTS > 2:
                weights_3 = (weights - weights_2.to(tl.float32)).to(tl.bfloat16)
                block = _add_product(block, weights_3, one, WIDEN)
                block = _add_product(block, weights_2, two, WIDEN)
                block = _add_product(block, weights_1, three, WIDEN)
            block = _add_product(block, weights_2, one, WIDEN)
            block = _add_product(block, weights_1, two, WIDEN)
        sums += _add_product(block, weights_1, one, WIDEN)
    return sums


@triton.jit
def multiply(
    own_parts, other_parts, normaliser, vector_parts, result, heads, owns, others, width,
    TRANSPOSED: tl.constexpr, WINDOW: tl.constexpr, PARTS: tl.constexpr, VECTOR_PARTS: tl.constexpr,
    WIDEN: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr, COLUMNS: tl.constexpr,
    OWN: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """``result``: A times vectors, where rows are a program's own; its transpose times vectors, where columns are."""
    block, head = tl.program_id(0), tl.program_id(1)
    if not TRANSPOSED:  # the last rows of a window see most, and come first
        block = tl.num_programs(0) - 1 - block
    first = block * OWN
    own = first + tl.arange(0, OWN)
    own_1, own_2, own_3 = _three(own_parts, heads, head, first, owns, OWN, DIM, WIDTH, PARTS, False)
    sums = tl.zeros((OWN, COLUMNS), tl.float32)
    start, whole_from, whole_until, stop = _reach(first, others, width, TRANSPOSED, WINDOW, OWN, OTHER)
    if TRANSPOSED:
        normaliser += head.to(tl.int64) * others
        shift = tl.zeros((1, OTHER), tl.float32)
    else:
        normaliser += head.to(tl.int64) * owns
        shift = tl.load(normaliser + own, mask=own < owns, other=float("inf"))[:, None]
    if WINDOW:
        sums = _add_products(
            sums, own_1, own_2, own_3, other_parts, vector_parts, normaliser, shift, heads, head, own, owns, others,
            width, start, whole_from,
            True, TRANSPOSED, WINDOW, PARTS, VECTOR_PARTS, WIDEN, DIM, WIDTH, COUNT, COLUMNS, OWN, OTHER,
        )  # fmt: skip
    sums = _add_products(
        sums, own_1, own_2, own_3, other_parts, vector_parts, normaliser, shift, heads, head, own, owns, others,
        width, whole_from, whole_until,
        False, TRANSPOSED, WINDOW, PARTS, VECTOR_PARTS, WIDEN, DIM, WIDTH, COUNT, COLUMNS, OWN, OTHER,
    )  # fmt: skip
    sums = _add_products(
        sums, own_1, own_2, own_3, other_parts, vector_parts, normaliser, shift, heads, head, own, owns, others,
        width, whole_until, stop,
        True, TRANSPOSED, WINDOW, PARTS, VECTOR_PARTS, WIDEN, DIM, WIDTH, COUNT, COLUMNS, OWN, OTHER,
    )  # fmt: skip
    column = tl.arange(0, COLUMNS)[None, :]
    where = (head.to(tl.int64) * owns + own.to(tl.int64)[:, None]) * COUNT + column
    tl.store(result + where, sums, mask=(own < owns)[:, None] & (column < COUNT))
