"""Attention behind windows and chunks, drawn, beside the law that its mask chooses."""

import numpy as np
import pytest

import bulkedge as be

HEAD = {"tokens": 512, "head_dim": 32, "beta": 0.4, "qk_norm": True}
BACK, BOTH, CHUNKS = be.Mask.window(512, 64), be.Mask.window(512, 65, after=32), be.Mask.chunks(512, 128)


@pytest.mark.parametrize(
    "mask", [BACK, pytest.param(BOTH, marks=pytest.mark.slow), CHUNKS], ids=["back", "both sides", "chunks"]
)
def test_the_law_that_a_mask_chooses(mask):
    """24 draws pooled: within the noise of so many values, 0.7/sqrt(n) as for single draws, and what laws leave out.

    That is half a value in a window (``WindowLaw.accuracy``), and one in a chunk: the zero of rows that sum to one.
    """
    model, rng = be.SoftmaxAttention(**HEAD, mask=mask), np.random.default_rng(20_261_120)
    drawn = np.sort(np.concatenate([model.spectrum(rng).values for _ in range(24)]))
    left_out = 1 / 128 if mask is CHUNKS else 0.5 / 64
    levels = (np.arange(len(drawn)) + 0.5) / len(drawn)
    # what lies below rounding counts, not where it is
    seen = drawn > 1e-20 * drawn[-1]
    assert np.abs(model.law().cdf(drawn) - levels)[seen].max() < left_out + 0.7 / len(drawn) ** 0.5  # 0.014
    full = be.FiniteHeadLaw(0.4, 32, 64, qk_norm=True).scaled(8.0)
    assert np.abs(full.cdf(drawn) - levels)[seen].max() > 0.04


def test_vanishing_values_of_a_window_that_looks_back():
    """About half a window of values is next to zero, which no law of equal rows knows."""
    model, rng = be.SoftmaxAttention(**HEAD, mask=BACK), np.random.default_rng(7)
    small = np.mean([model.spectrum(rng).values < 1e-8 for _ in range(6)])
    assert float(model.law().cdf(1e-8)) == pytest.approx(small, abs=0.006)
    assert small > 0.03
    assert float(be.FiniteHeadLaw(0.4, 32, 64, qk_norm=True).scaled(8.0).cdf(1e-8)) < 0.001
