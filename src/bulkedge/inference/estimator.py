"""Nonlinear shrinkage as a scikit-learn estimator; the one module that needs scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkedge.inference.covariance import FEWEST, ZERO, shrink_spectrum
from bulkedge.support.errors import MissingPackageError

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    say = "CovarianceShrinker needs scikit-learn: pip install 'bulkedge[sklearn]'"
    raise MissingPackageError(say, name="sklearn") from error


class CovarianceShrinker(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Estimate a covariance by :func:`~bulkedge.shrink_spectrum`, and whiten data with it.

    With fewer than ten features there is no bulk to shrink, and the covariance is that of the sample. Features that are
    constant, or equal to others, are left out of the fit.

    >>> data = np.random.default_rng(0).standard_normal((60, 40))
    >>> shrinker = CovarianceShrinker().fit(data)
    >>> bool(np.linalg.cond(np.cov(data.T)) > 50), bool(np.linalg.cond(shrinker.covariance_) < 2)
    (True, True)
    >>> bool(np.allclose(shrinker.inverse_transform(shrinker.transform(data)), data))
    True

    Parameters
    ----------
    assume_centered : bool
        Whether the data have mean zero already.

    Attributes
    ----------
    covariance_ : array of shape (features, features)
        The estimate.
    precision_ : array of shape (features, features)
        Its inverse.
    location_ : array of shape (features,)
        The mean.
    components_ : array of shape (features, features)
        Eigenvectors of the sample covariance, one a row, that of the largest eigenvalue first.
    explained_variance_ : array of shape (features,)
        Shrunk eigenvalues in that order.
    n_features_in_ : int
        Features of the data.
    """

    def __init__(self, *, assume_centered: bool = False) -> None:
        self.assume_centered = assume_centered

    def fit(self, X: Any, y: Any = None) -> CovarianceShrinker:  # noqa: N803, ARG002 - scikit-learn's names
        """Estimate the covariance.

        Parameters
        ----------
        X : array_like of shape (samples, features)
            The data, two samples at least.
        y : object
            Not used.

        Returns
        -------
        CovarianceShrinker
            Itself.
        """
        data = validate_data(self, X, dtype=float, ensure_min_samples=2)
        self.location_ = np.zeros(data.shape[1]) if self.assume_centered else data.mean(axis=0)
        samples = len(data) - (not self.assume_centered)
        _, sizes, axes = np.linalg.svd(data - self.location_, full_matrices=True)
        values = np.zeros(data.shape[1])
        values[: min(samples, len(values))] = sizes[:samples] ** 2 / samples
        floor = np.finfo(float).eps * max(values[0], np.finfo(float).tiny)
        # columns that are equal or constant: the data lie in a space of this dimension
        dimension = int(np.sum(values > ZERO * values[0]))
        dimension = dimension if dimension < min(samples, len(values)) else len(values)
        shrunk = values.copy()
        if dimension >= FEWEST:
            shrunk[:dimension] = shrink_spectrum(values[:dimension], dimension / samples)
        self.components_, self.explained_variance_ = axes, np.maximum(shrunk, max(floor, np.finfo(float).tiny))
        self.covariance_ = (axes.T * self.explained_variance_) @ axes
        self.precision_ = (axes.T / self.explained_variance_) @ axes
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Whiten data: coordinates along the eigenvectors, in units of their estimated standard deviations.

        Parameters
        ----------
        X : array_like of shape (samples, features)
            Data.

        Returns
        -------
        array of shape (samples, features)
            The whitened data.
        """
        check_is_fitted(self)
        data = validate_data(self, X, dtype=float, reset=False)
        return (data - self.location_) @ self.components_.T / np.sqrt(self.explained_variance_)

    def inverse_transform(self, X: Any) -> Any:  # noqa: N803
        """Undo :meth:`transform`.

        Parameters
        ----------
        X : array_like of shape (samples, features)
            Whitened data.

        Returns
        -------
        array of shape (samples, features)
            The data.
        """
        check_is_fitted(self)
        white = check_array(X, dtype=float)
        return white * np.sqrt(self.explained_variance_) @ self.components_ + self.location_
