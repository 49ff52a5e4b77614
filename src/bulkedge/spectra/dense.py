"""Spectra of dense matrices, one or a batch of them, and that of attention as its laws normalise it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from bulkedge.laws.distribution import UNIT, StepDistribution, Unit
from bulkedge.spectra.operators import AttentionOperator
from bulkedge.support.arrays import Real, as_numpy, object_array
from bulkedge.support.domains import FINITE, MATRICES, Choice, Interval, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.files import html_table
from bulkedge.visibility import FullMask, Mask, MaskOrName, mask_for


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues or singular values, in increasing order.

    >>> found = Spectrum.of([3.0, 1.0, 2.0], unit="singular values")
    >>> found.values, found.squared().values
    (array([1., 2., 3.]), array([1., 4., 9.]))

    Attributes
    ----------
    values : array of shape (k,)
        The values.
    weights : array of shape (k,)
        Their weights, which sum to one.
    size : int
        How many values the matrix has (more than listed here, if they were estimated).
    unit : Unit
        What they are.
    rounding : float
        Error of the decomposition: of values closer to zero than this only the number is known.
    error : float
        Kolmogorov distance within which the distribution function is known; zero if all values were computed.
    kernel : int
        By how many zeros the larger of the two Gram matrices M'M and MM' exceeds the smaller; zero for square ones.
    """

    values: Real
    weights: Real
    size: int
    unit: Unit
    rounding: float = 0.0
    error: float = 0.0
    kernel: int = 0

    def __post_init__(self) -> None:
        """Check that values and weights are numbers that fit each other."""
        values, weights = FINITE.check("values", self.values), FINITE.check("weights", self.weights)
        if values.ndim != 1 or not values.size or weights.shape != values.shape:
            raise DomainError(f"values and weights must be vectors of one length: got {values.shape}, {weights.shape}")
        if np.any(np.diff(values) < 0) or not np.all(weights > 0) or not abs(weights.sum() - 1) < 1e-9:
            raise DomainError("values must increase, and weights be positive and sum to one: see Spectrum.of")
        unit = UNIT.check("unit", self.unit)
        if unit in {Unit.SINGULAR, Unit.SQUARED} and values[0] < 0:
            raise DomainError(f"{unit} are not negative, but values go down to {values[0]:g}: are they eigenvalues?")
        for name, value in (("values", values), ("weights", weights), ("unit", Unit(unit))):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: ArrayLike, unit: Unit | str, rounding: float = 0.0) -> Spectrum:
        """A spectrum from all of its values, in any order, with equal weights.

        Parameters
        ----------
        values : array_like
            Finite real numbers.
        unit : Unit or str
            What they are: ``"eigenvalues"``, ``"singular values"``, ``"squared singular values"``.
        rounding : float
            Error of the values: of those closer to zero only the number is known.

        Returns
        -------
        Spectrum
            The values in order.
        """
        ordered = np.sort(FINITE.check("values", values).ravel())
        if not ordered.size:
            raise DomainError("values is empty; a spectrum has one value at least")
        return cls(
            ordered, np.full(len(ordered), 1 / len(ordered)), len(ordered), Unit(UNIT.check("unit", unit)), rounding
        )

    def squared(self) -> Spectrum:
        """The squared values."""
        order = np.argsort(self.values**2, kind="stable")
        return replace(
            self,
            values=self.values[order] ** 2,
            weights=self.weights[order],
            unit=self.unit.square(),
            rounding=self.rounding**2,
        )

    def sqrt(self) -> Spectrum:
        """The square roots of the values, which must not be negative."""
        if self.values[0] < 0:
            raise DomainError(f"values go down to {self.values[0]:g}; a square root needs values on [0, inf)")
        return replace(self, values=np.sqrt(self.values), unit=self.unit.root(), rounding=self.rounding**0.5)

    def scaled(self, factor: float) -> Spectrum:
        """The same spectrum with its values times a positive factor.

        Parameters
        ----------
        factor : float
            What to multiply the matrix, or its Gram matrix, by: it acts on the values as they are, in their unit.

        Returns
        -------
        Spectrum
            Of the same weights, size and unit; the rounding error scales along.
        """
        factor = Interval(0, float("inf"), "()").check("factor", factor)
        return replace(self, values=factor * self.values, rounding=factor * self.rounding)

    def padded(self) -> Spectrum:
        """The spectrum with the zeros that the larger of M'M and MM' has beyond the values of M."""
        if not self.kernel:
            return self
        share = self.kernel / (self.size + self.kernel)
        place = np.searchsorted(self.values, 0.0)
        return replace(
            self,
            values=np.insert(self.values, place, 0.0),
            weights=np.insert(self.weights * (1 - share), place, share),
            size=self.size + self.kernel,
            kernel=0,
        )

    def distribution(self) -> StepDistribution:
        """The distribution function of the values."""
        return StepDistribution(self.values, self.weights, self.unit)

    def plot(self, law: Any = None, axes: Any = None, *, scale: str = "auto") -> Any:
        """Draw the values, on a law if one is given; see :mod:`bulkedge.plots`.

        Parameters
        ----------
        law : Law, Distribution or Spectrum, optional
            What to draw them on.
        axes : matplotlib Axes, optional
            Where; the current axes of pyplot by default.
        scale : {"auto", "linear", "sqrt", "log"}
            The axis of the values.

        Returns
        -------
        matplotlib Axes
            The axes.
        """
        from bulkedge import plots
        from bulkedge.inference.comparison import compare

        if law is None:
            return plots.histogram(self, axes, scale=scale)
        return plots.comparison(compare(self, law), axes, scale=scale)

    def __len__(self) -> int:
        return len(self.values)

    def _repr_html_(self) -> str:
        low, middle, high = (f"{each:.6g}" for each in self.distribution().ppf(np.array([0.0, 0.5, 1.0])))
        return html_table({"smallest": low, "median": middle, "largest": high}, f"{self.size} {self.unit}")

    def __repr__(self) -> str:
        error = f", known to {self.error:.2g}" if self.error else ""
        low = self.values[0] if abs(self.values[0]) > self.rounding else 0.0
        return f"Spectrum({self.size} {self.unit} from {low:.6g} to {self.values[-1]:.6g}{error})"


