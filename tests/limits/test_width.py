"""Programs at finite width against their limit, at seeds that nothing was tuned on."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.stats import multivariate_normal, norm

import bulkedge as be
from bulkedge.programs import (
    RELU,
    TANH,
    Attention,
    Block,
    Perceptron,
    Smooth,
    attention_layer,
    dot,
    linear,
    moment,
    nonlin,
    scalar,
    softmax,
    stack,
    trace,
    training,
    weight,
)
from bulkedge.programs.distances import two_sample_test
from bulkedge.programs.mixture import HeadMixture, infinite_head_kernel, infinite_head_layer
from bulkedge.programs.training import Training

GRAM = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, -0.3], [0.2, -0.3, 1.4]])


def random_gram(size, seed):
    root = np.random.default_rng(seed).standard_normal((size, size + 1))
    return root @ root.T / size


def deviations(draws, expected):
    """How far the mean of draws is from what is expected, in standard errors."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return (draws.mean(axis=0) - expected) / error


def plausible(z):
    """Whether the largest of so many standard Gaussians may be as large; one in a thousand are not."""
    return np.max(np.abs(z)) < norm.isf(0.0005 / z.size)


def layer_with_scores(heads):
    def write(x):
        scores = dot(linear(x, copies=heads), linear(x, copies=heads))
        values = linear(x, copies=heads)
        y = be.programs.sum_copies(linear(scalar(softmax, scores) @ values, variance=1 / heads, copies=heads))
        return scores, y, dot(y, y, "linear")

    return write


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("where", ["limit", "finite"])
def test_covariance_of_scores(size, where):
    """``Cov(p_ij, p_kl) = gram_ik gram_jl``, which holds at any width."""
    gram = random_gram(size, 200 + size)
    program = trace(lambda x: dot(linear(x), linear(x)), gram)
    rng = np.random.default_rng(201)
    draws = 4000
    scores = program.limit(rng, draws) if where == "limit" else program.finite(32, rng, draws)
    flat = scores.reshape(draws, -1)
    rows = np.random.default_rng(0).choice(size**2, min(size**2, 12), replace=False)
    products = flat[:, rows, None] * flat[:, None, :]
    expected = np.kron(gram, gram)[rows]
    z = deviations(products, expected)
    assert plausible(z)
    assert np.mean(z**2) < 2  # entries are hardly correlated


@pytest.mark.parametrize("size", [2, 4, 9, 16])
@pytest.mark.parametrize("where", ["limit", "finite"])
def test_covariance_given_the_scores(size, where):
    """``E[y y' | p] = sum_a A^a gram A^a'/H``, tested against functions of the scores; it too holds at any width."""
    gram, heads = random_gram(size, 210 + size), 3
    program = trace(layer_with_scores(heads), gram)
    rng = np.random.default_rng(211)
    scores, y, kernel = program.limit(rng, 8000) if where == "limit" else program.finite(64, rng, 3000)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("dhij,jk,dhlk->dil", weights, gram, weights) / heads
    if where == "limit":
        assert np.max(np.abs(kernel - expected)) < 1e-12
        kernel = y[:, :, None] * y[:, None, :]
    for test in (np.ones(len(y)), scores[:, 0, 0, 0], np.abs(scores[:, 1, 1, 0])):
        assert plausible(deviations((kernel - expected) * test[:, None, None], 0.0))


def test_revealed_weights_have_the_law_of_whole_matrices():
    """A weight that meets vectors it has made itself, a dot product, a function: energy test, one in a hundred."""

    def write(x):
        w = weight(x)
        again = w @ nonlin(TANH, w @ x)
        attended = scalar(softmax, dot(linear(again), linear(x))) @ linear(x)
        return again + attended, dot(w @ x, again, "linear")

    program = trace(write, GRAM[:2, :2])
    rng = np.random.default_rng(220)
    (a, p), (b, q) = program.finite(8, rng, 3000), program.finite(8, rng, 3000, dense=True)
    joint = [np.hstack([y, scores.reshape(len(y), -1)]) for y, scores in ((a, p), (b, q))]
    assert two_sample_test(*joint, rng, permutations=199) > 0.01


def test_inputs_have_their_gram_matrix():
    for gram in (GRAM, np.ones((3, 3)), random_gram(6, 0)):
        found = trace(lambda x: dot(x, x, "linear"), gram).finite(16, np.random.default_rng(221), 5)
        assert found == pytest.approx(np.broadcast_to(gram, found.shape), abs=1e-10)


