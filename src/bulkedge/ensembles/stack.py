"""A stack of attention layers at initialisation, and what theory says of its signal.

``X_l = A_l X_{l-1} W_l`` from orthonormal tokens (*propagation*, equation 3), with the parts of a transformer that can
be switched on: a skip connection, LayerNorm, orthogonal values, attention of several kinds, and attention without its
gap.

>>> import numpy as np
>>> kept, removed = AttentionStack(3, 100, 100), AttentionStack(3, 100, 100, gap=False)
>>> [round(layer.stable_rank, 2) for layer in kept.layers(np.random.default_rng(0))]
[1.03, 1.0, 1.0]
>>> [round(layer.stable_rank) for layer in removed.layers(np.random.default_rng(0))]
[5, 3, 2]
>>> round(removed.law().var() / removed.law().mean() ** 2, 10)      # depth (1 + tokens/width)
6.0
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.markov import ENTRIES, Entries, RandomMarkov, without_gap, without_outliers
from bulkedge.laws.attention.proportional import AttentionLaw
from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.product import FussCatalan, IndependentProduct, ProductLaw
from bulkedge.laws.classical.semicircle import QuarterCircle
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, cosine_similarity, effective_rank, spectrum
from bulkedge.spectra.traces import stable_rank_excess
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError, RegimeWarning, UnresolvedError
from bulkedge.support.random import numpy_generator
from bulkedge.visibility import softmax

DEEPEST = 0.1
"""Layers for each token up to which the laws hold: at 0.05 the Kolmogorov distance is 0.015, at 0.17 it is 0.05."""
Repair = Callable[[Any], Any]
AttentionKind = Literal["markov", "key-query", "xavier", "identity"]


@dataclass(frozen=True)
class LayerWeights:
    """What is drawn for one layer: the values, and the attention or the queries and keys that make it."""

    values: Any
    attention: Any = None
    query: Any = None
    key: Any = None


@dataclass(frozen=True)
class StackLayer:
    """One layer of a draw: its weights, the attention it used (as repaired) and the signal it put out."""

    weights: LayerWeights
    attention: Real
    signal: Real

    @cached_property
    def singular_values(self) -> Real:
        """Singular values of the signal, in increasing order; their squares are those of ``Sigma_l = X_l X_l'``."""
        return spectrum(self.signal).values

    @property
    def stable_rank_excess(self) -> float:
        """Stable rank of ``Sigma_l`` minus one, free of cancellation."""
        return stable_rank_excess(self.singular_values**2)

    @property
    def stable_rank(self) -> float:
        """Stable rank of ``Sigma_l`` (*propagation*, equation 5)."""
        return 1 + self.stable_rank_excess

    @property
    def effective_rank(self) -> float:
        """Effective rank of the signal."""
        return effective_rank(self.signal)

    @property
    def cosine_similarity(self) -> float:
        """Mean cosine of two tokens."""
        return cosine_similarity(self.signal)

    @property
    def distinct_share(self) -> float:
        """Share of the signal's power that tokens do not have in common: ``1 - T |mean token|**2/|X|**2``."""
        apart = self.signal - self.signal.mean(axis=0)
        return float(np.sum(apart**2) / np.sum(self.signal**2))


