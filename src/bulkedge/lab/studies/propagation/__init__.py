"""What the studies of *propagation* share: the stack without its gap, networks trained at once, and axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, dataset, track
from bulkedge.laws import Law
from bulkedge.laws.attention.finite_head import norm_quadrature
from bulkedge.plots.style import COLOURS, histogram, line, plain_ticks
from bulkedge.propagation.moments import finite_moments
from bulkedge.support.domains import Each, Integers, Interval
from bulkedge.support.threads import one_thread

POSITIVE = "a distance is positive at any size, and zero in the limit alone"
RIGID = (
    "fitted: at 80 to 200 tokens it is 0.55 to 0.83 of an exact zero, a step of the distribution function and three "
    "deviations of the number of values below a point, sqrt(log T)/pi, over T"
)
"""Reason of :func:`rigidity`."""
GAPS = ("kept", "removed")
SYMBOLS = "os^Dvp<>*X"
MANY = (*COLOURS, "0.5", "#8C564B", "#7A9A01")
RIVAL: dict[str, Any] = {"color": COLOURS[-1], "ls": ":", "lw": 1.0}
# domain and words of parameters that several studies declare
RATES = Each(Interval(1e-6, 1)), "learning rates"
REPEATS = Integers(2, 100), "networks of each kind, each with its own inputs"
SAMPLES = Integers(1, 1000), "inputs to be learnt"
STEPS = Integers(10, 10_000), "steps of Adam"
TOKENS = Integers(4, 512), "tokens, and dimensions of each"


class Places(NamedTuple):
    """Where the paper states the mean, the second moment and the law."""

    mean: str
    second: str
    law: str


class Rivals(NamedTuple):
    """Who else could be right: what they are called, for the second moment (up to T = d and beyond) and for the law."""

    second: str
    second_beyond: str
    law: str


def rigidity(tokens: int) -> float:
    """How far from its limit the distribution function of T rigid values is: Kolmogorov distance of one draw.

    The number of singular values of a real matrix below a point has a standard deviation of ``sqrt(log T)/pi`` to
    leading order; its largest deviation along the axis is about three of them. Rows of ``A - uu'`` sum to zero, so that
    one value is zero exactly.
    """
    return (1.5 + 3 * sqrt(log(tokens)) / pi) / tokens


def row_variance(beta: float, tokens: int) -> float:
    """Mean squared norm of a row of ``sqrt(T) (A - uu')`` on as many orthonormal tokens as dimensions, exactly.

    Scores of a row are independent, of the standard deviation that the norm of its query gives them.
    """
    norms, weights = norm_quadrature(tokens, tokens, 16)
    rows = [tokens * softmax_of_gaussians(beta * norm, tokens).participation - 1 for norm in norms.tolist()]
    return float(weights @ rows)


def gap_free_stack(depth: int, tokens: int, ratio: float) -> AttentionStack:
    """A stack without the gap, with values of the variance ``gamma/sigma_A**2`` that keeps squared norms."""
    width = round(tokens / ratio)
    return AttentionStack(depth, tokens, width, gap=False, value_variance=tokens / width, entries="exponential")


def mean_with_gap(stack: AttentionStack) -> float:
    """Expected mean eigenvalue of the kernel if the gap were not removed, over that without the gap."""
    share = (stack.tokens - 1) / (stack.tokens + 1) / stack.tokens
    return 1 + sum(share**k for k in range(stack.depth)) / (stack.tokens * share**stack.depth)


def gap_free_claims(data: xr.Dataset, places: Places, rivals: Rivals, reason: str) -> Claims:
    """Mean of every layer; second moment and law for every ratio and layer."""
    for layer in data.layer.values.tolist():
        one = data.sel(layer=layer)
        place = places.mean
        text = f"layer {int(one.layer)}: {one['mean'].attrs['long_name']} over its expectation, all ratios"
        yield Claim(text, place, one["mean"] / one.expected_mean, 1.0, ("the gap kept", one.with_gap.mean()))
    for ratio, layer in product(data.ratio.values.tolist(), data.layer.values.tolist()):
        yield from _claims(data.sel(ratio=ratio, layer=layer), places, rivals, reason)


def _claims(one: xr.Dataset, places: Places, rivals: Rivals, reason: str) -> Claims:
    where = f"T/d = {float(one.ratio):g}, layer {int(one.layer)}: "
    expected, other = float(one.expected_second), rivals.second if one.ratio <= 1 else rivals.second_beyond
    text = f"{where}second moment, whose limit is {float(one.limit_second):.4g}"
    rival = other, expected * (1 + float(one.rival_spread)) / (1 + float(one.spread))
    yield Claim(text, places.second, one.second, expected, rival)
    yield Claim(
        where + "Kolmogorov distance to the law, at most that of a draw from it",
        places.law,
        one.distance,
        0.0,
        (rivals.law, one.separation),
        finite_size=float(one.floor),
        reason=reason,
        relation="<=",
        one_sided=POSITIVE,
    )


def expectations(stack: AttentionStack, of: str, spread: float) -> dict[str, float]:
    """What theory says of the moments of a gap-free stack, at its size and in the limit."""
    found = finite_moments(stack, of)  # type: ignore[arg-type]
    mean = stack.mean_eigenvalue if of == "kernel" else stack.passed
    return {
        "expected_mean": found.mean,
        "expected_second": found.second,
        "limit_second": mean**2 * (1 + spread),
        "with_gap": mean_with_gap(stack),
    }


def of_layer(  # noqa: PLR0913, PLR0917
    of: str, values: Sequence[Real], distances: list[float], laws: tuple[Law, Law], edges: Real, x: Real, known: Any
) -> xr.Dataset:
    """What is shown of the values of each draw behind a layer: moments, distances, and densities of law and rival."""
    counts = np.sum([np.histogram(each[each > 0], edges)[0] for each in values], axis=0)
    return dataset(
        mean=("draw", [each.mean() for each in values], f"mean {of}"),
        second=("draw", [np.mean(each**2) for each in values], "second moment"),
        distance=("draw", distances, "Kolmogorov distance to the law"),
        simulation=("bin", counts / sum(each.size for each in values) / np.diff(edges)),
        bin_edge=("end", edges),
        x=("point", x),
        theory=("point", laws[0].pdf(x)),
        rival=("point", laws[1].pdf(x)),
        **{name: ((), float(value)) for name, value in known.items()},
    )


class Architecture(NamedTuple):
    """What a network of attention alone, which learns the entrywise Heaviside function, is made of.

    A layer is ``A X W_V W_O`` with trainable ``A`` (or queries and keys), values of a given deviation and outputs that
    start as the identity, optionally beside a skip connection and before a layer normalisation (appendix A.3.1).
    """

    attention: str
    """``"markov"``: softmax of free scores that starts as a random Markov matrix of variance one; ``"identity"``: free
    entries that start as the identity; ``"key-query"``, ``"xavier"``: entries of variance one, or ``1/d``."""
    parts: str = "plain"
    """What stands beside attention: ``"plain"``, ``"LN"``, ``"skip"`` or ``"skip + LN"``."""
    depth: int = 1
    value_std: float = 1.0


def isometric(repeats: int, samples: int, tokens: int, rng: np.random.Generator) -> Real:
    """Orthonormal tokens, as many as they have dimensions."""
    return np.asarray(np.linalg.qr(rng.standard_normal((repeats, samples, tokens, tokens)))[0])


def train(inputs: Real, network: Architecture, rates: tuple[float, ...], steps: int, rng: np.random.Generator) -> Real:
    """Mean squared errors of networks before each step of Adam, and after the last.

    With the gap and without it and with each learning rate, training starts from the same weights. All run at once,
    each with an Adam of its own.
    """
    import torch

    repeats, _, tokens, _ = inputs.shape
    grid = np.meshgrid([0.0, 1 / tokens], rates, indexing="ij")
    mean, rate = (torch.tensor(np.repeat(each, repeats)).float() for each in grid)
    copies = len(mean) // repeats
    drawn = [draw_weights(network, tokens, rng) for _ in range(repeats)]
    # one matrix with a row for each network, so that one Adam serves all
    rows = np.stack([np.concatenate([part.ravel() for part in each.values()]) for each in drawn])
    weights: Any = torch.tensor(np.tile(rows, (copies, 1))).float().requires_grad_()
    shapes = {name: part.shape for name, part in drawn[0].items()}
    start = torch.tensor(np.tile(inputs, (copies, 1, 1, 1))).float()
    target, losses, adam = (start > 0).float(), [], Adam(weights, rate)
    for step in range(steps + 1):
        parts_of = weights.split([int(np.prod(shape)) for shape in shapes.values()], dim=1)
        named = {name: each.unflatten(1, shapes[name]) for name, each in zip(shapes, parts_of, strict=True)}
        outputs = forward(start, named, network.parts, mean.view(-1, 1, 1, 1))
        loss = (outputs - target).square().flatten(1).mean(1)
        losses.append(loss.detach().numpy())
        if step < steps:
            adam.step(torch.autograd.grad(loss.sum(), weights)[0])
    shape = (len(GAPS), len(rates), repeats, steps + 1)
    return np.stack(losses, axis=-1).reshape(shape).astype(float)


def train_all(
    study: Any,
    axes: dict[str, Sequence[Any]],
    network: Callable[..., Architecture],
    rng: np.random.Generator,
    *,
    same: bool,
) -> xr.Dataset:
    """Loss curves of networks of every kind, and losses to compare with; a kind is a place on the axes.

    With ``same`` networks that differ along the last axis only start from the same draws.
    """
    inputs = isometric(study.repeats, study.samples, study.tokens, rng)
    *outer, last = axes.values()
    losses = []
    with one_thread(study.requires):
        for kind in track(list(product(*outer)), "architectures"):
            seed = int(rng.integers(2**63)) if same else None
            for each in last:
                source = rng if seed is None else np.random.default_rng(seed)
                losses.append(train(inputs, network(*kind, each), study.rates, study.steps, source))
    shape = *(len(each) for each in axes.values()), *losses[0].shape
    curves = ((*axes, "gap", "rate", "draw", "step"), np.reshape(losses, shape))
    coords = axes | {"gap": GAPS, "rate": study.rates, "step": np.arange(study.steps + 1)}
    return xr.Dataset(
        {"loss": curves, **reference_losses(inputs)}, coords={name: list(each) for name, each in coords.items()}
    )


def reference_losses(inputs: Real) -> dict[str, Any]:
    """Losses of two networks that learn nothing: one that puts out zero, and the best whose tokens are all the same."""
    target = inputs > 0
    return {
        "zero": ("draw", target.mean(axis=(1, 2, 3)), {"long_name": "loss of an output of zero"}),
        "collapsed": (
            "draw",
            target.var(axis=2).mean(axis=(1, 2)),
            {"long_name": "least loss of outputs whose tokens are all the same"},
        ),
    }


def best(data: xr.Dataset) -> xr.DataArray:
    """Loss curves at the learning rate with the best mean of last losses; one that diverged is not the best."""
    last = data.loss.isel(step=-1, drop=True).mean("draw", skipna=False)
    return data.loss.isel(rate=last.fillna(np.inf).argmin("rate"))


def log_ratio(over: xr.DataArray, under: xr.DataArray) -> Estimate:
    """Mean logarithm of a ratio of losses, a draw at a time, with its standard error."""
    return Estimate.of(np.log(over.values / under.values))


class Adam:
    """Adam on the rows of a matrix, each with a learning rate of its own, which torch's has not."""

    def __init__(self, weights: Any, rates: Any) -> None:
        self.weights, self.rates, self.count = weights, rates[:, None], 0
        self.first = self.second = 0 * weights.detach()

    def step(self, gradient: Any, decay: tuple[float, float] = (0.9, 0.999), floor: float = 1e-8) -> None:
        """Change the weights by one step of Adam along a gradient."""
        self.count += 1
        self.first = self.first.lerp(gradient, 1 - decay[0])
        self.second = self.second.lerp(gradient.square(), 1 - decay[1])
        size = (self.second / (1 - decay[1] ** self.count)).sqrt() + floor
        self.weights.data -= self.rates / (1 - decay[0] ** self.count) * self.first / size


def draw_weights(network: Architecture, width: int, rng: np.random.Generator) -> dict[str, Real]:
    """Initial weights of a network."""
    shape = (network.depth, width, width)
    unit = np.broadcast_to(np.eye(width), shape)
    drawn: dict[str, Any] = {"values": network.value_std * rng.standard_normal(shape), "outputs": unit}
    if network.attention == "identity":
        drawn |= {"matrix": unit}
    elif network.attention == "markov":  # lognormal entries of variance one
        drawn |= {"scores": np.sqrt(np.log(2)) * rng.standard_normal(shape)}
    else:
        scale = width**-0.5 if network.attention == "xavier" else 1.0
        drawn |= {name: scale * rng.standard_normal(shape) for name in ("queries", "keys")}
    if "LN" in network.parts:
        drawn |= {"gain": np.ones(shape[:2]), "bias": np.zeros(shape[:2])}
    return drawn


def forward(start: Any, weights: dict[str, Any], parts: str, mean: Any) -> Any:
    """Outputs of all networks for their inputs."""
    from torch.nn.functional import layer_norm

    signal = start
    for layer in range(weights["values"].shape[1]):
        # networks along the first dimension, inputs along the second
        here = {name: each[:, None, layer] for name, each in weights.items()}
        if "matrix" in here:
            matrix = here["matrix"]
        elif "scores" in here:
            matrix = here["scores"].softmax(-1)
        else:
            queries, keys = signal @ here["queries"], signal @ here["keys"]
            matrix = (queries @ keys.mT / start.shape[-1] ** 0.5).softmax(-1)
        branch = (matrix - mean) @ signal @ (here["values"] @ here["outputs"])
        signal = signal + branch if "skip" in parts else branch
        if "LN" in parts:
            signal = here["gain"][..., None, :] * layer_norm(signal, signal.shape[-1:]) + here["bias"][..., None, :]
    return signal


def loss_curve(axes: Any, one: xr.DataArray, label: str, **look: Any) -> None:
    """Mean over the networks, and the band from the least to the largest of them."""
    axes.fill_between(one.step, one.min("draw"), one.max("draw"), color=look["color"], alpha=0.2, lw=0)
    line(axes, one.step, one.mean("draw"), label=label, **look)


def finish_losses(figure: Figure, grid: Any, data: xr.Dataset, study: Any, rows: Sequence[xr.DataArray]) -> None:
    """The same logarithmic scale along each row, labels at the edge of the grid, one legend, and the sizes."""
    equal: Any = {"color": COLOURS[-1], "ls": ":", "lw": 0.9, "label": "least loss of equal tokens"}
    for row, curves in zip(grid, rows, strict=True):
        low, high = float(curves.min()), float(curves.max())
        for axes in row:
            axes.axhline(float(data.collapsed.mean()), **equal)
            axes.set(yscale="log", ylim=(0.8 * low, 1.2 * high))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0,), numticks=12))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.tick_params(labelleft=axes is row[0], labelbottom=False)
        row[0].set_ylabel("loss")
    for axes in grid[-1]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    sizes = f"{study.tokens} tokens and dimensions, {study.samples} inputs"
    figure.suptitle(f"{sizes}; mean and range of {data.sizes['draw']} networks at the best learning rate", fontsize=8)