def gated(x):
    """A function of two families, a weight used twice, and moments, all in one."""
    w = weight(x)
    first = w @ x
    hidden = nonlin(Smooth("gate", lambda u, v: u / (1 + np.exp(-v)) + 0.3), first, linear(x))
    second = w @ hidden
    return dot(hidden, first, "linear"), dot(second, first, "linear"), dot(second, second, "linear"), moment(hidden)


def test_moments_of_a_program_with_everything():
    """Means of the finite program, extrapolated in 1/n, against the limit's numbers: four standard errors."""
    program = trace(gated, GRAM[:2, :2])
    rng = np.random.default_rng(230)
    small, large = (program.finite(width, rng, 3000) for width in (64, 128))
    for limit, few, many in zip(program.limit(rng, 1), small, large, strict=True):
        value = 2 * many.mean(axis=0) - few.mean(axis=0)
        error = np.sqrt(4 * many.var(axis=0) + few.var(axis=0)) / np.sqrt(3000)
        assert np.max(np.abs(value - limit[0]) / error) < 4


def test_scaling_by_n():
    """Independent queries and keys: scores vanish, attention is uniform. Tied: scores are the Gram matrix."""
    rng = np.random.default_rng(240)
    uniform = attention_layer(GRAM, score_scaling="linear").kernels(rng, 1)[0]
    assert uniform == pytest.approx(np.full((3, 3), GRAM.mean()))
    tied = attention_layer(GRAM, heads=1, score_scaling="linear", tied=True)
    weights = np.exp(GRAM) / np.exp(GRAM).sum(axis=1, keepdims=True)
    assert tied.kernels(rng, 1)[0] == pytest.approx(weights @ GRAM @ weights.T)
    small, large = (np.cov(tied.finite(width, rng, 20_000).T) for width in (64, 128))
    assert 2 * large - small == pytest.approx(weights @ GRAM @ weights.T, abs=0.06)


@pytest.mark.parametrize("options", [{"head_width": "split"}, {"projection": False}])
def test_head_width_and_projection_do_not_change_the_limit(options):
    rng = np.random.default_rng(241)
    plain, other = (attention_layer(GRAM, heads=2, **each).kernels(rng, 40_000) for each in ({}, options))
    z = (plain.mean(axis=0) - other.mean(axis=0)) / np.sqrt((plain.var(axis=0) + other.var(axis=0)) / 40_000)
    assert plausible(z)


def test_mixture_against_draws():
    """Kurtosis, tail and density of a million draws' kernels: five standard errors."""
    mixture = HeadMixture(GRAM, heads=2, position=2, score_variance=2.0)
    layer = trace(Attention(heads=2, score_variance=2.0), GRAM)
    kernels = layer.kernels(np.random.default_rng(250), 400_000)[:, 2, 2]
    for found, expected in (
        (kernels, mixture.variance()),
        (3 * kernels**2, mixture.moment(4)),
        (15 * kernels**3, mixture.moment(6)),
        (norm.sf(3.0 / np.sqrt(kernels)), mixture.sf(3.0)),
        (norm.pdf(1.0, scale=np.sqrt(kernels)), mixture.pdf(1.0)),
        (np.exp(-(1.7**2) * kernels / 2), mixture.characteristic(1.7)),
    ):
        assert abs(deviations(found, expected)) < 5
    assert mixture.moment(4) / mixture.variance() ** 2 - 3 == pytest.approx(mixture.excess_kurtosis())
    assert (mixture.moment(0), mixture.moment(3)) == (1, 0)
    x = np.linspace(-12, 12, 4001)
    assert np.trapezoid(mixture.pdf(x), x) == pytest.approx(1, abs=1e-10)
    assert np.trapezoid(mixture.pdf(x) * x**2, x) == pytest.approx(mixture.variance(), abs=1e-9)


def test_draws_of_the_layer_follow_the_mixture():
    """Kurtosis of the coordinates themselves, drawn in the limit, and at width 256 with its correction 1/n."""
    mixture = HeadMixture(GRAM, heads=1, position=0)
    y = attention_layer(GRAM, heads=1).limit(np.random.default_rng(251), 400_000)[:, 0]
    assert abs(deviations(y**2, mixture.variance())) < 4
    assert abs(deviations(y**4, mixture.moment(4))) < 4


