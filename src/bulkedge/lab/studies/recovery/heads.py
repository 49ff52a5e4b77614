"""Open point (iv), heads: concatenated poolings of the same sequences (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.optimize import brentq

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences, spectral_alignment
from bulkedge.ensembles.weights import pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study
from bulkedge.laws import MarchenkoPastur
from bulkedge.plots.style import COLOURS, line, panels, shared_legend
from bulkedge.support.domains import Integers, Interval, parameter

LENGTH, PREFIX = 40, 30
SHARED = np.stack([np.arange(LENGTH) < 0.75 * LENGTH, np.arange(LENGTH) >= 0.25 * LENGTH]) / (0.75 * LENGTH)
"""Weights of two heads that read three quarters of the positions each, half of all in common."""
QUANTITIES = (("location", "largest eigenvalue"), ("overlap", "squared overlap with the signal"))


@dataclass(frozen=True)
class RecoveryHeads(Study):
    """Two heads that attend to the first and the second half of the positions, concatenated.

    Rows have twice the dimension, noise ``K x S`` and a signal ``A x mm'`` (Kronecker products) with ``K = W W'`` and
    ``A = W R W'``, a row of W for each head. For heads of the same noise that share no position ``K = kappa``, and the
    theorems hold with the largest eigenvalue of A for alpha and twice the ratio of dimension to samples.

    Two more heads share half of their positions. K then has the eigenvalues ``k_1`` and ``k_2``, and in its basis the
    population has an outlier theta where ``det(1 - |m|**2 A G(theta)) = 0``, ``G = diag(g(theta/k_a)/k_a)`` with g of
    MP(delta); a sample moves it to ``theta + gamma theta sum_a (theta g(theta/k_a)/k_a - 1)``.
    """

    dim: int = parameter(*setting.DIM, 120, ours=300)
    vocab_ratio: float = parameter(*setting.VOCAB_RATIO, 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.05, 5), "dimension over samples", 2.0, ours=2.0)
    strongest: float = parameter(Interval(0.5, 10), "strongest signal", 0.8, ours=0.8)
    signals: int = parameter(Integers(3, 100), "signal strengths", 5, ours=8)
    draws: int = parameter(Integers(4, 1000), "draws of each", 100, ours=40)
    small = {"dim": 60, "signals": 3, "draws": 40}
    caption = """Largest eigenvalue and squared overlap of two concatenated heads over the signal, with
    three theories. Points should follow the solid line: the eigenvalue beats both rivals, and the overlap pays for
    the doubled dimension."""

    def weights(self) -> Real:
        """Weights of the heads, an array of heads x positions."""
        return np.kron(np.eye(2), np.full(LENGTH // 2, 2 / LENGTH))

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both heads, over the signal."""
        correlation = prefix_correlation(LENGTH, PREFIX, setting.CORRELATION)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        signal = np.linspace(0.5 * self.strongest, self.strongest, self.signals)
        models = [PooledSequences(*sizes, each, self.weights()[0], correlation) for each in signal]
        values, vectors = np.linalg.eigh(self.weights() @ correlation @ self.weights().T)
        found = setting.draw_pairs(
            lambda model, rng: _quantities(model, self.weights(), vectors[:, -1], rng),
            setting.with_halves(models),
            self.draws,
            rng,
            "signals",
        )
        shared = setting.draw_pairs(
            lambda model, rng: _quantities(model, SHARED, np.ones(2), rng)[:1],
            setting.with_halves(models[-1:]),
            self.draws,
            rng,
            "shared positions",
        )
        silent = replace(models[-1], signal=0.0, table="additive")
        spread = setting.draw_pairs(_spread, setting.with_halves([silent]), self.draws, rng, "shared positions")
        fine = np.linspace(signal[0], signal[-1], 60)
        kinds = {
            "both": (values[-1], 2 * self.sample_ratio),
            "free": (values[-1], self.sample_ratio),
            "best": (models[0].alpha, self.sample_ratio),
        }
        data: dict[str, Any] = {
            "shared": ("draw", shared.limit[0, :, 0], {"long_name": "largest eigenvalue, shared positions"}),
            "predicted_shared": ((), self._shared(correlation)),
            "alone": ((), float(replace(models[-1], weights=SHARED[0]).sample_spike().location)),
            "spread": ("draw", spread.limit[0, :, 0], {"long_name": "mean square over squared mean of the bulk"}),
        }
        for number, (name, meaning) in enumerate(QUANTITIES):
            data[name] = (("signal", "draw"), found.plain[..., number], {"long_name": meaning})
            data[f"limit_{name}"] = (("signal", "draw"), found.limit[..., number])
            for at, dim, label in ((signal, "signal", "predicted"), (fine, "fine_signal", "curve")):
                theory = [self._theory(at, alpha, ratio, models[0].kappa)[number] for alpha, ratio in kinds.values()]
                data[f"{label}_{name}"] = (("kind", dim), np.array(theory))
        return xr.Dataset(data, coords={"signal": signal, "fine_signal": fine, "kind": list(kinds)})

    def _theory(self, signal: Real, alpha: float, sample_ratio: float, kappa: float) -> tuple[Real, Real]:
        """Outlier and alignment with the signal, beyond the threshold."""
        delta = self.vocab_ratio
        omega = alpha * (signal**2 + delta) / kappa
        x = omega - delta
        location = kappa * (1 + x) * (x + delta) * (x + sample_ratio) / x**2
        return location, spectral_alignment(omega, delta, sample_ratio) * signal**2 / (signal**2 + delta)

    def _shared(self, correlation: Real) -> float:
        """The outlier of heads with shared positions."""
        law, square = MarchenkoPastur(self.vocab_ratio), self.strongest**2 + self.vocab_ratio
        levels, frame = np.linalg.eigh(SHARED @ SHARED.T)
        signal = square * frame.T @ SHARED @ correlation @ SHARED.T @ frame

        def resolvents(theta: float) -> Real:
            return np.array([float(np.real(law.cauchy(theta / each))) / each for each in levels.tolist()])

        def condition(theta: float) -> float:
            return float(np.linalg.det(np.eye(2) - signal * resolvents(theta)))

        edge = float(levels[-1] * law.edge)
        theta = float(brentq(condition, (1 + 1e-9) * edge, edge + 4 * float(np.trace(signal))))
        return theta + self.sample_ratio * theta * float(np.sum(theta * resolvents(theta) - 1))

    def statements(self, data: xr.Dataset) -> Claims:
        """The outlier and the overlap of both heads."""
        rivals = {
            "location": (("best", "the better head alone"), ("free", "as if the second head cost no dimension")),
            "overlap": (("free", "as if the second head cost no dimension"),),
        }
        for name, meaning in QUANTITIES:
            for kind, said in rivals[name]:
                text = f"two heads: {meaning}, not {said}"
                place = "recovery: Open problem (iv); ours"
                rival = said, data[f"predicted_{name}"].sel(kind=kind)
                yield Claim(text, place, data[f"limit_{name}"], data[f"predicted_{name}"].sel(kind="both"), rival)
        place, text = "recovery: Open problem (iv); ours", "two heads that share half of their positions"
        alone = "the first head alone", data.alone
        yield Claim(f"{text}: largest eigenvalue", place, data.shared, data.predicted_shared, alone)
        levels, pull = np.linalg.eigvalsh(SHARED @ SHARED.T), 2 * self.sample_ratio
        predicted = float(np.mean(levels**2) / np.mean(levels) ** 2 * (1 + self.vocab_ratio) + pull)
        apart = "as if their noise were independent", 1 + self.vocab_ratio + pull
        yield Claim(f"{text}: mean square over squared mean of the bulk", place, data.spread, predicted, apart)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        names = {"both": "theory", "free": "theory if $D$ did not double", "best": "the better head alone"}
        for axes, (name, label) in zip(grid[0], setting.NAMES.items(), strict=True):
            for kind, said in names.items():
                look = {} if kind == "both" else setting.RIVAL | {"ls": ":" if kind == "free" else "--"}
                line(axes, data.fine_signal, data[f"curve_{name}"].sel(kind=kind), label=said, **look)
            setting.over_signal(axes, data, name, COLOURS[0], "two heads")
            axes.set(xlabel=setting.SIGNAL, ylabel=label)
        shared_legend(figure, [grid[0, 0]], 4)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "draws")
        return figure


def _quantities(model: PooledSequences, weights: Real, direction: Real, rng: np.random.Generator) -> Real:
    """Largest eigenvalue of the concatenated heads, and overlap with the signal in the best combination of them."""
    draw = model.draw(rng)
    rows = np.concatenate([pool(draw.table, draw.tokens, each) for each in weights], axis=1)
    value, vector = setting.top(rows)
    return np.array([value, (vector @ np.kron(direction, draw.mean)) ** 2 / model.signal**2])


def _spread(model: PooledSequences, rng: np.random.Generator) -> Real:
    """Mean square over squared mean of the eigenvalues of heads with shared positions, without a signal."""
    draw = model.draw(rng)
    rows = np.concatenate([pool(draw.table, draw.tokens, each) for each in SHARED], axis=1)
    gram = rows @ rows.T
    return np.array([np.sum(gram**2) / np.trace(gram) ** 2 * 2 * model.dim])
