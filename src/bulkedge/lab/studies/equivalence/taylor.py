"""How high a polynomial has to be to stand for the exponential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.polynomial.hermite_e import hermegauss
from scipy.sparse.linalg import svds
from scipy.special import ndtr, ndtri

from bulkedge.ensembles.attention import SoftmaxAttention, taylor, taylor_degree
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, follows, mean_marks, sign, track
from bulkedge.laws.attention.finite_head import norm_quadrature
from bulkedge.plots.style import COLOURS, line, marks, panels, plain_ticks
from bulkedge.support.domains import Integers, Interval, parameter

NODES, SIZES, HERMITE = 400, 12, 80
"""Quadrature nodes: for the largest score, for the norms of queries, and for a typical score."""


@dataclass(frozen=True)
class EquivalenceTaylor(Study):
    """The Taylor degree with an error of ``d**(-1/2)`` grows with d and with beta, as the largest score predicts.

    The error is the operator norm of ``(f(S) - Q(S))/sqrt(d)``, with ``f(x) = exp(beta x - beta**2/2) - 1`` and Q its
    centred Taylor polynomial. It is made by the single largest score.
    """

    first: int = parameter(Integers(32, 1000), "smallest number of tokens, and head dimension", 64, ours=64)
    sizes: int = parameter(Integers(3, 8), "how many sizes, each twice the one before", 4, ours=5)
    last: float = parameter(Interval(0.75, 2), "largest of three betas from 0.5 on", 1.0, ours=1.5)
    degrees: int = parameter(Integers(8, 40), "largest degree", 14, ours=24)
    draws: int = parameter(Integers(3, 1000), "draws of each size", 20, ours=30)
    small = {"sizes": 3, "draws": 8}
    caption = """The error of a Taylor polynomial in operator norm over its degree (left), and the degree
    needed for an error of 1/√d over d (right). Points should follow the line of their colour on the right; where
    they lie above the dashed line, the degree of the proof is not enough at that size."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Norms of the remainder of every degree, and the degree at which they reach ``d**(-1/2)``."""
        betas, dims = np.linspace(0.5, self.last, 3), self.first * 2 ** np.arange(self.sizes)
        errors = np.empty((self.sizes, self.draws, len(betas), self.degrees))
        for k in track(list(range(self.sizes)), "sizes"):
            model = SoftmaxAttention(int(dims[k]), int(dims[k]), 1.0)
            for draw in range(self.draws):
                scores = model.scores(rng)
                errors[k, draw] = [self._errors(beta, scores) for beta in betas.tolist()]
        needed = [
            [[degree_reached(one, dim**-0.5) for one in each] for each in errors[k]] for k, dim in enumerate(dims)
        ]
        predicted = [[self._predicted(beta, int(dim)) for beta in betas.tolist()] for dim in dims]
        # the constant c in the degree of the proof, ``ceil(c log d/log log d)``; the paper does not fix it
        return dataset(
            error=(("dim", "draw", "beta", "degree"), errors, "operator norm of the remainder"),
            needed=(("dim", "draw", "beta"), needed, "degree at which it is d**(-1/2)"),
            predicted=(("dim", "beta"), predicted, "the same for the largest score"),
            chosen=("dim", [taylor_degree(int(dim), 2.0) for dim in dims]),
            coords={"dim": dims, "beta": betas, "degree": np.arange(1, self.degrees + 1)},
        )

    def _errors(self, beta: float, scores: Real) -> list[float]:
        rest = (_remainder(beta, degree, scores) for degree in range(1, self.degrees + 1))
        return [_norm(each) / len(scores) ** 0.5 for each in rest]

    def _predicted(self, beta: float, dim: int) -> float:
        """Mean degree at which the largest of ``dim**2`` scores makes an error of ``d**(-1/2)``.

        Scores given the query's norm r are Gaussian of variance r**2; numbers of large ones are taken as Poisson. The
        remainder x of the largest score is a perturbation of rank one of the others' matrix, whose entries have
        variance v: together they have the norm ``x + d v/x``, or ``2 sqrt(d v)`` where x is too small to stand out.
        """
        norms, weights = norm_quadrature(dim, dim, SIZES)
        levels = (np.arange(NODES) + 0.5) / NODES
        grid = np.linspace(0.5, 1.6, 2000) * -ndtri(1 / dim**2)
        beyond = dim**2 * (ndtr(-grid[:, None] / norms) @ weights)
        top = np.interp(levels, np.exp(-beyond), grid)
        nodes, mass = hermegauss(HERMITE)
        norm = []
        for degree in range(1, self.degrees + 1):
            rest, typical = (np.abs(_remainder(beta, degree, x)) for x in (top, nodes))
            noise = dim * float(mass @ typical**2) / mass.sum()
            outlier = np.maximum(rest, np.sqrt(noise))
            norm.append(outlier + noise / outlier)
        return float(np.mean([degree_reached(each, 1.0) for each in np.transpose(norm)]))

    # -- claims --------------------------------------------------------------------------------------------------------

    def statements(self, data: xr.Dataset) -> Claims:
        """The degree needed over d and over beta, and whether that of the proof is enough."""
        needed = data.needed.isel(beta=-1).transpose("draw", "dim").values
        theory = data.predicted.isel(beta=-1).values
        logs = np.log(data.dim.values)
        beta = float(data.beta[-1])
        text = f"degree needed over d, beta = {beta:g}: share of the rival (0 is the largest score's)"
        rival = "the degree of the smallest d is enough for all", np.full_like(theory, theory[0])
        yield follows(text, "equivalence: Lemma 4.4", needed, theory, rival)
        text = f"degree needed over d, beta = {beta:g}: share of growth like log d"
        rival = "a degree of order log d", theory[0] * logs / logs[0]
        yield follows(text, "equivalence: Lemma 4.4", needed, theory, rival)
        yield self._over_beta(data)
        # geometric means of the error over ``d**(-1/2)``, at the largest d: its tail is that of the largest score
        last = data.isel(dim=-1)
        dim, chosen = int(last.dim), int(last.chosen)
        scaled = np.log(last.error * dim**0.5)
        small = scaled.isel(beta=0)
        text = f"the degree {chosen} of the proof (c = 2) is enough at beta = 0.5: log of error sqrt(d) at most zero"
        rival = "degree 2 at the same d", small.sel(degree=2).mean()
        one_sided = "the lemma needs an error of order d^(-1/2), and a smaller one is as good"
        yield Claim(
            text, "equivalence: Lemma 4.4", small.sel(degree=chosen), 0.0, rival, relation="<=", one_sided=one_sided
        )
        text = f"it is not enough yet at beta = {float(data.beta[-1]):g}, d = {dim}: the same"
        yield sign(text, "ours", scaled.isel(beta=-1).sel(degree=chosen), "enough")

    def _over_beta(self, data: xr.Dataset) -> Claim:
        def slope(values: xr.DataArray) -> xr.DataArray:
            return (values.isel(beta=-1) - values.isel(beta=0)) / float(data.beta[-1] - data.beta[0])

        text = "growth of the degree needed with beta, a unit of beta, mean over d"
        measured = Estimate.mean(Estimate.of(each) for each in slope(data.needed).transpose("dim", "draw").values)
        rival = "a degree that depends on d alone", 0.0
        return Claim(text, "equivalence: Lemma 4.4", measured, slope(data.predicted).mean(), rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.7)
        left, right = grid[0]
        draws = data.sizes["draw"] ** 0.5
        last = data.isel(dim=-1)
        dim = int(last.dim)
        for beta, colour, symbol in zip(data.beta.values.tolist(), COLOURS, "os^", strict=False):
            look: dict[str, Any] = {"color": colour, "fmt": symbol, "label": f"β = {beta:g}"}
            error, needed = last.error.sel(beta=beta), data.needed.sel(beta=beta)
            log = np.log(error)
            bar = error.mean("draw") * log.std("draw", ddof=1) / draws
            marks(left, data.degree, np.exp(log.mean("draw")), bar, **(look | {"fmt": symbol + "-", "lw": 0.8}))
            mean_marks(right, data.dim, needed, **look)
            line(right, data.dim, data.predicted.sel(beta=beta), color=colour, label=f"β = {beta:g}, predicted")
        left.axhline(dim**-0.5, color="0.5", ls=":", lw=0.9, label=r"$d^{-1/2}$")
        left.axvline(float(last.chosen), color="black", ls="--", lw=0.9, label="degree of the proof")
        left.set(yscale="log", xlabel="degree", ylabel="error in operator norm", title=f"d = {dim}")
        left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        left.legend(loc="lower left")
        line(right, data.dim, data.chosen, color="black", ls="--", label="degree of the proof, c = 2")
        right.set(xscale="log", xlabel=r"d (= $T$)", ylabel=r"degree with error $d^{-1/2}$")
        right.set(ylim=(0, 1.6 * float(data.needed.mean("draw").max())), title=f"{data.sizes['draw']} draws")
        plain_ticks(right.xaxis, data.dim.values)
        right.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        right.legend(loc="upper left", ncols=2, columnspacing=0.8)
        return figure


def _remainder(beta: float, degree: int, scores: Real) -> Real:
    """``f(x) - Q(x)``, both centred."""
    return np.asarray(np.expm1(beta * scores - beta**2 / 2) - taylor(beta, degree)(scores))


def _norm(matrix: Real) -> float:
    """Operator norm by Lanczos, which is quick where one entry stands out; from a fixed vector, to be reproducible."""
    return float(svds(matrix, k=1, return_singular_vectors=False, v0=np.ones(len(matrix)))[0])


def degree_reached(errors: Real, target: float) -> float:
    """The degree at which errors of the degrees 1, 2, ... fall below a target, between integers by their logarithm.

    Examples
    --------
    >>> degree_reached(np.array([1.0, 0.1, 0.01]), 10**-1.5)
    2.5
    """
    logs = np.log(errors / target)
    above = np.flatnonzero(logs > 0)
    if not above.size:
        return 1.0
    before = int(above[-1])
    if before + 1 == logs.size:
        return float(logs.size)
    return float(before + 1 + logs[before] / (logs[before] - logs[before + 1]))