@pytest.mark.parametrize(("head_dim", "heads"), [(2, 2), (3, 4), (16, 1)])
def test_kurtosis_of_narrow_heads(head_dim, heads):
    """Exact at any width: 200 thousand draws in twenty batches, four standard errors."""
    mixture = HeadMixture(GRAM, heads, position=1, score_variance=3.0)
    layer = trace(Attention(heads, head_width="split", score_variance=3.0), GRAM)
    y = layer.finite(head_dim * heads, np.random.default_rng(252), 200_000)[:, 1].reshape(20, -1)
    square = np.mean(y**2)
    kurtosis = np.mean(y**4, axis=1) / square**2 - 3
    expected = mixture.excess_kurtosis(head_dim)
    assert abs(kurtosis.mean() - expected) < 4 * kurtosis.std(ddof=1) / np.sqrt(20)
    assert mixture.excess_kurtosis(10**6) == pytest.approx(mixture.excess_kurtosis(), abs=1e-4)


def test_infinite_heads_of_two_inputs_by_independent_quadrature():
    """Adaptive integrals over the two differences of scores: 1e-6."""
    gram, variance = np.array([[1.0, 0.3], [0.3, 1.5]]), 2.0
    spread = gram[0, 0] - 2 * gram[0, 1] + gram[1, 1]
    found = infinite_head_kernel(gram, variance).value

    def bilinear(u, v):
        left, right = (np.array([1, np.exp(-t)]) / (1 + np.exp(-t)) for t in (u, v))
        return left @ gram @ right

    law = multivariate_normal(cov=variance * spread * gram)
    across = dblquad(lambda u, v: bilinear(u, v) * law.pdf([u, v]), -14, 14, -14, 14, epsabs=1e-9)[0]
    assert found[0, 1] == pytest.approx(across, abs=1e-6)
    mixtures = [HeadMixture(gram, 1, position, variance).variance() for position in (0, 1)]
    assert np.diag(found) == pytest.approx(mixtures, abs=1e-8)


