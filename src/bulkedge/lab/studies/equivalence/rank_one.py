"""The term of rank one that the second Hermite coefficient adds to attention: what it is, and which outlier it makes.

Open question 3 of *equivalence* suggests a term of rank one with weight ``sqrt(theta_3)`` for the outliers of nonlinear
models. Given the norms of a query and of a key, ``|q_i|**2 = d r_i**2`` and ``|k_j|**2 = d rho_j**2``, the mean of
``T A_ij`` is ``exp(beta**2 r_i**2 (rho_j**2 - 1)/2)``, because the normaliser knows ``r_i``. To first order that is
one plus ``beta**2 (rho_j**2 - 1)/2``: longer keys are liked more. So ``sqrt(T) (A - uu')`` has the term

    ``sqrt(theta_3/phi) u v'``,   ``theta_3 = (E f'')**2/2 = beta**4/2``,   ``phi = d/T``,

with u the constant unit vector and v that of the ``rho_j**2 - 1``, of variance ``2/d``. At finite d its left vector is
that of the ``r_i**2``, so that its square is larger by ``E r**4 = 1 + 2/d``. At the sizes of real heads its singular
value lies in the gap of the bulk below the ``d`` values of the linear degree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, mean_marks, track
from bulkedge.laws import FiniteHeadLaw
from bulkedge.laws.attention.perron import perron
from bulkedge.plots.style import BARS, COLOURS, line, panels
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.visibility import softmax

PLACE = "equivalence: Open question 3"
BESIDE = 0.36
"""With QK-norm the value stands so many ``d/T`` beyond the end of the bulk, where single large entries push it: 0.045
+- 0.005 at 256 tokens and 32 dimensions, and the same at twice as many of both."""


@dataclass(frozen=True)
class EquivalenceRankOne(Study):
    """The rank-one term of weight sqrt(theta_3): its size, its direction, and the outlier that it makes in a gap.

    With normalised queries and keys there is no such term, and no such outlier.
    """

    tokens: int = parameter(Integers(128, 10_000), "tokens", 512, ours=1024)
    head_dim: int = parameter(Integers(32, 1024), "head dimension", 32, ours=64)
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.1, 1)), "values of beta, two or more", (0.4, 0.5, 0.6), ours=(0.4, 0.5, 0.6)
    )
    draws: int = parameter(Integers(2, 1000), "draws for each beta", 12, ours=16)
    small = {"tokens": 400, "betas": (0.5, 0.6), "draws": 8}
    caption = """The size of the rank-one term over β (left), and where its outlier lies between bulk and
    linear degree (right). The outliers should stand on the orange line, in the white gap, and be missing with
    QK-norm."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Project each draw on the term, and look for its value below those of the linear degree."""
        parts = [self._measure(beta, rng) for beta in track(self.betas, "beta")]
        return xr.concat(parts, dim=xr.Variable("beta", list(self.betas)))

    def _measure(self, beta: float, rng: np.random.Generator) -> xr.Dataset:
        draws = np.array([self._draw(beta, rng) for _ in range(self.draws)])
        found = perron(beta, self.head_dim, self.tokens)
        strength = beta**2 * np.sqrt(self.tokens / self.head_dim / 2)
        law, smooth = (FiniteHeadLaw(beta, self.head_dim, self.tokens, qk_norm) for qk_norm in (False, True))
        spike = [each.location for each in law.singular_spike(strength).outliers if each.location < law.support[-1][0]]
        names = ("amplitude", "columns", "beside", "beside_normed")
        return dataset(
            **{name: ("draw", column) for name, column in zip(names, draws.T, strict=True)},
            strength=((), strength, "sqrt(theta_3/phi)"),
            tilt=((), self.tokens * found.tilt, "its square at this size"),
            spread=((), self.tokens * found.spread, "variance of the column sums, times T"),
            location=((), max(spike, default=np.nan), "its squared singular value in the gap"),
            edge=((), law.support[0][1], "end of the bulk below the linear degree"),
            edge_normed=((), smooth.support[0][1], "the same with QK-norm"),
            next=((), law.support[-1][0], "where the linear degree begins"),
        )

    def _draw(self, beta: float, rng: np.random.Generator) -> tuple[float, float, float, float]:
        """Amplitude along the norms of keys, variance of column sums, and the value number ``head_dim + 1``.

        The last is given twice: over the square of the term that the norms of this draw make, and with QK-norm.
        """
        query, key = rng.standard_normal((2, self.tokens, self.head_dim))
        excess = (key**2).mean(axis=1) - 1
        matrix = self.tokens**0.5 * (softmax(beta * query @ key.T / self.head_dim**0.5, None) - 1 / self.tokens)
        columns = matrix.sum(axis=0) / self.tokens**0.5
        # longer queries tilt their rows more: the square of the term has the mean of r**4, which is 1 + 2/d
        liked = np.exp(beta**2 / 2 * np.outer((query**2).mean(axis=1), excess))
        term = np.sum((liked / liked.mean(axis=1, keepdims=True) - 1) ** 2) / self.tokens
        normed = SoftmaxAttention(self.tokens, self.head_dim, beta, qk_norm=True).spectrum(rng).values
        return (
            float(columns @ excess / np.linalg.norm(excess)),
            float(columns @ columns),
            float(spectrum(matrix).values[-self.head_dim - 1] ** 2 / term),
            float(normed[-self.head_dim - 1]),
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Size and growth of the term, and its outlier."""
        text = "column sums of A along the norms of keys, over sqrt(theta_3/phi), mean over beta"
        rival = "no term of rank one", 0.0
        yield Claim(text, PLACE, data.amplitude / data.strength, (np.sqrt(data.tilt) / data.strength).mean(), rival)
        text = "variance of column sums, times T, mean over beta: theta_1 + theta_3/phi"
        rival = "theta_1 alone, no term of rank one", (data.spread - data.tilt).mean()
        yield Claim(text, PLACE, data["columns"], data.spread.mean(), rival)
        logs = np.log(np.array(self.betas))
        if len(set(self.betas)) > 1 and float(data.amplitude.min()) > 0:
            weights = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
            text = "power of beta with which the term grows: the second Hermite coefficient"
            measured = np.log(data.amplitude.transpose("draw", "beta").values) @ weights
            rival = "the first power, as the linear degree", 1.0
            yield Claim(text, PLACE, measured, np.log(np.sqrt(data.tilt.values)) @ weights, rival)
        for beta in self.betas:
            yield from self._outlier(data.sel(beta=beta))

    def _outlier(self, one: xr.Dataset) -> Claims:
        beta, square = float(one.beta), float(one.strength**2)
        if not np.isfinite(one.location):
            return
        text = f"value below the linear degree over theta_3/phi of its draw, beta = {beta:g}: an outlier"
        rival = "no outlier: the end of the bulk there", float(one.edge) / square
        yield Claim(text, PLACE, one.beside, float(one.location) / square, rival)
        yield Claim(
            f"the same value with QK-norm over the end of the bulk, beta = {beta:g}: no outlier",
            PLACE,
            one.beside_normed / one.edge_normed,
            1.0,
            ("the outlier of Gaussian keys", one.location / one.edge_normed),
            finite_size=BESIDE * self.head_dim / self.tokens,
            reason=f"fitted: at 8 tokens a dimension large entries push it outwards by {BESIDE:g} d/T",
        )

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        fine = np.linspace(float(data.beta.min()), float(data.beta.max()), 50)
        strength = float((data.strength / data.beta**2)[0]) * fine**2
        line(left, fine, strength, label=r"$\sqrt{\theta_3/\varphi} = \beta^2\sqrt{T/2d}$")
        mean_marks(left, data.beta, data.amplitude, label="column sums along the norms of keys")
        left.axhline(0.0, color=COLOURS[-1], ls=":", lw=0.9, label="no such term")
        left.set(ylabel="amplitude", ylim=(-0.1 * float(data.amplitude.max()), 1.5 * float(data.amplitude.max())))
        unit = data.strength**2
        right.fill_between(data.beta, 0 * unit, data.edge / unit, color=BARS, label="bulk", lw=0)
        top = 1.3 * float((data.next / unit).min())
        right.fill_between(
            data.beta, data.next / unit, 0 * unit + top, color=BARS, alpha=0.5, label="linear degree", lw=0
        )
        line(right, data.beta, data.location / unit, label="predicted outlier")
        mean_marks(right, data.beta, data.beside, label="largest below the linear degree")
        mean_marks(right, data.beta, data.beside_normed / unit, label="with QK-norm", fmt="s", color=COLOURS[2])
        right.set(ylim=(0, top), ylabel=r"squared value over $\theta_3/\varphi$")
        for axes in grid[0]:
            axes.set_xlabel("β")
        left.legend(loc="upper left")
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=5)
        figure.suptitle(f"{self.tokens} tokens, {self.head_dim} dimensions, {self.draws} draws")
        return figure
