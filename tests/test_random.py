"""Gaussian numbers from either library's generator, and a clear word for anything else."""

import numpy as np
import pytest

from bulkedge.support.errors import DomainError
from bulkedge.support.random import normal, numpy_generator


def test_numpy():
    found = normal(np.random.default_rng(3), (4, 5))
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, np.random.default_rng(3).standard_normal((4, 5)))
    rng = np.random.default_rng(3)
    assert numpy_generator(rng) is rng


def test_torch():
    torch = pytest.importorskip("torch")
    found = normal(torch.Generator().manual_seed(3), (4, 5))
    expected = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=found.dtype)
    assert torch.equal(found, expected)
    assert found.dtype == torch.float64
    with pytest.raises(DomainError):
        numpy_generator(torch.Generator())


@pytest.mark.parametrize("rng", [None, 3, np.random, np.random.RandomState(0), object()])
def test_what_is_no_generator(rng):
    with pytest.raises(DomainError, match="rng"):
        normal(rng, (2,))
    with pytest.raises(DomainError, match="rng"):
        numpy_generator(rng)


def test_what_only_looks_like_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(DomainError, match="rng"):
        normal(torch.zeros(3), (2,))