def test_infinite_heads_of_three_inputs_by_independent_quadrature():
    """Gauss-Hermite in the four differences of scores of two rows, in eigenvectors of their covariance: 1e-6."""
    i, j = 0, 2
    apart = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    values, vectors = np.linalg.eigh(np.kron(GRAM[np.ix_([i, j], [i, j])], apart @ GRAM @ apart.T))
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    weights = weights / weights.sum()
    rest = np.stack(np.meshgrid(*[nodes] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.einsum("i,j,k->ijk", weights, weights, weights).ravel()
    total = 0.0
    for node, weight_of_node in zip(nodes, weights, strict=True):
        z = np.hstack([np.full((len(rest), 1), node), rest])
        differences = ((z * np.sqrt(values)) @ vectors.T).reshape(-1, 2, 2)
        scores = np.stack([differences.sum(axis=-1), differences[..., 1], 0 * differences[..., 1]], axis=-1)
        attention = np.exp(scores)
        attention /= attention.sum(axis=-1, keepdims=True)
        total += weight_of_node * (mass @ np.sum(attention[:, 0] @ GRAM * attention[:, 1], axis=-1))
    assert infinite_head_kernel(GRAM).value[i, j] == pytest.approx(total, abs=1e-6)


def test_many_heads_tend_to_infinitely_many():
    """Mean kernel for any number of heads, by quadrature and by Sobol points, and their law for very many."""
    rng = np.random.default_rng(260)
    exact = infinite_head_kernel(GRAM).value
    assert plausible(deviations(attention_layer(GRAM, heads=3).kernels(rng, 100_000), exact))
    bigger = random_gram(6, 261)
    value, error, _ = infinite_head_kernel(bigger, rng=rng)
    draws = attention_layer(bigger, heads=1).kernels(rng, 100_000)
    z = (draws.mean(axis=0) - value) / np.hypot(error, draws.std(axis=0) / np.sqrt(len(draws)))
    assert plausible(z)
    gaussian = infinite_head_layer(GRAM).limit(rng, 4000)
    assert two_sample_test(gaussian, attention_layer(GRAM, heads=200).limit(rng, 4000), rng, 99) > 0.01
    with pytest.raises(ValueError, match="6 inputs are too many for quadrature: give rng"):
        infinite_head_kernel(bigger)
    with pytest.raises(ValueError, match="up to five are integrated over"):
        HeadMixture(bigger)


BLOCKS = {
    "plain": Block(Attention(2, score_variance=4.0), skip=False),
    "residual": Block(Attention(2, score_variance=4.0)),
    "perceptron": Block(Attention(2, score_variance=4.0), Perceptron("relu")),
    "gelu": Block(Attention(2, score_variance=4.0), Perceptron("gelu")),
    "pre": Block(Attention(2, score_variance=4.0), Perceptron("relu"), norm="pre"),
    "post": Block(Attention(2, score_variance=4.0), Perceptron("relu"), norm="post"),
    "post, tanh": Block(Attention(3, score_variance=4.0), Perceptron("tanh", 1.5), skip=False, norm="post"),
}


def summaries(kernels):
    """Mean of the diagonal (but for LayerNorm after the block, where it is one) and of the rest, for each depth."""
    size = kernels[0].shape[-1]
    trace_of = [np.trace(each, axis1=1, axis2=2) for each in kernels]
    rest = [(each.sum(axis=(1, 2)) - t) / (size * (size - 1)) for each, t in zip(kernels, trace_of, strict=True)]
    varying = [t / size for t in trace_of if t.std() > 1e-9]
    return np.stack([*varying, *rest])


def variance_error(draws):
    centred = draws - draws.mean(axis=1, keepdims=True)
    return np.sqrt((np.mean(centred**4, axis=1) - np.mean(centred**2, axis=1) ** 2) / draws.shape[1])


def chain_deviations(block, depth, widths, draws, seed):
    """Chain against finite width extrapolated by a parabola in 1/n, in standard errors: of means, and of variances."""
    program = stack(GRAM, block, depth)
    rng = np.random.default_rng(seed)
    limit = summaries(program.limit(rng, 4 * draws)[:-1])
    finite = [summaries(program.finite(width, rng, draws)[:-1]) for width in widths]
    weights = np.linalg.inv(np.vander(1 / np.array(widths, dtype=float), increasing=True))[0]

    def deviation(value, error):
        extrapolated = sum(w * value(each) for w, each in zip(weights, finite, strict=True))
        variance = sum((w * error(each)) ** 2 for w, each in zip(weights, finite, strict=True))
        return (extrapolated - value(limit)) / np.sqrt(variance + error(limit) ** 2)

    means = deviation(lambda each: each.mean(axis=1), lambda each: each.std(axis=1) / each.shape[1] ** 0.5)
    return means, deviation(lambda each: each.var(axis=1), variance_error)


@pytest.mark.parametrize("name", ["plain", "residual", "pre", "post"])
def test_kernel_chain_against_finite_width(name):
    """Depths one to three, at widths 24 to 96: within two standard errors on the whole, and four everywhere."""
    for z in chain_deviations(BLOCKS[name], 3, (24, 48, 96), 1500, seed=270):
        assert np.sqrt(np.mean(z**2)) < 2
        assert np.max(np.abs(z)) < 4


@pytest.mark.slow
def test_kernel_chain_to_depth_six():
    """Depths one to six, widths 64 to 256, all blocks: none is off, and together they are off by what chance does.

    Depths of one block are off together, so that two errors for each block alone would fail in one of twenty; the root
    mean square over all blocks is one but for chance, and 1.5 would be seen by chance in less than one of a hundred.
    """
    found = [chain_deviations(block, 6, (64, 128, 256), 4000, seed=271) for block in BLOCKS.values()]
    for which in (0, 1):
        z = np.concatenate([each[which] for each in found])
        assert plausible(z)
        assert np.sqrt(np.mean(z**2)) < 1.5


def test_steps_of_the_chain():
    """Residual adds kernels, LayerNorm makes correlations, the perceptron is the arc-cosine map: to rounding."""
    rng = np.random.default_rng(280)
    mlp = trace(Perceptron("relu", variance=2.0), GRAM).kernels(rng, 1)[0]
    scale = np.sqrt(np.diag(GRAM))
    angle = np.arccos(GRAM / np.outer(scale, scale).clip(1e-300))
    arc = np.outer(scale, scale) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    assert mlp == pytest.approx(arc, abs=1e-12)
    both = trace(lambda x: x + Perceptron("relu", variance=2.0)(x), GRAM).kernels(rng, 1)[0]
    assert both == pytest.approx(GRAM + arc, abs=1e-12)
    normed = trace(be.programs.layer_norm, GRAM).kernels(rng, 1)[0]
    assert normed == pytest.approx(GRAM / np.outer(scale, scale), abs=1e-12)
    centred = trace(lambda x: be.programs.layer_norm(nonlin(RELU, linear(x))), GRAM).kernels(rng, 1)[0]
    mean = scale / np.sqrt(2 * np.pi)
    covariance = arc / 2 - np.outer(mean, mean)
    root = np.sqrt(np.diag(covariance))
    assert centred == pytest.approx(covariance / np.outer(root, root), abs=1e-12)


def test_both_interpreters_return_the_same_shapes():
    def write(x):
        query = linear(x, copies=5)
        return dot(query, query, "linear"), moment(query), dot(x, x, "linear"), moment(x), linear(x)

    program, rng = trace(write, GRAM), np.random.default_rng(281)
    shapes = [(7, 5, 3, 3), (7, 5, 3), (7, 3, 3), (7, 3), (7, 3)]
    assert [each.shape for each in program.finite(8, rng, 7)] == shapes
    assert [each.shape for each in program.limit(rng, 7)] == shapes


def test_streams():
    """Same seed, same numbers, whatever the number of threads; torch draws the same law."""
    from bulkedge.programs.interpreters import draw_limit

    layer = attention_layer(GRAM, heads=4)
    one, two = (draw_limit(layer, np.random.default_rng(3), 50_000, workers=workers) for workers in (1, 2))
    assert np.array_equal(one, two)
    assert np.array_equal(layer.finite(8, np.random.default_rng(3), 9), layer.finite(8, np.random.default_rng(3), 9))


def test_torch_draws_the_same_law():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    block = Block(Attention(2), Perceptron("gelu"), norm="pre")
    program = stack(GRAM, block, 2)
    *kernels, y = program.limit(generator, 4000)
    assert isinstance(y, torch.Tensor)
    other = program.limit(np.random.default_rng(1), 4000)
    assert two_sample_test(y.numpy(), other[-1], np.random.default_rng(2), 99) > 0.01
    assert kernels[1].numpy().mean(axis=0) == pytest.approx(other[1].mean(axis=0), abs=0.05)
    finite = program.finite(32, generator, 500)
    again = program.finite(32, np.random.default_rng(4), 500)
    assert two_sample_test(finite[-1].numpy(), again[-1], np.random.default_rng(5), 99) > 0.01


@pytest.mark.parametrize("name", ["squared", "momentum", "cross-entropy", "Adam"])
def test_a_wide_layer_follows_the_recursion_of_its_own_scores(name):
    """Twelve steps of one layer from where it starts: products of two moves are left out, of order 1/sqrt(n).

    At seeds 0 to 5 the root mean square difference of outputs was 0.1 to 1.1 over the root of widths 300 and 4800.
    """
    x = np.random.default_rng(2).standard_normal((3, 3, 5)) / 5**0.5
    setup = Training(
        heads=2, score_variance=2.0, rate=0.3, steps=12, momentum=0.0 if name == "squared" else 0.7,
        loss=name if name == "cross-entropy" else "squared", optimizer="adam" if name == "Adam" else "sgd",
    )  # fmt: skip
    goal = np.eye(2)[[0, 1, 1]] if setup.loss == "cross-entropy" else np.array([[1.0], [-1.0], [0.5]])
    misses = []
    for width in (300, 4800):
        weights = training.draw_weights(x, goal, setup, np.random.default_rng(7), (4, width))
        narrow = training.descend(x, goal, setup, weights)
        limit = training.recursion(x, goal, setup, *training.scores_and_reads(x, setup, weights))
        misses.append(np.sqrt(np.mean((narrow.outputs - limit.outputs) ** 2)))
    assert misses[1] < 1.5 / 4800**0.5
    assert misses[1] < misses[0] / 2  # four in the limit
    still = training.recursion(x, goal, replace(setup, frozen=True), *training.scores_and_reads(x, setup, weights))
    assert np.sqrt(np.mean((still.outputs - limit.outputs) ** 2)) > 4 * misses[1]


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_gradients_of_training_are_derivatives_of_the_loss(loss):
    """A step of plain descent against central differences of the loss, in a direction of every weight."""
    x, setup = np.random.default_rng(2).standard_normal((2, 3, 4)), Training(2, 1.5, loss, rate=1.0, steps=1)
    goal = np.eye(2)
    weights = training.draw_weights(x, goal, setup, np.random.default_rng(8), (1, 6))
    slopes = training._backward(x, goal, setup, weights)[1]
    for name, slope in slopes.items():
        turn = np.random.default_rng(9).standard_normal(slope.shape)
        high, low = (
            training.descend(x, goal, replace(setup, steps=0), weights | {name: weights[name] + step * turn}).loss[0, 0]
            for step in (1e-5, -1e-5)
        )
        assert np.sum(slope * turn) == pytest.approx((high - low) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.eye(3), [1.0], "examples, tokens, dimensions"),
        (np.ones((2, 3, 4)), [1.0], "each needs a target"),
        (np.full((1, 2, 2), np.nan), [1.0], "inputs contains NaN"),
    ],
)
def test_bad_training_is_refused(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        training.train(inputs, targets, Training(), np.random.default_rng(0), 3)


def test_bad_classes_are_refused():
    with pytest.raises(ValueError, match="whole numbers from 0"):
        training.train(np.ones((2, 3, 4)), [0.5, 1], Training(loss="cross-entropy"), np.random.default_rng(0), 3)
