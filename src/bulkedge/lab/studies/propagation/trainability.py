"""Which score scales carry a signal: between rank collapse and entropy collapse (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, mean_marks, share, track
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.propagation import trainability as theory
from bulkedge.propagation.overlap import participation_variance
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.visibility import softmax

FINE_BETAS = tuple(k / 2 for k in range(1, 11))
FINE_SKIPS = tuple(k / 10 for k in range(10))
KEPT = 0.5
"""Least skip connection for which key-query attention is claimed: below, tokens that attend to the same one become
equal to each other and not to the rest, which one mean cosine does not describe."""
POINTS = 33
"""Of the theory's grid, in either direction of the map."""
VERDICTS = ("rank collapse", "inside", "entropy collapse")
SHOWN = 3
"""Skip connections of which key-query attention is drawn, the strongest."""


@dataclass(frozen=True)
class PropagationTrainability(Study):
    """Which score scales, skips and depths keep tokens distinct, and where attention freezes on one token.

    The predicted share of the signal that tokens do not have in common, and the predicted entropy, stand beside
    simulation at every point of the map: attention with independent scores, for which the theory is exact at any size,
    and wide key-query attention with LayerNorm, whose rows are as similar as their tokens. Of that theory there are two
    rivals: infinitely many tokens (the random energy model), and rows that never look at the same token.
    """

    tokens: int = parameter(Integers(16, 500), "number of tokens T", 40, ours=100)
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.05, 8)), "score scales", (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5), ours=FINE_BETAS
    )
    skips: tuple[float, ...] = parameter(
        Each(Interval(0, 0.999)), "weights of the skip connection", (0.0, 0.3, 0.5, 0.7, 0.85), ours=FINE_SKIPS
    )
    depths: tuple[int, ...] = parameter(Each(Integers(1, 64)), "depths, increasing", (2, 6, 12), ours=(3, 12, 48))
    draws: int = parameter(Integers(2, 100), "draws at each point, of each kind of attention", 12, ours=8)
    small = {"tokens": 32, "betas": (0.5, 1.5, 3.0), "skips": (0.0, 0.5, 0.85)}
    caption = """How distinct tokens stay over score scale and skip weight at three depths, the entropy of
    a row (top), and key–query attention at some skip weights (bottom). The white line is half the distinct share,
    the vertical line is where attention freezes: good settings lie above the one and left of the other."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Theory and simulation over the map."""
        shape = (len(self.skips), len(self.betas), len(self.depths), self.draws)
        apart, total, key_query = np.empty((3, *shape))
        entropy = np.empty((*shape[:2], self.draws))
        for i, skip in enumerate(track(list(self.skips), "skips")):
            for j, k in product(range(len(self.betas)), range(self.draws)):
                apart[i, j, :, k], total[i, j, :, k], entropy[i, j, k] = self._simulate(skip, self.betas[j], rng)
            for j, beta in enumerate(self.betas):
                key_query[i, j] = self._key_query(skip, beta, rng)
        dims = ("skip", "beta", "depth")
        rows = [softmax_of_gaussians(beta, self.tokens).entropy for beta in self.betas]
        fine = {"fine_beta": grid_over(self.betas), "fine_skip": grid_over(self.skips)}
        curve = fine["fine_beta"][::2]
        return dataset(
            **{name: (dims, each) for name, each in (self._theory() | self._theory_of_key_query(self.betas)).items()},
            **{
                f"{name}_curve": (("skip", "curve_beta", "depth"), each)
                for name, each in self._theory_of_key_query(curve).items()
            },
            fine=(("fine_skip", "fine_beta", "depth"), self._fine(fine["fine_skip"], fine["fine_beta"])),
            fine_entropy=("fine_beta", [softmax_of_gaussians(beta, self.tokens).entropy for beta in fine["fine_beta"]]),
            apart=((*dims, "draw"), apart, "power that tokens do not have in common, a token"),
            power=((*dims, "draw"), total, "power of the signal, a token"),
            key_query=((*dims, "draw"), key_query, "share, key-query attention and LayerNorm"),
            entropy=(("skip", "beta", "draw"), entropy, "mean entropy of a row"),
            predicted_entropy=("beta", rows),
            freezing=((), theory.freezing_beta(self.tokens), "sqrt(2 log T)"),
            coords={"skip": list(self.skips), "beta": list(self.betas), "depth": list(self.depths)}
            | fine
            | {"curve_beta": curve},
        )

    def _fine(self, skips: list[float], betas: list[float]) -> Real:
        """The predicted share of independent scores on the theory's own grid (skip, beta, depth)."""
        designs = [[theory.Trainability(self.tokens, depth, skip) for depth in self.depths] for skip in skips]
        return np.array([[[each.distinct_share(beta) for each in row] for beta in betas] for row in designs])

    def _theory_of_key_query(self, betas: Sequence[float]) -> dict[str, Real]:
        """Shares of key-query attention: T tokens, infinitely many, and rows without any overlap but by chance."""
        shape = (len(self.skips), len(betas), len(self.depths))
        found: dict[str, Real] = {name: np.empty(shape) for name in ("paired", "many", "alone")}
        at = list(self.depths)
        for i, j in np.ndindex(shape[:2]):
            design = theory.Trainability(self.tokens, at[-1], self.skips[i], attention="key-query")
            beta, alone = betas[j], [0.0]
            for _ in range(at[-1]):
                rows = design.overlaps(beta, alone[-1])._replace(other=1 / self.tokens)
                alone.append(design.next_similarity(alone[-1], rows))
            found["alone"][i, j] = np.array(alone)[at]
            found["paired"][i, j] = design.similarities(beta)[at]
            found["many"][i, j] = replace(design, rows="limit").similarities(beta)[at]
        return {name: (1 - 1 / self.tokens) * (1 - each) for name, each in found.items()}

    def _key_query(self, skip: float, beta: float, rng: np.random.Generator) -> Real:
        """Distinct shares (depth, draw) of infinitely wide stacks: given the kernel K the scores have covariance K x K.

        *width*, section 3: the kernel after a layer is ``a**2 K + (1 - a**2) A K A'``, with LayerNorm its cosines.
        """
        kernel = np.broadcast_to(np.eye(self.tokens), (self.draws, self.tokens, self.tokens))
        found = []
        for depth in range(1, self.depths[-1] + 1):
            values, vectors = np.linalg.eigh(kernel)
            # the symmetric root does not depend on the signs of eigenvectors, which differ between machines
            root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.swapaxes(1, 2)
            scores = beta * (root @ rng.standard_normal(kernel.shape) @ root.swapaxes(1, 2))
            attention = softmax(scores)
            kernel = skip**2 * kernel + (1 - skip**2) * (attention @ kernel @ attention.swapaxes(1, 2))
            lengths = np.sqrt(np.diagonal(kernel, axis1=1, axis2=2))
            kernel = kernel / (lengths[:, :, None] * lengths[:, None, :])
            if depth in self.depths:
                found.append(1 - kernel.mean(axis=(1, 2)))
        return np.array(found)

    def _theory(self) -> dict[str, Real]:
        """Shares and verdicts over the map; shares of the rivals: wide attention, no gap, no skip connection."""
        wide = [min(np.expm1(beta**2) / self.tokens, 1 - 1 / self.tokens) for beta in self.betas]
        shape = (len(self.skips), len(self.betas), len(self.depths))
        found: dict[str, Real] = {
            name: np.empty(shape) for name in ("predicted", "verdict", "mean_power", "wide", "no_gap", "no_skip")
        }
        for cell in np.ndindex(shape):
            skip, beta, depth = (each[k] for each, k in zip((self.skips, self.betas, self.depths), cell, strict=True))
            design = theory.Trainability(self.tokens, depth, skip)
            apart, common = powers(design, design.passed(beta))
            found["predicted"][cell], found["mean_power"][cell] = design.distinct_share(beta), apart + common
            found["verdict"][cell] = VERDICTS.index(design.verdict(beta))
            apart, common = powers(design, wide[cell[1]])
            found["wide"][cell] = apart / (apart + common)
            found["no_gap"][cell] = theory.Trainability(self.tokens, depth, skip, gap=False).distinct_share(beta)
            found["no_skip"][cell] = theory.Trainability(self.tokens, depth).distinct_share(beta)
        return found

    def _simulate(self, skip: float, beta: float, rng: np.random.Generator) -> tuple[Real, Real, float]:
        """Powers of a token at each depth, what tokens do not share and all; mean entropy of the rows."""
        width = 2 * self.tokens
        stack = AttentionStack(
            self.depths[-1],
            self.tokens,
            width,
            skip=skip,
            # the stack divides it by the width beside a skip connection only
            value_variance=1 - skip**2 if skip else 1 / width,
            variance=np.expm1(beta**2),
        )
        found, entropies = [], []
        for depth, layer in enumerate(stack.layers(rng), start=1):
            weights = layer.attention
            entropies.append(-np.sum(weights * np.log(np.maximum(weights, 1e-300))) / self.tokens)
            if depth in self.depths:
                total = np.sum(layer.signal**2) / self.tokens
                found.append((layer.distinct_share * total, total))
        apart, totals = np.array(found).T
        return apart, totals, float(np.mean(entropies))

    def statements(self, data: xr.Dataset) -> Claims:
        """The share over the map and on both sides of its boundary, key-query attention, and the entropy."""
        # the mean of this is the predicted share exactly, at any size, where that of the ratio of powers is not
        found = data.predicted + (data.apart - data.predicted * data.power) / data.mean_power
        map_of = {name: np.ravel(data[name]) for name in ("predicted", "wide", "no_gap", "no_skip", "verdict")}
        curves = np.stack([np.ravel(found.sel(draw=k)) for k in range(self.draws)])
        text = "distinct share over the map: 0 as predicted, 1 as in the limit of wide attention"
        against = "attention passes on (exp(beta**2) - 1)/T", map_of["wide"]
        yield follows(text, "ours", curves, map_of["predicted"], against)
        sides = ("rank collapse", "without the gap", "no_gap"), ("inside", "without the skip connection", "no_skip")
        for verdict, name, rival in sides:
            here = map_of["verdict"] == VERDICTS.index(verdict)
            if here.any():
                text = f"mean distinct share where the map says {verdict!r}"
                against = f"the share {name}", map_of[rival][here].mean()
                yield Claim(text, "ours", curves[:, here].mean(axis=1), map_of["predicted"][here].mean(), against)
        yield from self._similar(data)
        yield self._entropy(data)

    def _lengths(self, skip: float, beta: float) -> Real:
        """Predicted shares of key-query attention at each depth, with the next order of LayerNorm's lengths."""
        design, path = theory.Trainability(self.tokens, 1, skip, attention="key-query"), [0.0]
        for _ in range(self.depths[-1]):
            path.append(_with_lengths(design, beta, path[-1]))
        return (1 - 1 / self.tokens) * (1 - np.array(path)[list(self.depths)])

    def _similar(self, data: xr.Dataset) -> Claims:
        """Key-query attention with LayerNorm where single scores matter, on the way from the theory to each rival."""
        here = data.where(data.skip >= KEPT, drop=True).where(data.beta >= 1, drop=True)
        if not here.key_query.size:
            return
        curves = np.stack([np.ravel(here.key_query.sel(draw=k)) for k in range(self.draws)])
        paired = np.ravel(here.paired)
        cells = product(here.skip.values.tolist(), here.beta.values.tolist())
        lengths = np.ravel([self._lengths(*cell) for cell in cells])
        for rival, as_of, name in (
            ("many", "for infinitely many tokens", "infinitely many tokens: rows freeze or are uniform"),
            ("alone", "for rows that do not look at the same token", "the participation ratio alone"),
        ):
            yield Claim(
                f"key-query attention with LayerNorm, skip >= {KEPT:g}, beta >= 1: distinct share, 0 as"
                f" predicted, 1 {as_of}",
                "ours",
                share(curves, paired, np.ravel(here[rival])),
                0.0,
                (name, 1.0),
                finite_size=abs(share(np.tile(lengths, (2, 1)), paired, np.ravel(here[rival])).value),
                reason="derived: the next order in fluctuations of tokens' lengths, 3/4 of their relative variance, "
                "which those of the cosines oppose",
            )

    def _entropy(self, data: xr.Dataset) -> Claim:
        limit = np.maximum(np.log(self.tokens) - np.array(self.betas) ** 2 / 2, 0.0)
        curves = data.entropy.mean("skip").transpose("draw", "beta")
        text = "entropy of a row over score scales: 0 as predicted, 1 as in the limit of many tokens"
        place = "ours; laws: random energy model (Derrida 1981)"
        return follows(text, place, curves, data.predicted_entropy, ("log T - beta**2/2", limit))

    def figure(self, data: xr.Dataset) -> Figure:
        depths = data.depth.values.tolist()
        figure, grid = panels(2, len(depths) + 1, width=2.3, height=2.5)
        image: Any = None
        beta, skip = np.meshgrid(data.beta, data.skip)
        look: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis"}
        for axes, depth in zip(grid[0], depths, strict=False):
            one = data.sel(depth=depth)
            image = axes.pcolormesh(
                data.fine_beta, data.fine_skip, one.fine, shading="gouraud", rasterized=True, **look
            )
            found = one.apart.mean("draw") / one.power.mean("draw")
            axes.scatter(beta, skip, c=found, s=18, edgecolors="white", lw=0.6, clip_on=False, zorder=4, **look)
            if float(one.fine.min()) < 0.5 < float(one.fine.max()):
                axes.contour(data.fine_beta, data.fine_skip, one.fine, levels=[0.5], colors="white")
            axes.axvline(float(data.freezing), color=COLOURS[1])
            axes.set(title=f"depth {depth}", xlabel=r"score scale $\beta$")
        grid[0, 0].set_ylabel("weight of the skip connection")
        figure.colorbar(image, ax=grid[0, : len(depths)].tolist(), label="distinct share", shrink=0.9)
        _entropy(grid[0, -1], data, self.tokens)
        for axes, depth in zip(grid[1], depths, strict=False):
            _paired(axes, data.sel(depth=depth), depth)
        grid[1, 0].set_ylabel("distinct share")
        _legend(figure, grid[1, -1], data)
        figure.suptitle(f"{self.tokens} tokens, {data.sizes['draw']} draws at each point", fontsize=8)
        return figure


