"""What the studies of real heads share."""

import numpy as np
import pytest

from bulkedge.ensembles import SoftmaxAttention
from bulkedge.studies.heads import setting
from bulkedge.studies.heads.setting import generator, squared_values


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_squared_values_on_torch_are_those_of_the_ensemble(mask):
    torch = pytest.importorskip("torch")
    model = SoftmaxAttention(60, 16, 0.8, mask=mask)
    found = squared_values(model, torch.Generator().manual_seed(4))
    expected = model.spectrum(torch.Generator().manual_seed(4))
    # eigenvalues of the Gram matrix: rounding of the largest
    np.testing.assert_allclose(found.values, expected.values, atol=1e-13 * expected.values[-1], rtol=0)
    assert found.unit == expected.unit


def test_numpy_stays_numpy():
    model = SoftmaxAttention(40, 16, 0.8)
    found = squared_values(model, np.random.default_rng(1))
    assert np.array_equal(found.values, model.spectrum(np.random.default_rng(1)).values)


def test_few_tokens_need_no_torch(monkeypatch):
    monkeypatch.setattr(setting, "find_spec", pytest.fail)
    rng = np.random.default_rng(1)
    assert generator(rng, setting.LARGE - 1) is rng


def test_many_tokens_without_a_gpu_are_drawn_here(monkeypatch):
    monkeypatch.setattr(setting, "find_spec", lambda name: None)
    rng = np.random.default_rng(1)
    assert generator(rng, setting.LARGE) is rng
