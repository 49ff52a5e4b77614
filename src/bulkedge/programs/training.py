"""Training an attention layer at infinite width: a closed recursion for any number of steps (ours).

One layer reads each example at its first token: ``f_k = sum_h a_h . c_hk/sqrt(H)``, with ``a_h = softmax(p_h)`` over
the tokens, scores ``p = q.k/sqrt(n)`` and reads ``c_k = u_k.v/sqrt(n)`` of the values by the readout of output k.
Weights have variance one and are trained in that parametrisation. Each weight under p and c moves by order
``1/sqrt(n)`` an entry, so that products of two moves vanish and p and c are all that a step needs
(docs/theory/training.md, "Training: a closed recursion"). :func:`train` runs the limit, or layers of a width with
real matrices.

>>> tokens = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0].reshape(2, 3, 6)
>>> wide = train(tokens, [1.0, -1.0], Training(rate=0.5, steps=20), np.random.default_rng(0), draws=2000)
>>> narrow = train(tokens, [1.0, -1.0], Training(rate=0.5, steps=20), np.random.default_rng(0), draws=200, width=64)
>>> bool(wide.loss[:, -1].mean() < wide.loss[:, 0].mean() / 10), narrow.loss.shape
(True, (200, 21))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Choice, Instance, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError
from bulkedge.support.random import numpy_generator
from bulkedge.visibility import softmax

DRAWS = Integers(1, 10**8)
Weights = dict[str, Real]
BLOCK = 500
"""Layers that are trained at once."""
TINY = 1e-12
"""What Adam adds to the size of a gradient."""


@dataclass(frozen=True)
class Training(Parametric):
    """How a layer is trained: its heads, the loss and the optimiser.

    ``optimizer="sgd"`` is full-batch gradient descent, with ``momentum`` heavy-ball. ``"adam"`` keeps one second moment
    for each of the four weight tensors (all heads together), the squared length of its gradient, so that a step has the
    length ``rate``. Adam with a second moment for each entry does not close on scores and reads.

    >>> Training(loss="cross-entropy", momentum=0.9).heads
    1
    """

    heads: int = parameter(Integers(1, 1000), "heads H", 1)
    score_variance: float = parameter(Interval(1e-6, 1e6), "variance of a score", 1.0)
    loss: str = parameter(Choice(("squared", "cross-entropy")), "mean over examples of this loss", "squared")
    optimizer: str = parameter(Choice(("sgd", "adam")), "gradient descent or Adam", "sgd")
    rate: float = parameter(Interval(0, 1e3), "learning rate", 0.1)
    momentum: float = parameter(Interval(0, 1, "[)"), "momentum, or Adam's first decay", 0.0)
    decay: float = parameter(Interval(0, 1, "[)"), "Adam's second decay", 0.99)
    steps: int = parameter(Integers(0, 10**6), "steps", 10)
    frozen: bool = parameter(Choice((False, True)), "whether queries and keys stay as they were drawn", default=False)


class TrainingCurves(NamedTuple):
    """The readings before each step and after the last."""

    loss: Real  # (draws, steps + 1)
    entropy: Real  # mean entropy of a row of attention in nats, (draws, steps + 1)
    outputs: Real  # (draws, steps + 1, examples, outputs)


class _Forward(NamedTuple):
    """A layer on all examples; draws and heads are the first two axes."""

    weights: Real  # attention a, (..., examples, tokens)
    outputs: Real  # f, (draws, examples, outputs)
    pull: Real  # gradient of the loss in the reads, over 1/sqrt(H): r a, (..., outputs, examples, tokens)
    slope: Real  # the same in the scores, (..., examples, tokens)


def train(  # noqa: PLR0913, PLR0917
    inputs: ArrayLike, targets: ArrayLike, setup: Training, rng: Any, draws: int, width: int | None = None
) -> TrainingCurves:
    """Train attention layers at infinite width, or at a given width.

    Parameters
    ----------
    inputs : array_like of shape (examples, tokens, dimensions)
        Tokens as vectors of any dimension, of which inner products are all that counts; those of length one are
        tokens of entries of variance one. The first token of an example is the one that attends.
    targets : array_like
        Numbers to be learnt, (examples,) or (examples, outputs); for cross-entropy a class for each example, from 0.
    setup : Training
        Heads, loss and optimiser.
    rng : numpy.random.Generator
        Source of all randomness.
    draws : int
        How many layers.
    width : int, optional
        Width n; infinite without.

    Returns
    -------
    TrainingCurves
        Loss, entropy of attention and outputs of every layer before each step and after the last.

    Examples
    --------
    >>> tokens = np.eye(6).reshape(2, 3, 6)
    >>> curves = train(tokens, [0, 1], Training(loss="cross-entropy", rate=2.0), np.random.default_rng(0), 1000)
    >>> bool(curves.loss[:, -1].mean() < curves.loss[:, 0].mean())
    True
    """
    x, rng = np.asarray(FINITE.check("inputs", inputs)), numpy_generator(rng)
    setup, draws = Instance(Training).check("setup", setup), DRAWS.check("draws", draws)
    if x.ndim != 3 or 0 in x.shape:
        raise DomainError(f"inputs have shape {x.shape}; it must be (examples, tokens, dimensions)")
    goal = _targets(targets, len(x), setup)
    if width is not None:
        width = Integers(1, 10**6).check("width", width)
    counts = [min(BLOCK, draws - start) for start in range(0, draws, BLOCK)]
    run: Callable[[int], TrainingCurves] = lambda count: (  # noqa: E731
        _limit(x, goal, setup, rng, count)
        if width is None
        else descend(x, goal, setup, draw_weights(x, goal, setup, rng, (count, width)))
    )
    return TrainingCurves(*(np.concatenate(each) for each in zip(*map(run, counts), strict=True)))


def _targets(targets: ArrayLike, examples: int, setup: Training) -> Real:
    """A row of numbers, or of zeros and a one, for each example."""
    goal: Real = FINITE.check("targets", targets)
    if goal.ndim not in (1, 2) or len(goal) != examples:
        raise DomainError(f"targets have shape {goal.shape} and inputs {examples} examples; each needs a target")
    if setup.loss == "squared":
        return goal.reshape(examples, -1)
    if goal.ndim != 1 or np.any(goal != np.round(goal)) or goal.min() < 0 or goal.max() >= 1000:
        raise DomainError("targets of cross-entropy must be classes, whole numbers from 0 to 999")
    return np.eye(max(int(goal.max()) + 1, 2))[goal.astype(int)]


def _forward(scores: Real, reads: Real, goal: Real, setup: Training) -> _Forward:
    weights = softmax(scores, axis=-1)
    read = np.einsum("dhbt,dhkbt->dhkb", weights, reads)
    outputs = read.sum(axis=1).swapaxes(1, 2) / setup.heads**0.5
    guess = outputs if setup.loss == "squared" else softmax(outputs, axis=-1)
    residual = ((guess - goal) / len(goal)).swapaxes(1, 2)[:, None, :, :, None]
    pull = residual * weights[:, :, None] / setup.heads**0.5
    return _Forward(weights, outputs, pull, np.sum(pull * (reads - read[..., None]), axis=2))


def _limit(x: Real, goal: Real, setup: Training, rng: np.random.Generator, count: int) -> TrainingCurves:
    """The recursion from scores and reads as they are drawn."""
    # scores of covariance (queries o gram) are a Gaussian for each pair of dimensions of query and key
    pair = rng.standard_normal((count, setup.heads, x.shape[2], x.shape[2]))
    scores = setup.score_variance**0.5 * np.einsum("bp,dhpq,btq->dhbt", x[:, 0], pair, x, optimize=True)
    reads = np.einsum("dhkq,btq->dhkbt", rng.standard_normal((count, setup.heads, goal.shape[1], x.shape[2])), x)
    return recursion(x, goal, setup, scores, reads)


def recursion(x: Real, goal: Real, setup: Training, scores: Real, reads: Real) -> TrainingCurves:
    """Scores and reads are moved by their own gradients, through the Gram matrix of the tokens."""
    examples, tokens, size = x.shape
    flat = x.reshape(-1, size)
    gram = flat @ flat.T
    queries = np.repeat(np.repeat(x[:, 0] @ x[:, 0].T, tokens, axis=0), tokens, axis=1)
    kernels = {"scores": setup.score_variance * queries * gram, "reads": gram}
    state: dict[str, Real] = {"scores": scores, "reads": reads}
    optimizer, found = _Optimizer(setup), []
    for _ in range(setup.steps + 1):
        now = _forward(state["scores"], state["reads"], goal, setup)
        found.append(_seen(now, goal, setup))
        for name, slope in (("scores", now.slope), ("reads", now.pull)):
            if name == "scores" and setup.frozen:
                continue
            rows = slope.reshape(-1, examples * tokens)
            moved = rows @ kernels[name]
            # two weights under each, alike: their gradients have this squared length, over all heads and outputs
            length = np.sum((rows * moved).reshape(len(scores), -1), axis=1)
            state[name] = state[name] - 2 * optimizer.step(name, moved.reshape(slope.shape), length)
    return _curves(found)


class _Optimizer:
    """Moving means of gradients, by the name of what they belong to."""

    def __init__(self, setup: Training) -> None:
        self.setup = setup
        self.speed: dict[str, Real] = {}
        self.square: dict[str, Real] = {}
        self.steps: dict[str, int] = {}

    def step(self, name: str, slope: Real, length: Real) -> Real:
        """What to subtract, from a gradient and its squared length in each draw."""
        setup, speed = self.setup, self.speed.get(name, np.zeros(1))
        if setup.optimizer == "sgd":
            self.speed[name] = setup.momentum * speed + slope
            return np.asarray(setup.rate * self.speed[name])
        count = self.steps[name] = self.steps.get(name, 0) + 1
        self.speed[name] = setup.momentum * speed + (1 - setup.momentum) * slope
        self.square[name] = setup.decay * self.square.get(name, np.zeros(1)) + (1 - setup.decay) * length
        size = np.sqrt(self.square[name] / (1 - setup.decay**count)) + TINY
        pace = setup.rate / (1 - setup.momentum**count) / size
        return np.asarray(pace.reshape(-1, *(1,) * (slope.ndim - 1)) * self.speed[name])


def _seen(now: _Forward, goal: Real, setup: Training) -> tuple[Real, Real, Real]:
    """Loss, entropy and outputs."""
    if setup.loss == "squared":
        loss = np.sum((now.outputs - goal) ** 2, axis=(1, 2)) / (2 * len(goal))
    else:
        logits = now.outputs - now.outputs.max(axis=-1, keepdims=True)
        loss = np.mean(np.log(np.exp(logits).sum(axis=-1)) - np.sum(logits * goal, axis=-1), axis=1)
    entropy = -np.sum(now.weights * np.log(np.maximum(now.weights, 1e-300)), axis=-1).mean(axis=(1, 2))
    return loss, entropy, now.outputs


def _curves(found: list[tuple[Real, Real, Real]]) -> TrainingCurves:
    return TrainingCurves(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))


def draw_weights(x: Real, goal: Real, setup: Training, rng: np.random.Generator, shape: tuple[int, int]) -> Weights:
    """Weights of a number of layers of a width, as products with an orthonormal basis of the inputs' span."""
    count, width = shape
    weights: Weights = {
        name: rng.standard_normal((count, setup.heads, width, x.shape[2])) for name in ("query", "key", "value")
    }
    weights["readout"] = rng.standard_normal((count, setup.heads, goal.shape[1], width))
    return weights