@dataclass(frozen=True, eq=False)
class Spectra:
    """The spectra of a batch of matrices of one shape, indexed as the batch is.

    >>> batch = spectrum(np.random.default_rng(0).standard_normal((5, 20, 10)))
    >>> batch.shape, batch[2].size
    ((5,), 10)

    Attributes
    ----------
    members : array of objects
        A :class:`Spectrum` for each matrix, in the shape of the leading axes.
    """

    members: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes of the batch."""
        return tuple(self.members.shape)

    @property
    def values(self) -> Real:
        """All values, of shape ``(*shape, k)``, increasing along the last axis."""
        return np.stack([each.values for each in self.members.ravel()]).reshape(*self.shape, -1)

    def squared(self) -> Self:
        """The squared values."""
        return self._map(lambda each: each.squared())

    def sqrt(self) -> Self:
        """The square roots of the values."""
        return self._map(lambda each: each.sqrt())

    def scaled(self, factor: float) -> Self:
        """The same spectra with their values times a positive factor."""
        return self._map(lambda each: each.scaled(factor))

    def _map(self, change: Any) -> Self:
        return type(self)(object_array(self.shape, [change(each) for each in self.members.ravel()]))

    def __getitem__(self, index: Any) -> Any:
        found = self.members[index]
        return Spectra(found) if isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"Spectra(shape={self.shape}, each like {self.members.flat[0]!r})"


def spectrum(  # noqa: PLR0913 - what to compute, and how well
    matrix: Any,
    kind: Literal["singular", "eigen"] = "singular",
    *,
    tolerance: float = 0.01,
    confidence: float = 0.9,
    rng: Any = None,
    placed: float = 0.0,
) -> Any:
    """All singular values of a matrix, or all eigenvalues of a symmetric one; for an operator, their distribution.

    Parameters
    ----------
    matrix : array of shape (..., m, n) or Operator
        Anything NumPy can read, or an array of the array API standard (torch included), which is computed where it
        lives. Integers, half precision and tensors that require gradients are taken as they come; half precision is
        computed in single. Of an :class:`~bulkedge.AttentionOperator` or another operator the distribution of the
        singular values is estimated from products alone; see :func:`~bulkedge.spectra.matrix_free.operator_spectrum`.
    kind : {"singular", "eigen"}
        What to compute; eigenvalues need a symmetric (Hermitian) matrix.
    tolerance : float
        For an operator: Kolmogorov distance within which the distribution is wanted.
    confidence : float
        For an operator: probability with which it is.
    rng : numpy.random.Generator or torch.Generator, optional
        For an operator: draws the probes; the same numbers every time by default.
    placed : float
        For an operator: share of the values to tell apart at least, where many are so close to zero that steps which
        reach the tolerance only count them.

    Returns
    -------
    Spectrum or Spectra
        The values of the matrix; a batch of them where there are leading axes.

    Warns
    -----
    AccuracyWarning
        For an operator whose distribution is not known as well as was asked for.

    Examples
    --------
    >>> signal = np.outer([1.0, 0.0, 0.0], [2.0, 0.0])
    >>> spectrum(signal).values
    array([0., 2.])
    >>> spectrum(signal @ signal.T, kind="eigen").values
    array([0., 0., 4.])
    """
    kind = Choice(("singular", "eigen")).check("kind", kind)
    from bulkedge.spectra.operators.base import Operator

    if isinstance(matrix, Operator):
        from bulkedge.spectra.matrix_free import operator_spectrum

        if kind == "eigen":
            raise DomainError("of an operator only singular values are estimated: Gram(op) has its eigenvalues")
        return operator_spectrum(matrix, tolerance, confidence, rng, placed=placed)
    dense = replace(MATRICES, complex_too=True).check("matrix", matrix)
    xp = array_namespace(dense)
    if kind == "singular":
        unit, values = Unit.SINGULAR, xp.linalg.svdvals(dense)
    else:
        _require_hermitian(xp, dense)
        unit, values = Unit.EIGEN, xp.linalg.eigvalsh(dense)
    epsilon = float(xp.finfo(values.dtype).eps) * max(dense.shape[-2:]) ** 0.5
    kernel = abs(int(dense.shape[-1]) - int(dense.shape[-2]))
    rows = as_numpy(values).astype(float)
    each = ((row, float(np.abs(row).max()) * epsilon) for row in rows.reshape(-1, rows.shape[-1]))
    found = [replace(Spectrum.of(row, unit, rounding), kernel=kernel) for row, rounding in each]
    return found[0] if rows.ndim == 1 else Spectra(object_array(rows.shape[:-1], found))


def _require_hermitian(xp: Any, matrix: Any) -> None:
    if matrix.shape[-1] != matrix.shape[-2]:
        raise DomainError(f"eigenvalues need a square matrix; got shape {tuple(matrix.shape)} (use kind='singular')")
    asymmetry = float(xp.max(xp.abs(matrix - xp.conj(xp.matrix_transpose(matrix)))))
    # float32 rounding passes, a wrong matrix does not
    if asymmetry > 1e-6 * float(xp.max(xp.abs(matrix))):
        raise DomainError(f"eigenvalues need a symmetric matrix; entries differ by {asymmetry:g} (use kind='singular')")


TOLERANCE = 0.01  # Kolmogorov distance within which the distribution of an operator is wanted, unless another is given


def attention_spectrum(
    attention: Any, mask: str | Mask = "full", *, tolerance: float | None = None, placed: float | None = None
) -> Any:
    """Squared singular values of ``sqrt(keys) (A - C)``, C the mean matrix of the mask.

    That is the matrix of :class:`~bulkedge.laws.attention.proportional.AttentionLaw`,
    :class:`~bulkedge.laws.attention.finite_head. FiniteHeadLaw` and, for a causal mask, of
    :class:`~bulkedge.laws.attention.causal_head.CausalHeadLaw`.

    Parameters
    ----------
    attention : array of shape (..., queries, keys) or AttentionOperator
        Attention weights of one head, or of a batch of heads: rows sum to one. NumPy or torch. Of an operator, which
        has a mask of its own, the distribution is estimated; see :func:`~bulkedge.spectrum`.
    mask : {"full", "causal"} or Mask
        Who attends to whom. A mask that does not fit the matrix is refused: the wrong mean makes outliers of its own.
    tolerance : float, optional
        For an operator: Kolmogorov distance within which the distribution is wanted; 0.01 by default. All values of a
        matrix that is written out are computed, so that it takes none.
    placed : float, optional
        For an operator: share of the values to tell apart at least; see :func:`~bulkedge.spectrum`.

    Returns
    -------
    Spectrum or Spectra
        Squared singular values; a batch of them where there are leading axes. ``error`` of an estimated one says what
        was reached.

    Examples
    --------
    >>> import numpy as np
    >>> sharp = np.roll(np.eye(4), 1, axis=1)                    # each token attends to the next one
    >>> attention_spectrum(sharp).values.round(12) + 0.0
    array([0., 4., 4., 4.])
    """
    MaskOrName().check("mask", mask)
    if isinstance(attention, AttentionOperator):
        if not (isinstance(mask, str) and mask == "full") and mask_for(mask, attention.shape[-2]) != attention.mask:
            raise DomainError(f"mask = {mask!r} is not that of {attention!r}, which has its own")
        wanted, share = TOLERANCE if tolerance is None else tolerance, 0.0 if placed is None else placed
        return spectrum(attention.shape[-1] ** 0.5 * attention.centred(), tolerance=wanted, placed=share).squared()
    for name, value in (("tolerance", tolerance), ("placed", placed)):
        if value is not None:
            raise DomainError(f"{name} = {shown(value)} is for an AttentionOperator: matrices have all values computed")
    weights = MATRICES.check("attention", attention)
    rows, keys = weights.shape[-2:]
    seen = Mask.cross(rows, keys) if isinstance(mask, str) and mask == "full" else mask_for(mask, rows)
    if seen.shape != (rows, keys):
        raise DomainError(f"mask = {mask!r} has shape {seen.shape}, attention {(rows, keys)}")
    _check_weights(as_numpy(weights).astype(float), seen)
    return spectrum(keys**0.5 * (weights - seen.mean(weights))).squared()


def _check_weights(weights: Any, mask: Mask) -> None:
    """Refuse what is no attention, or not behind this mask."""
    off = float(np.abs(weights.sum(axis=-1) - 1).max())
    # half precision passes, dropout and attention sinks outside do not
    if off > 0.02 or weights.min() < 0:
        raise DomainError(
            f"attention must have rows of weights that sum to one; sums differ from it by {off:.3g} and the smallest "
            f"weight is {weights.min():.3g}. Are these scores, was dropout on, or is there a sink outside of the keys?"
        )
    visible = mask.visible()
    if np.any(weights[..., ~visible]):
        raise DomainError(f"attention has weight where {mask!r} hides keys: that is not its mask")
    unused = ~np.any(weights, axis=tuple(range(weights.ndim - 2)))
    rows, keys = mask.shape
    if isinstance(mask, FullMask) and rows == keys > 2 and np.all(unused[np.triu_indices(keys, 1)]):
        raise DomainError("attention is zero above the diagonal, so it is causal: pass mask='causal'")
    blind = np.flatnonzero(np.all(unused, axis=0) & np.any(visible, axis=0))
    if blind.size:
        raise DomainError(f"keys {blind[:5].tolist()} are attended to by none: if padding, pass Mask.padding(visible)")