def powers(design: theory.Trainability, passed: float) -> tuple[float, float]:
    """Expected powers of a token after the last layer if attention with its gap passes on this share of differences."""
    through, apart, common = 1 - design.skip**2, 1 - 1 / design.tokens, 1 / design.tokens
    for _ in range(design.depth):
        common += through * passed * apart / (design.tokens - 1)
        apart *= design.skip**2 + through * passed
    return apart, common


def _with_lengths(design: theory.Trainability, beta: float, similarity: float) -> float:
    """The next cosine with the next order of LayerNorm's lengths: ``E q**(-1/2)`` twice, q of the mean as it is."""
    rows = design.overlaps(beta, similarity)
    power = similarity + (1 - similarity) * rows.same
    part = (1 - design.skip**2) * (1 - similarity) / (design.skip**2 + (1 - design.skip**2) * power)
    variance = participation_variance(beta * max(1 - similarity, 0.0) ** 0.5, design.tokens)
    return min(design.next_similarity(similarity, rows) * (1 + 0.75 * part**2 * variance), 1.0)


def grid_over(points: Sequence[float]) -> list[float]:
    """Evenly spaced values from the least to the largest of the points, for curves of the theory."""
    return np.linspace(min(points), max(points), POINTS).tolist()


def _entropy(axes: Any, data: xr.Dataset, tokens: int) -> None:
    """Mean entropy of a row over score scales."""
    row = data.entropy.mean("skip")
    line(axes, data.fine_beta, data.fine_entropy, label="theory", color=COLOURS[0])
    mean_marks(axes, data.beta, row)
    limit = np.maximum(np.log(tokens) - data.fine_beta**2 / 2, 0.0)
    line(axes, data.fine_beta, limit, label=r"$\log T - \beta^2/2$", color=COLOURS[-1], ls="--")
    axes.axvline(float(data.freezing), color=COLOURS[1])
    axes.set(xlabel=r"score scale $\beta$", ylabel="entropy of a row", ylim=(0, None), title="entropy")
    axes.legend(loc="lower left", frameon=False)


