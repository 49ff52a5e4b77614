"""Programs: written, printed, and refused where the limit is not known."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.programs import (
    RELU,
    Attention,
    attention_layer,
    center,
    dot,
    linear,
    moment,
    nonlin,
    scalar,
    softmax,
    stack,
    sum_copies,
    trace,
    weight,
)
from bulkedge.programs.graph import Program
from bulkedge.programs.instructions import Add, Input, MatMul

GRAM = [[1.0, 0.4], [0.4, 1.0]]


def test_a_layer_reads_as_its_formula():
    lines = str(be.programs.attention_layer(GRAM, heads=4, head_width="split")).splitlines()
    assert lines[1].split("  ")[0] == "W1 = weight"
    assert lines[1].endswith("matrix n/4 × n, 4 copies")
    assert not any("1 copies" in line for line in lines)
    assert "p5 = g2 · g4 / √n" in lines[5]
    assert "a6 = softmax(p5)" in lines[6]
    assert lines[-1] == "return y12"


def test_programs_are_values():
    assert attention_layer(GRAM, heads=3) == attention_layer(np.array(GRAM), heads=3)
    assert attention_layer(GRAM, heads=3) != attention_layer(GRAM, heads=2)


def tied(x):
    query = linear(x)
    return scalar(softmax, dot(query, query)) @ x


def transposed(x):
    w = weight(x)
    return w.T @ (w @ x)


def nested(x):
    return nonlin(RELU, nonlin(RELU, linear(x)))


def through(x):
    w = weight(x)
    return dot(w @ x, linear(nonlin(RELU, w @ x)))


def not_a_product(x):
    return dot(x, linear(x))


def twice(x):
    w, v = weight(x), weight(x)
    return dot(w @ x, v @ x), dot(w @ x, v @ linear(x))


def summed(x):
    return sum_copies(nonlin(RELU, linear(x, copies=3)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (tied, "both come from W1: their dot product grows like √n; use scaling='linear'"),
        (transposed, "a weight and its transpose in one program are outside of Netsor"),
        (nested, "h3 is not Gaussian given the scalars: make it one function"),
        (through, "depends on W1, which the other side comes from"),
        (not_a_product, "x0 must come straight from a weight"),
        (twice, "p5 has the same two weights: take all their dot products in one"),
        (summed, "h3 is not Gaussian given the scalars: multiply it by a weight first"),
    ],
)
def test_what_is_outside_of_the_theorem_is_refused(function, reason):
    with pytest.raises(ValueError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        trace(function, GRAM)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: linear(x, copies=2), "return scalars, or vectors with their copies summed"),
        (weight, "return scalars, or vectors"),
        (lambda x: x + linear(x, share=2), "cannot add 2 vectors of width 2n/1"),
        (lambda x: x @ x, "x0 must be a weight"),
        (lambda x: linear(moment(x)), "must be vectors; it is 2 scalars"),
        (lambda x: moment(x) @ x, "which do not fit 2 vectors"),
        (lambda x: weight(x) @ linear(x, copies=2), "2 copies need a weight each"),
        (lambda x: dot(linear(x), linear(x, copies=2)), "no dot product of"),
        (lambda x: scalar(lambda p: p.sum(), moment(x)), "must keep the first axis"),
        (lambda x: nonlin(lambda u, v: u * v, linear(x), linear(x, share=2)), "arguments must be of one kind"),
        (lambda x: linear(x, variance=-1.0), "variance = -1.0 is outside its domain"),
        (lambda x: linear(x, copies=0), "copies = 0 is outside its domain"),
    ],
)
def test_what_does_not_fit_is_refused(function, reason):
    with pytest.raises(ValueError, match=reason):
        trace(function, GRAM)


@pytest.mark.parametrize(
    ("gram", "reason"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "gram has the eigenvalue -1; it must be a symmetric positive semidefinite"),
        ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([[1.0, np.nan], [np.nan, 1.0]], "gram contains NaN"),
        ([1.0, 2.0], "square matrix"),
        (np.zeros((0, 0)), "square matrix"),
    ],
)
def test_gram_matrices_are_checked(gram, reason):
    with pytest.raises(ValueError, match=reason):
        attention_layer(gram)


def test_bad_sizes():
    with pytest.raises(ValueError, match="heads = 0 is outside its domain"):
        attention_layer(GRAM, heads=0)
    layer = attention_layer(GRAM, heads=3, head_width="split")
    with pytest.raises(ValueError, match=r"width = 10 does not divide.*take a multiple of 3"):
        layer.finite(10, np.random.default_rng(0))
    with pytest.raises(ValueError, match="width = 0 is outside"):
        layer.finite(0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="width = 3 is too small for 4 inputs"):
        attention_layer(np.eye(4)).finite(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="draws = 0 is outside"):
        layer.limit(np.random.default_rng(0), draws=0)
    with pytest.raises(ValueError, match="neither a numpy"):
        layer.limit(0)
    with pytest.raises(ValueError, match="needs projection = True"):
        Attention(head_width="split", projection=False)
    with pytest.raises(ValueError, match="depth = 0 is outside"):
        stack(GRAM, Attention(), 0)
    with pytest.raises(ValueError, match="score_scaling = 'cube' is outside"):
        attention_layer(GRAM, score_scaling="cube")
    with pytest.raises(ValueError, match="returns no vectors"):
        trace(moment, GRAM).kernels(np.random.default_rng(0))


def test_a_program_written_by_hand_is_checked_too():
    given = Input("x", ((1.0,),))
    with pytest.raises(ValueError, match="W must be defined before, and once"):
        Program((given, MatMul("g", "W", "x")), ("g",))
    with pytest.raises(ValueError, match="x must be defined before, and once"):
        Program((given, given), ("x",))
    assert Program((given, Add("y", "x", "x")), ("y",)).limit(np.random.default_rng(0), 4).shape == (4, 1)


def test_center_and_moment_of_a_function():
    program = trace(lambda x: (moment(nonlin(RELU, x)), moment(center(nonlin(RELU, x)))), GRAM)
    mean, centred = program.limit(np.random.default_rng(0), 1)
    assert mean[0] == pytest.approx([(2 * np.pi) ** -0.5] * 2, abs=1e-12)
    assert centred[0] == pytest.approx([0, 0])


def test_second_moments_of_sums():
    """Independent vectors add their kernels; a vector and itself have four times the kernel."""
    gram, rng = np.array(GRAM), np.random.default_rng(0)
    for function, factor in (
        (lambda x: x + linear(x), 2.0),
        (lambda x: linear(x) + x, 2.0),
        (lambda x: x + x, 4.0),
        (lambda x: linear(x) + linear(x) + x, 3.0),
    ):
        (kernel,) = trace(function, GRAM).kernels(rng, 1)
        assert kernel == pytest.approx(factor * gram, rel=1e-12)