def descend(x: Real, goal: Real, setup: Training, weights: Weights) -> TrainingCurves:
    """Train layers of finite width; the span of the inputs is all that gradients reach."""
    optimizer, found = _Optimizer(setup), []
    for _ in range(setup.steps + 1):
        now, slopes = _backward(x, goal, setup, weights)
        found.append(_seen(now, goal, setup))
        updates = {}
        for name, slope in slopes.items():
            length = np.sum(slope.reshape(len(slope), -1) ** 2, axis=1)
            updates[name] = weights[name] - optimizer.step(name, slope, length)
        weights = weights | updates
    return _curves(found)


def scores_and_reads(x: Real, setup: Training, weights: Weights) -> tuple[Real, Real]:
    """Of layers of finite width."""
    split = (*weights["query"].shape[:3], *x.shape[:2])
    root, flat = split[2] ** 0.5, x.reshape(-1, x.shape[2])
    query, key = weights["query"] @ x[:, 0].T, (weights["key"] @ flat.T).reshape(split)
    scores = setup.score_variance**0.5 * np.sum(query[..., None] * key, axis=2) / root
    reads = weights["readout"] @ (weights["value"] @ flat.T) / root
    return scores, reads.reshape(*split[:2], -1, *x.shape[:2])


def _backward(x: Real, goal: Real, setup: Training, weights: Weights) -> tuple[_Forward, Weights]:
    """The layers' outputs, and the gradients of the loss in their weights."""
    flat, first = x.reshape(-1, x.shape[2]), x[:, 0]
    scores, reads = scores_and_reads(x, setup, weights)
    now = _forward(scores, reads, goal, setup)
    root, scale = weights["query"].shape[2] ** 0.5, setup.score_variance**0.5
    pull = now.pull.reshape(*reads.shape[:3], -1) / root  # (draws, heads, outputs, examples x tokens)
    gradient = {
        "value": weights["readout"].swapaxes(2, 3) @ (pull @ flat),
        "readout": pull @ (weights["value"] @ flat.T).swapaxes(2, 3),
    }
    if not setup.frozen:
        slope = scale * now.slope[:, :, None] / root
        key = (weights["key"] @ flat.T).reshape(*weights["key"].shape[:3], *x.shape[:2])
        query = (weights["query"] @ first.T)[..., None] * slope
        gradient["query"] = np.sum(key * slope, axis=-1) @ first
        gradient["key"] = query.reshape(*query.shape[:3], -1) @ flat
    return now, gradient
