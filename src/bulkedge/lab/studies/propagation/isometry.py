"""*propagation*, section 2.3: skip connections make dynamical isometry reachable, at any depth (ours)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, mean_marks, track
from bulkedge.laws import FreeLogNormal, MarchenkoPastur
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.propagation.skips import SkipIsometry, skip_isometry
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.visibility import Mask

BINS, PROBES = 40, 2
KINDS = {
    "attention": "attention",
    "causal": "causal attention with rows of equal power",
    "norm": "LayerNorm before each branch",
    "feed-forward": "attention and ReLU feed-forward layers in turn",
}
Map = Callable[[Real], Real]


class LinearLayer(NamedTuple):
    """The Jacobian of a layer, applied to a signal of tokens and features, and its transpose."""

    forward: Map
    backward: Map


@dataclass(frozen=True)
class PropagationIsometry(Study):
    """With skip connections and branches of total power c, the squared singular values have the variance 2c.

    That holds at any depth, where without skips it is ``l (l + 2)``. Their law is free log-normal. Causal attention
    adds what tokens that many others see are amplified by, LayerNorm in front of the branches makes the power its
    logarithm, and feed-forward layers add their own power. Moments are those of random probes; sizes are extrapolated.
    """

    tokens: int = parameter(Integers(8, 512), "tokens and dimensions, and twice as many", 32, ours=64)
    depths: tuple[int, ...] = parameter(Each(Integers(2, 512)), "numbers of layers", (4, 16, 32), ours=(4, 16, 64, 128))
    branches: float = parameter(Interval(0.1, 2), "power c of all branches", 1.0, ours=1.0)
    draws: int = parameter(Integers(4, 1000), "draws of each", 60, ours=100)
    dense: int = parameter(Integers(6, 40), "tokens and dimensions of whole spectra", 16, ours=28)
    small = {"tokens": 12, "depths": (4, 24), "draws": 60, "dense": 10}
    caption = """Squared singular values of the Jacobian of a stack with skip connections with their law
    (left), and their variance over depth (right). Points should stay on the lines, far below the dotted growth without
    skips."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Moments over depth for attention, at the largest depth for the other kinds, and whole spectra."""
        deepest = max(self.depths)
        cases = [("attention", depth) for depth in self.depths] + [(kind, deepest) for kind in [*KINDS][1:]]
        found = [self._extrapolated(kind, depth, rng) for kind, depth in track(cases, "stacks")]
        theory = [self.theory(kind, depth, 2 * self.tokens) for kind, depth in cases]
        edges = FreeLogNormal(2 * self.branches).edge * np.linspace(0, 1.2, BINS + 1) ** 2
        model, spectra = skip_isometry(deepest, self.branches), []
        for _ in range(min(self.draws, 12)):
            values = np.sort(np.linalg.svd(jacobian(model, self.dense, rng), compute_uv=False) ** 2)
            spectra.append(np.searchsorted(values, edges) / len(values))
        return dataset(
            moment=(("case", "draw", "order"), np.array(found), "moment at mean one"),
            variance=("case", [each.variance for each in theory], "variance at this depth"),
            limit=("case", [each.limit for each in theory], "variance for infinitely many layers"),
            mass=(("draw_dense", "end"), spectra, "distribution function"),
            law=("end", FreeLogNormal(2 * self.branches).cdf(edges)),
            rival=("end", MarchenkoPastur(2 * self.branches).cdf(edges), "one factor of the same variance"),
            coords={
                "kind": ("case", [kind for kind, _ in cases]), "depth": ("case", [depth for _, depth in cases]),
                "order": [1, 2, 3], "end": edges,
            },
        )  # fmt: skip

    def theory(self, kind: str, depth: int, tokens: int) -> SkipIsometry:
        """What is predicted of a kind of stack."""
        mask = Mask.causal(tokens) if kind == "causal" else None
        return skip_isometry(depth, self.branches, mask, norm="first" if kind == "norm" else "none")

    def _extrapolated(self, kind: str, depth: int, rng: np.random.Generator) -> Real:
        """Moments of each draw, minus what theory has for so many tokens, extrapolated in 1/T."""
        pair = []
        for tokens in (self.tokens, 2 * self.tokens):
            moments = np.array([self._moments(kind, depth, tokens, rng) for _ in range(self.draws)])
            pair.append((moments, self.theory(kind, depth, tokens).variance))
        (narrow, before), (wide, after) = pair
        shift = np.array([0.0, after - before, 0.0])  # of the second moment: the mask knows its number of tokens
        return np.asarray(2 * wide - narrow - shift)

    def _moments(self, kind: str, depth: int, tokens: int, rng: np.random.Generator) -> Real:
        """``tr M**k/n`` for k = 1, 2, 3, ``M = J J'``, over the k-th power of the expected mean."""
        layers = list(stack_of(kind, skip_isometry(depth, self.branches), tokens, rng))
        mean = 1 + self.branches if kind == "norm" else 1.0
        probe: Real = rng.standard_normal((PROBES, tokens, tokens))
        moments = []
        for order in (1, 2, 3):
            for step in (
                [each.backward for each in reversed(layers)] if order % 2 else [each.forward for each in layers]
            ):
                probe = step(probe)
            moments.append(np.mean(probe**2) / mean**order)
        return np.array(moments)

    def statements(self, data: xr.Dataset) -> Claims:
        """Means, variances at each depth and of each kind, the third moment and the law."""
        for case in range(data.sizes["case"]):
            one = data.isel(case=case)
            kind, depth, place = str(one.kind.values), int(one.depth), "propagation: Section 2.3"
            where = f"{KINDS[kind]}, {depth} layers: "
            mean, second = (one.moment.sel(order=order) for order in (1, 2))
            rival = f"no skips: l (l + 2) at l = {depth}", depth * (depth + 2.0)
            if kind in ("causal", "norm"):
                rival = "the same as without: 2c", 2 * self.branches
            text = where + "variance of the squared singular values at mean one"
            yield Claim(text, place, second - 2 * mean + 1, one.variance, rival)
        last = data.isel(case=len(self.depths) - 1)
        v, limit = float(last.variance), 2 * self.branches
        text = f"attention, {int(last.depth)} layers: third moment of the free log-normal law"
        third, late = (1 + 3 * each + 1.5 * each**2 for each in (v, limit))
        rival = "one factor of that variance, Marchenko-Pastur", 1 + 3 * limit + limit**2
        reason = "derived: the next order in 1/L, by what it adds to the variance"
        yield Claim(text, "ours", last.moment.sel(order=3), third, rival, third - late, reason)
        text = "share of the Marchenko-Pastur law of that variance in the distribution function"
        reason = "derived: one direction of T has no branch, so that one value in T is at most a quarter of it off"
        mass, rival = data.mass.rename(draw_dense="draw"), ("Marchenko-Pastur", data.rival)
        yield follows(text, "ours", mass, data.law, rival, 1 / (4 * self.dense), reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        histogram(left, data.end, np.diff(data.mass.mean("draw_dense")) / np.diff(data.end))
        x = np.linspace(*FreeLogNormal(2 * self.branches).support[0], 300)[1:-1]
        line(left, x, FreeLogNormal(2 * self.branches).pdf(x), label="free log-normal")
        line(left, x, MarchenkoPastur(2 * self.branches).pdf(x), label="Marchenko–Pastur", **setting.RIVAL)
        left.set(xlabel="squared singular value", ylabel="density", ylim=(0, 1.5), xlim=(0, float(x[-1]) * 1.1))
        left.legend(loc="upper right")
        depth = np.arange(2, max(self.depths) + 1)
        line(right, depth, [skip_isometry(int(each), self.branches).variance for each in depth], label="theory")
        line(right, depth, depth * (depth + 2.0), label="without skips", **setting.RIVAL)
        moments = data.moment.sel(order=2) - 2 * data.moment.sel(order=1) + 1
        for number, kind in enumerate(KINDS):
            mine = data.kind == kind
            look = {"color": COLOURS[number], "fmt": setting.SYMBOLS[number], "label": kind}
            mean_marks(right, data.depth[mine] * (1 + 0.05 * number), moments[mine], **look)
            right.scatter(
                data.depth[mine] * (1 + 0.05 * number), data.variance[mine], marker="_", color=COLOURS[number]
            )
        right.set(xscale="log", yscale="log", xlabel="layers", ylabel="variance at mean one")
        right.set_ylim(0.5, 2 * max(self.depths) ** 2)
        right.legend(loc="upper left", ncols=2)
        sizes = f"tokens and dimensions: {self.dense} (left), {self.tokens} and {2 * self.tokens} (right)"
        figure.suptitle(f"c = {self.branches:g}; {sizes}; {self.draws} draws", fontsize=8)
        return figure


def jacobian(model: SkipIsometry, tokens: int, rng: np.random.Generator) -> Real:
    """The whole Jacobian of a stack with Markov attention without its gap, as many dimensions as tokens."""
    stack = model.stack(tokens, tokens)
    found = np.eye(tokens**2)
    for layer in stack.layers(rng):
        signal = found.reshape(tokens, tokens, -1)
        mixed = np.tensordot(layer.attention, signal, (1, 0))
        branch = np.tensordot(layer.weights.values.T, mixed, (1, 1)).swapaxes(0, 1)
        found = (stack.skip * signal + branch).reshape(tokens**2, -1)
    return found


def stack_of(kind: str, model: SkipIsometry, tokens: int, rng: np.random.Generator) -> list[LinearLayer]:
    """Layers of a stack of that kind at a random input, as linear maps of (..., tokens, dimensions)."""
    signal: Real = rng.standard_normal((tokens, tokens))
    layers = []
    for number in range(model.depth):
        if kind == "feed-forward" and number % 2:
            layers.append(_feed_forward(signal, model.share, rng))
        else:
            attention = rng.standard_normal((tokens, tokens)) / tokens**0.5
            if kind == "causal":
                attention = np.tril(attention) * (tokens / np.arange(1, tokens + 1)[:, None]) ** 0.5
            values = rng.standard_normal((tokens, tokens)) * (model.share / tokens) ** 0.5
            if kind == "norm":
                layers.append(_norm_first(signal, attention, values))
                signal = signal + attention @ _normalised(signal) @ values
                continue
            layers.append(_linear(model, attention, values))
        signal = layers[-1].forward(signal)  # the layer is homogeneous: its Jacobian maps its input to its output
    return layers


def _normalised(signal: Real) -> Real:
    return np.asarray(signal / np.sqrt(np.mean(signal**2, axis=1, keepdims=True)))


def _norm_first(signal: Real, attention: Real, values: Real) -> LinearLayer:
    unit = _normalised(signal) / signal.shape[1] ** 0.5
    size = np.sqrt(np.mean(signal**2, axis=1, keepdims=True))

    def slope(x: Real) -> Real:
        return np.asarray((x - unit * np.sum(unit * x, axis=-1, keepdims=True)) / size)

    return LinearLayer(lambda x: x + attention @ slope(x) @ values, lambda x: x + slope(attention.T @ x @ values.T))


def _linear(model: SkipIsometry, attention: Real, values: Real) -> LinearLayer:
    return LinearLayer(
        lambda x: model.skip * x + attention @ x @ values, lambda x: model.skip * x + attention.T @ x @ values.T
    )


def _feed_forward(signal: Real, share: float, rng: np.random.Generator) -> LinearLayer:
    width = signal.shape[1]
    first = rng.standard_normal((width, 4 * width)) / width**0.5
    second = rng.standard_normal((4 * width, width)) * (2 * share / (4 * width)) ** 0.5
    active, skip = signal @ first > 0, (1 - share) ** 0.5
    return LinearLayer(
        lambda x: skip * x + ((x @ first) * active) @ second, lambda x: skip * x + ((x @ second.T) * active) @ first.T
    )