@dataclass(frozen=True)
class AttentionStack(Parametric, Ensemble):
    """``X_l = A_l X_{l-1} W_l``, W with entries of variance ``value_variance``; the law is that of ``X_L X_L'``.

    Queries and keys have the width as their dimension; ``attention="xavier"`` scales them by ``1/sqrt(width)``, which
    makes attention uniform (Proposition 1).
    ``gap=False`` replaces A by ``A - uu'``, ``gap="all"`` takes out all that is beyond :attr:`attention_edge`.

    ``skip`` is the weight of the layer's input in its output, zero for none. Beside it, ``skip_scaling="plain"`` takes
    values of variance ``value_variance/width``, as is usual, and attention is of order ``1/sqrt(T)``; ``"rescaled"``
    takes values as they are without skip.
    LayerNorm, after the skip, gives every token mean zero and length one, the length of the input's tokens.
    ``values="orthogonal"`` takes W orthogonal, times ``sqrt(value_variance * width)``.

    >>> model = AttentionStack(depth=2, tokens=50, width=100, gap=False)
    >>> model.sample(np.random.default_rng(0)).shape, round(model.law().edge, 2)
    ((50, 100), 38.69)
    """

    depth: int = parameter(Integers(1, 1000), "number of layers L")
    tokens: int = parameter(Integers(4, 20_000), "number of tokens T")
    width: int = parameter(Integers(4, 20_000), "embedding dimension d; at least T for queries and keys")
    attention: AttentionKind = parameter(  # a declaration
        Choice(("markov", "key-query", "xavier", "identity")), "how attention is made", "markov"
    )
    gap: bool | Literal["all"] = parameter(
        Choice((True, False, "all")), "whether attention keeps its gap; 'all' removes every outlier", default=True
    )
    skip: float = parameter(Interval(0, 1e3), "weight of the layer's input in its output", 0.0)
    skip_scaling: Literal["plain", "rescaled"] = parameter(
        Choice(("plain", "rescaled")), "scale of the values beside a skip connection", "plain"
    )
    layer_norm: bool = parameter(Choice((False, True)), "whether tokens are normalised", default=False)
    values: Literal["gaussian", "orthogonal"] = parameter(
        Choice(("gaussian", "orthogonal")), "value matrices", "gaussian"
    )
    variance: float = parameter(Interval(1e-6, 1e30), "variance of attention, exp(beta**2) - 1 for scores", 1.0)
    value_variance: float = parameter(Interval(0, 1e6), "variance of an entry of the values", 1.0)
    entries: Entries = parameter(ENTRIES, "entries of Markov", "lognormal")  # likewise

    def __post_init__(self) -> None:
        """Check the parameters, and that tokens that are compared with each other are orthonormal at the start."""
        super().__post_init__()
        if self.tokens > self.width and self.attention in ("key-query", "xavier"):
            raise DomainError(
                f"tokens = {self.tokens} is outside its domain {{4, ..., width = {self.width}}}: "
                "queries and keys are those of orthonormal tokens"
            )
        if self.attention == "markov":
            RandomMarkov(self.tokens, self.variance, self.entries)
        if self.gap == "all" and self.attention not in ("markov", "key-query"):
            raise DomainError(f"gap = 'all' needs Markov or key-query attention (a known edge), not {self.attention}")

    # -- simulation ----------------------------------------------------------------------------------------------------

    @property
    def ratio(self) -> float:
        """``gamma = T/d``."""
        return self.tokens / self.width

    @property
    def collapsing(self) -> bool:
        """Whether one direction outgrows all others: Markov attention that keeps its gap."""
        return self.attention == "markov" and self.gap != "all" and bool(self.gap)

    @property
    def linear(self) -> bool:
        """Whether the layers are linear in the signal: attention does not depend on it, and nothing is normalised."""
        return self.attention in ("markov", "identity") and not self.layer_norm

    def weights(self, rng: np.random.Generator) -> LayerWeights:
        """Draw the weights of one layer."""
        rng, width = numpy_generator(rng), self.width
        power = self.value_variance / (width if self.skip and self.skip_scaling == "plain" else 1)
        values = rng.standard_normal((width, width))
        if self.values == "orthogonal":
            frame, triangle = np.linalg.qr(values)
            values = np.sqrt(width) * frame * np.sign(np.diag(triangle))
        values = np.sqrt(power) * values
        if self.attention == "markov":
            return LayerWeights(values, attention=RandomMarkov(self.tokens, self.variance, self.entries).sample(rng))
        if self.attention == "identity":
            return LayerWeights(values, attention=np.eye(self.tokens))
        # beta is shared between queries and keys; Xavier's scaling divides their entries by sqrt(width)
        size = np.sqrt(self.beta) / (np.sqrt(width) if self.attention == "xavier" else 1)
        query, key = (size * rng.standard_normal((width, width)) for _ in range(2))
        return LayerWeights(values, query=query, key=key)

    @property
    def beta(self) -> float:
        """Inverse temperature of scores that give attention this variance, for orthonormal tokens."""
        return float(np.sqrt(np.log1p(self.variance)))

    def step(self, signal: Any, weights: LayerWeights, repair: Repair | None = None) -> tuple[Any, Any]:
        """One layer: the attention, repaired where asked, and the signal after it; NumPy or torch."""
        xp = array_namespace(signal)
        attention = (repair or self._repair_attention)(self.attend(signal, weights))
        output = attention @ signal @ weights.values
        if self.skip:
            output = output + self.skip * signal
        if self.layer_norm:
            output = output - xp.mean(output, axis=1, keepdims=True)
            output = output / xp.sqrt(xp.sum(output**2, axis=1, keepdims=True))
        return attention, output

    def attend(self, signal: Any, weights: LayerWeights) -> Any:
        """The attention matrix of a layer on a signal, as it is before any repair."""
        if weights.attention is not None:
            return weights.attention
        xp = array_namespace(signal)
        scores = (signal @ weights.query) @ xp.matrix_transpose(signal @ weights.key) / self.width**0.5
        return softmax(scores)

    def _repair_attention(self, attention: Any) -> Any:
        if self.gap == "all":
            return without_outliers(attention, edge=self.attention_edge).matrix
        return attention if self.gap else without_gap(attention)

    @cached_property
    def attention_edge(self) -> float:
        """Where the bulk of the singular values of A ends when tokens are orthonormal, as in the first layer.

        For T values, at one false alarm in a hundred.
        """
        law = QuarterCircle(self.variance).squared()
        if self.attention == "key-query":
            law = AttentionLaw(self.beta, 1 / self.ratio)
        return float(np.sqrt(law.finite_edge(self.tokens) / self.tokens))

    def start(self) -> Real:
        """The input: orthonormal tokens. Which ones does not matter, as the first values are Gaussian or Haar.

        More tokens than dimensions cannot be orthonormal; then ``X_0'X_0 = 1``, and tokens beyond the width start at
        zero. Entries of attention are exchangeable, so that any other isometry has the same law.
        """
        return np.eye(self.tokens, self.width)

    def layers(self, rng: np.random.Generator, repair: Repair | None = None) -> Iterator[StackLayer]:
        """The signal, layer by layer; ``repair`` maps each attention matrix to another, instead of ``gap``.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of all randomness; layers draw from it one after another.
        repair : callable, optional
            From an attention matrix to the one to use.

        Yields
        ------
        StackLayer
            Weights, attention and signal of each layer, first layer first.
        """
        signal = self.start()
        for _ in range(self.depth):
            weights = self.weights(rng)
            attention, signal = self.step(signal, weights, repair)
            yield StackLayer(weights, attention, signal)

    def sample(self, rng: np.random.Generator) -> Real:
        """The signal ``X_L`` after the last layer."""
        *_, last = self.layers(rng)
        return last.signal

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Eigenvalues of ``Sigma_L = X_L X_L'``."""
        return spectrum(self.sample(rng)).squared()

    # -- prediction ----------------------------------------------------------------------------------------------------

    def at_depth(self, depth: int) -> AttentionStack:
        """The same stack with another number of layers."""
        return replace(self, depth=depth)

    def _require_plain(self, what: str) -> None:
        if not self.linear or self.skip:
            raise DomainError(f"{what} is known for Markov or identity layers without skip and LayerNorm: not {self}")

    def require_free(self, what: str) -> None:
        """Refuse a question that has an answer only without the gap, skip and LayerNorm."""
        self._require_plain(what)
        if self.collapsing:
            raise DomainError(f"{what} is known without the gap: use gap=False (one direction carries all else)")

    def _check_regime(self, what: str) -> None:
        """Warn where a free product of large matrices is not what the stack is: heavy tails, or as deep as wide."""
        if self.attention == "markov":
            RandomMarkov(self.tokens, self.variance, self.entries).check_tails(what, stacklevel=4)
        if self.depth > self.tokens * DEEPEST:
            warnings.warn(
                f"{what} is for many more tokens than layers: depth = {self.depth} is more than {DEEPEST:g} of "
                f"{self.tokens} tokens, where products of matrices fluctuate from draw to draw",
                RegimeWarning,
                stacklevel=3,
            )

    @property
    def mean_eigenvalue(self) -> float:
        """Mean eigenvalue of ``Sigma_L`` without the gap, ``(sigma_A**2 sigma_V**2/gamma)**L`` (equation 12).

        With more tokens than dimensions, times the share d/T of eigenvalues that are not zero at the start.
        """
        return self.passed * min(1.0, 1 / self.ratio)

    @property
    def passed(self) -> float:
        """What the layers multiply squared norms with, without the gap: also the mean of the Jacobian's law."""
        self._require_plain("the mean eigenvalue")
        through_attention = self.variance / self.tokens if self.attention == "markov" else 1.0
        layer = through_attention * self.value_variance * self.width
        # logarithm of what layers may multiply squared norms with: double precision ends at 709
        if layer > 0 and abs(self.depth * np.log(layer)) > 700.0:
            raise UnresolvedError(
                f"{self.depth} layers multiply squared norms with {layer:g}**{self.depth}, which is no number of "
                f"double precision; value_variance = {self.value_variance / layer:g} keeps norms"
            )
        return float(layer**self.depth)

    def law(self) -> Law:
        """Law of the eigenvalues of ``Sigma_L`` without the gap (*propagation*, Proposition 7).

        A free product: a factor of ratio 1 for each attention matrix, one of ratio T/d for each Gaussian value matrix.
        With more tokens than dimensions the input is a projection on d of T directions, with S-transform ``(1 + u)/(1/
        gamma + u)``: one factor of ratio 1 becomes one of ratio T/d, and there is an atom ``1 - d/T`` at zero.
        """
        self.require_free("the law of the kernel")
        self._check_regime("the law of the kernel")
        return self._kernel_law(self.mean_eigenvalue)

    def _kernel_law(self, mean: float) -> Law:
        square, wide = self.factors()
        ratios = (1.0,) * square + (self.ratio,) * wide
        return ProductLaw(ratios, mean) if ratios else EmpiricalLaw([mean])

    def factors(self) -> tuple[int, int]:
        """How many Marchenko-Pastur factors of ratio one and of ratio T/d the kernel's law has without the gap."""
        square = self.depth if self.attention == "markov" else 0
        wide = self.depth if self.values == "gaussian" else 0
        if self.tokens <= self.width:
            return square, wide
        if not square:
            raise DomainError(
                f"tokens = {self.tokens} is outside its domain {{4, ..., width = {self.width}}} for a kernel without "
                "attention: all of its law but the atom at zero is that of as many tokens as dimensions"
            )
        return square - 1, wide + 1

    def jacobian_law(self) -> Law:
        """Law of the squared singular values of ``dX_L/dX_0`` without the gap (*propagation*, Proposition 8).

        The Jacobian is a Kronecker product of the values' and the attention's products, so its squared singular values
        are products of two independent Fuss-Catalan variables; a factor that is orthogonal drops out.
        """
        self.require_free("the law of the Jacobian")
        self._check_regime("the law of the Jacobian")
        parts = [self.attention == "markov", self.values == "gaussian"]
        if not any(parts):
            return EmpiricalLaw([self.passed])
        if not all(parts):
            return FussCatalan(self.depth, self.passed)
        return IndependentProduct(FussCatalan(self.depth), FussCatalan(self.depth, self.passed))

    def predicted_stable_rank_excess(self) -> float:
        """Stable rank of ``Sigma_L`` minus one, at this number of tokens and to leading order in it.

        With the gap, ``A_L ... A_1 = u v' + P`` with ``P`` the product without the gap, because ``(A - uu') u = 0``.
        The largest eigenvalue is that of ``u v'``, ``(d sigma_V**2)**L``, and what is beside it has the law of the
        gap-free kernel: the excess is ``T**(1 - 2L) sigma_A**(4L) m_2``, m_2 the second moment of that law at mean one
        (*propagation*, Proposition 3, with its constant; ours). Without the gap it is ``T m_2`` over the square of the
        edge, at the median of its finite-size fluctuation.
        """
        self._require_plain("the stable rank")
        self._check_regime("the stable rank")
        law = self._kernel_law(1.0)
        power = self.tokens * law.moment(2)
        if self.collapsing:
            return float(power * (self.variance / self.tokens) ** (2 * self.depth))
        top = law.finite_edge(self.tokens, 0.5) if law.support else law.edge
        return float(power / top**2) - 1

    def predicted_gradient(self) -> float:
        """Expected ``|dX_L/dW_l|_F**2``, the same for every layer l (ours; *propagation*, Propositions 4 and 6).

        ``d (d sigma_V**2)**(L-1) |A_L ... A_1|_F**2``. The last factor is ``T q**L`` without the gap, ``q =
        sigma_A**2/T``; with it, ``1 + q + ... + q**(L-1)`` for the row ``v`` more. For exponential entries, with the
        ``q = E sum_j A_ij**2 - 1/T = (T - 1)/(T (T + 1))`` of T tokens, this is exact at any size.
        """
        self._require_plain("the gradient")
        share = self.variance / self.tokens if self.attention == "markov" else 1.0
        if self.attention == "markov" and self.entries == "exponential":
            share *= (self.tokens - 1) / (self.tokens + 1)
        squares = self.tokens * share**self.depth
        if self.collapsing:
            squares += float(np.sum(share ** np.arange(self.depth)))
        squares *= min(1.0, 1 / self.ratio)  # the input's squared norm, over T
        return float(self.width * (self.width * self.value_variance) ** (self.depth - 1) * squares)
