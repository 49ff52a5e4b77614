"""Theorem 2: the population covariance given the table, and its transition, before that of the sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import eigh

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledDraw, PooledSequences, Table
from bulkedge.ensembles.weights import pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, mean_marks
from bulkedge.laws import MarchenkoPastur, TracyWidom
from bulkedge.plots.style import COLOURS, line, panels, shared_legend
from bulkedge.support.domains import Integers, Interval, parameter

ABOVE, BELOW, BETWEEN = 1.3, 0.8, 0.75
"""Strengths omega, in thresholds, from which the population's outlier stands clear, below which there is none, and (in
thresholds of the sample) below which a sample has none."""
QUANTITIES = ("location", "overlap", "sample_overlap", "kept")


@dataclass(frozen=True)
class RecoveryPopulation(Study):
    """Largest eigenvalue of the population covariance given the table, and its overlap with the signal, over strength.

    Nothing is estimated from sequences here but in the second transition: between the two thresholds the population
    has an outlier and a sample has none. The table has exact class means, as Theorem 2 has it.
    """

    dim: int = parameter(Integers(40, 5000), "dimension of the embeddings; half of it is drawn too", 200, ours=600)
    vocab_ratio: float = parameter(Interval(0.02, 5), "dimension over vocabulary", 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.02, 5), "dimension over samples", 1.0, ours=1.0)
    strengths: int = parameter(Integers(6, 100), "strengths between 0.5 and 2.5 thresholds", 11, ours=21)
    table: Table = parameter(*setting.TABLE_MEANS, "additive", paper="additive")
    draws: int = parameter(*setting.DRAWS, 12, ours=20)
    small = {"dim": 80, "strengths": 9}
    caption = """Largest eigenvalue of the population covariance over the signal (left), and the overlaps
    of population and sample (right). The population's overlap should leave zero at the first dotted line and the
    sample's at the second."""

    def model(self, strength: float) -> PooledSequences:
        """The ensemble whose spike has this strength."""
        correlation = prefix_correlation(setting.LONG, setting.LONG_PREFIX, setting.CORRELATION)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        unit = PooledSequences(*sizes, 1.0, setting.weights_of("causal", correlation), correlation, self.table)
        spread = unit.vocab_ratio if self.table == "finite" else 0.0
        return replace(unit, signal=float(np.sqrt(max(strength * unit.kappa / unit.alpha - spread, 0.0))))

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Tables of each strength."""
        delta = self.vocab_ratio
        threshold = delta + np.sqrt(delta)
        relative, fine = np.linspace(0.5, 2.5, self.strengths), np.linspace(0.5, 2.5, 201)
        models, curve = ([self.model(each * threshold) for each in at] for at in (relative, fine))
        found = setting.draw_pairs(_quantities, setting.with_halves(models), self.draws, rng, "strengths")
        data = {
            f"{kind}{name}": (("strength", "draw"), values[..., number])
            for number, name in enumerate(QUANTITIES)
            for kind, values in (("", found.plain), ("limit_", found.limit))
        }
        theory = {
            f"{kind}{name}": (dim, [value(each) for each in at])
            for kind, dim, at in (("predicted_", "strength", models), ("curve_", "fine_strength", curve))
            for name, value in THEORY.items()
        }
        sample = models[0].sample_spike().threshold / models[0].kappa
        return xr.Dataset(
            data | theory | {"omega": ("strength", relative * threshold), "kappa": ((), models[0].kappa)},
            coords={"strength": ("strength", relative, {"units": "threshold"}), "fine_strength": fine},
            attrs={"sample_threshold": float(self._strength_of(sample) / threshold)},
        )

    def _strength_of(self, level: float) -> float:
        """The omega whose population eigenvalue, over kappa, is that: the larger root of equation 6."""
        half = (level - 1 + self.vocab_ratio) / 2
        return float(half + np.sqrt(half**2 - self.vocab_ratio * level))

    def statements(self, data: xr.Dataset) -> Claims:
        """Outlier and overlap above the threshold, nothing below it, nothing in a sample between the two."""
        above, below = data.sel(strength=slice(ABOVE, None)), data.sel(strength=slice(None, BELOW))
        mixed = float((data.kappa * (above.omega + 1)).mean())
        text = f"largest eigenvalue of the population over {ABOVE} thresholds"
        rival = "the planted strength on the noise's mean, kappa (omega + 1)", mixed
        yield Claim(text, "recovery: Theorem 2, Equation 6", above.limit_location, above.predicted_location, rival)
        text = f"squared overlap of its eigenvector with the signal over {ABOVE} thresholds"
        rival = "an unlimited vocabulary: the signal itself", 1.0
        yield Claim(text, "recovery: Theorem 2", above.limit_overlap, above.predicted_overlap, rival)
        yield Claim(
            f"squared overlap of the population's eigenvector below {BELOW} thresholds, at most of order 1/d",
            "recovery: Theorem 2",
            below.overlap,
            0.0,
            (f"no threshold: as at {ABOVE}", above.predicted_overlap[0]),
            finite_size=25 / self.dim,
            reason="derived: d times the overlap is about 1/(1 - 0.8)**2 = 25 at most",
            relation="<=",
            one_sided="there is no overlap in the limit, and a bound of order 1/d at finite size",
        )
        delta, kappa, omega = self.vocab_ratio, float(below.kappa), below.omega
        law, vocab = MarchenkoPastur(delta, kappa), self.model(1.0).vocab
        shift = law.edge_scale * self.dim ** (-2 / 3) * TracyWidom(1).mean()
        # exact class means leave vocab - 2 rows of noise; to second order there are half a row and half a column fewer
        edge = kappa * (np.sqrt(self.dim - 0.5) + np.sqrt(vocab - 2.5)) ** 2 / vocab
        continued = kappa * omega * (omega + 1 - delta) / (omega - delta)
        text = f"largest eigenvalue of the population below {BELOW} thresholds"
        rival = "equation 6 without a threshold", continued.where(omega > delta, drop=True).mean()
        finite_size = 0.6 * edge / self.dim
        reason = "fitted: at 40 and 80 dimensions a signal so near its threshold pushes it outwards by 0.6/d at most"
        yield Claim(text, "recovery: Theorem 2", below.location, edge + shift, rival, finite_size, reason)
        yield from self._between(data)
        text = "variance of pooled rows along the class means, over that of equation 3"
        rival = "signs without correlation: kappa for alpha", data.predicted_uncorrelated.mean()
        yield Claim(text, "recovery: Equation 3", data.kept, 1.0, rival)

    def _between(self, data: xr.Dataset) -> Claims:
        one = data.sel(strength=slice(1.1, BETWEEN * data.attrs["sample_threshold"]))
        if not one.sizes["strength"]:
            return
        yield Claim(
            "squared overlap of a sample's eigenvector between both thresholds, at most of order 1/d",
            "recovery: Theorem 3, Theorem 4",
            one.sample_overlap,
            0.0,
            ("one transition alone, that of the population", one.predicted_overlap.mean()),
            finite_size=1 / self.dim / (1 - BETWEEN) ** 2,
            reason="derived: d times the overlap is about 1/(1 - 0.75)**2 = 16 at most",
            relation="<=",
            one_sided="there is no overlap in the limit, and a bound of order 1/d at finite size",
        )

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        line(left, data.fine_strength, data.curve_location, label="Theorem 2")
        mean_marks(left, data.strength, data.location, label="population")
        mixed = data.kappa * (data.omega + 1)
        line(left, data.strength, mixed, label=r"$\kappa(\omega + 1)$", **setting.RIVAL)
        left.set_ylabel("largest eigenvalue")
        line(right, data.fine_strength, data.curve_overlap, label="Theorem 2")
        mean_marks(right, data.strength, data.overlap, label="population")
        line(right, data.fine_strength, data.curve_sample_overlap, label="equation 8", color=COLOURS[2])
        found = data.sample_overlap
        mean_marks(right, data.strength, found, label="sample", color=COLOURS[2], fmt="s")
        right.axvline(
            float(data.attrs["sample_threshold"]), color=COLOURS[2], lw=0.8, ls=":", label="sample's threshold"
        )
        right.set(ylabel="squared overlap", ylim=(-0.03, 1.03))
        for axes in grid[0]:
            axes.axvline(1.0, color="black", lw=0.8, ls=":")
            axes.set_xlabel(r"strength $\omega$ over $\delta + \sqrt{\delta}$")
        shared_legend(figure, grid[0], 3)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "draws")
        return figure


def population_covariance(draw: PooledDraw, model: PooledSequences) -> tuple[Real, Real]:
    """``kappa S + alpha m m'`` of the table that was drawn, and m, half the difference of its class means."""
    positive, negative = np.split(draw.table, 2)
    means = positive.mean(axis=0), negative.mean(axis=0)
    half = (means[0] - means[1]) / 2
    inner = np.concatenate([positive - means[0], negative - means[1]])
    return model.kappa * inner.T @ inner / model.vocab + model.alpha * np.outer(half, half), half


def _quantities(model: PooledSequences, rng: np.random.Generator) -> Real:
    """Those named in ``QUANTITIES``, of one draw."""
    draw = model.draw(rng)
    matrix, half = population_covariance(draw, model)
    values, vectors = eigh(matrix, subset_by_index=(model.dim - 1, model.dim - 1))
    unit = draw.mean / np.linalg.norm(draw.mean)
    rows = pool(draw.table, draw.tokens, model.weights)
    kept = np.mean((rows @ half) ** 2) / (half @ matrix @ half)
    return np.array([values[0], (unit @ vectors[:, 0]) ** 2, (unit @ setting.top(rows)[1]) ** 2, kept])


def _uncorrelated(model: PooledSequences) -> float:
    """What equation 3 would lose if alpha were kappa, along m, in the limit."""
    square = model.signal**2 + (model.vocab_ratio if model.table == "finite" else 0.0)
    return float((1 + square) * model.kappa / (model.kappa + model.alpha * square))


THEORY = {
    "location": lambda model: float(model.population_spike().location),
    "overlap": lambda model: float(model.population_spike().overlap),
    "sample_overlap": lambda model: model.alignment().total,
    "uncorrelated": _uncorrelated,
}