def decades(axes: Axes) -> None:
    """A logarithmic vertical axis, labelled at decades only."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())


def sizes_axis(axes: Axes, sizes: Any, label: str = "tokens T") -> None:
    """A logarithmic horizontal axis with a tick at each size that was simulated."""
    axes.set_xscale("log")
    plain_ticks(axes.xaxis, sizes)
    axes.set_xlabel(label)


def integers(axes: Axes, label: str) -> None:
    """A horizontal axis of integers, as layers are."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)


def densities(grid: Any, data: xr.Dataset, label: str, rival: str) -> None:
    """Histograms and laws with a logarithmic axis: densities span decades between a hard edge and a soft one."""
    for row, ratio in zip(grid, data.ratio.values.tolist(), strict=True):
        for axes, layer in zip(row, data.layer.values.tolist(), strict=False):
            one = data.sel(ratio=ratio, layer=layer)
            low = 0.5 * float(one.simulation.values[one.simulation.values > 0].min())
            histogram(axes, one.bin_edge, np.maximum(one.simulation, low), baseline=low)
            for density, look in ((one.rival, {"label": rival} | RIVAL), (one.theory, {"label": "law"})):
                shown = density.values > low
                line(axes, one.x.values[shown], density.values[shown], **look)
            decades(axes)
            axes.set(title=f"T/d = {ratio:g}, ℓ = {layer}", ylim=(low, None))
        row[0].set_ylabel("density")
    for axes in grid[-1]:
        axes.set_xlabel(label)
    grid[0, 0].legend(loc="upper right")