def _paired(axes: Any, one: xr.Dataset, depth: int) -> None:
    """Distinct share of key-query attention over score scales, at one depth: strongest skip connections only."""
    for k, skip in enumerate(one.skip.values[-SHOWN:].tolist()):
        here = one.sel(skip=skip)
        for name, style in (("paired", "-"), ("many", "--"), ("alone", ":")):
            line(axes, one.curve_beta, here[f"{name}_curve"], color=COLOURS[k], ls=style)
        mean_marks(axes, one.beta, here.key_query, color=COLOURS[k])
    axes.set(title=f"key-query, depth {depth}", xlabel=r"score scale $\beta$", ylim=(-0.03, 1.03))


def _legend(figure: Figure, axes: Any, data: xr.Dataset) -> None:
    """Names of what the maps show below the figure; those of key-query attention in the empty panel."""
    edge: Any = {"markersize": 4, "color": "none", "marker": "o", "markerfacecolor": "#21918c"}
    stroke = [Stroke(linewidth=2.3, foreground="0.5"), Normal()]
    handles = [
        Line2D([], [], label="predicted share 1/2", color="white", path_effects=stroke),
        Line2D([], [], label=r"freezing, $\beta = \sqrt{2\log T}$", color=COLOURS[1]),
        Line2D([], [], label="simulation (colour of the disc)", markeredgecolor="0.5", **edge),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    skips = data.skip.values[-SHOWN:].tolist()
    names = [Line2D([], [], label=f"skip {skip:g}", color=COLOURS[k]) for k, skip in enumerate(skips)]
    styles = {"-": "theory, T tokens", "--": "many tokens", ":": "rows without overlap"}
    names += [Line2D([], [], label=name, color="0.3", ls=style) for style, name in styles.items()]
    axes.axis("off")
    axes.legend(handles=names, loc="center left", frameon=False, title="key-query attention")
