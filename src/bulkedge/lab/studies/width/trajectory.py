"""Training for many steps at infinite width (the paper's third open question)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, track
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs.training import Training, train
from bulkedge.support.domains import Each, Integers, Interval, parameter

PLACE = "width: Open question 3"
SETUPS = {
    "squared": Training(rate=0.7),
    "momentum": Training(rate=0.4, momentum=0.5),
    "cross-entropy": Training(loss="cross-entropy", rate=1.5),
    "Adam": Training(heads=2, optimizer="adam", rate=0.2, momentum=0.8),
}
"""How layers are trained; heads and learning rates are ours."""
NUMBERS, CLASSES = (1.0, -1.0, 0.5), (0, 1, 1)
"""What the examples are to be mapped to."""
STILL = "queries and keys that stay as they were drawn"


@dataclass(frozen=True)
class WidthTrajectory(Study):
    """Scores and reads of an infinitely wide layer follow a closed recursion through all of training.

    Layers of finite width learn three examples by gradient descent, with momentum, with the cross-entropy and with
    Adam (a second moment for each tensor); loss and entropy of attention at each step are those of the recursion,
    extrapolated in 1/n.
    """

    examples: ClassVar = len(NUMBERS)
    tokens: int = parameter(Integers(2, 16), "tokens of an example", 3, ours=3)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 2.0, ours=2.0)
    steps: int = parameter(Integers(2, 1000), "steps", 8, ours=30)
    shown: tuple[int, ...] = parameter(Each(Integers(1, 1000)), "steps of the claims", (1, 2, 8), ours=(1, 2, 3, 30))
    width: int = parameter(*setting.WIDTH, 32, ours=64)
    draws: int = parameter(Integers(100, 10**6), "draws at each width", 3000, ours=8000)
    spread: float = parameter(Interval(0, 1), "weight of what tokens do not share", 0.8, ours=0.8)
    small = {"draws": 800, "width": 10, "steps": 5, "shown": (5,)}
    caption = """Loss (above) and entropy of attention (below) over steps of training, for four ways to train.
    Extrapolated points should lie on the lines of the limit and leave the dotted ones, where queries and keys stay."""

    @property
    def inputs(self) -> Real:
        """Unit tokens, the same at every width: orthogonal ones plus one that all share."""
        count = self.examples * self.tokens
        own = np.eye(count + 1)[:count] * self.spread**0.5
        own[:, -1] = (1 - self.spread) ** 0.5
        return own.reshape(self.examples, self.tokens, -1)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every way to train at two widths, in the limit, and in the limit with frozen attention."""
        parts = []
        for setup in track(list(SETUPS.values()), "setups"):
            setup = replace(setup, score_variance=self.score_variance, steps=self.steps)  # noqa: PLW2901
            goal = CLASSES if setup.loss == "cross-entropy" else NUMBERS
            narrow, wide = (
                train(self.inputs, goal, setup, rng, self.draws, width=n) for n in (self.width, 2 * self.width)
            )
            limit = train(self.inputs, goal, setup, rng, 10 * self.draws)
            still = train(self.inputs, goal, replace(setup, frozen=True), rng, 10 * self.draws)
            variables: dict[str, Any] = {}
            for name in ("loss", "entropy"):
                ends, at, frozen = (
                    2 * getattr(wide, name) - getattr(narrow, name),
                    getattr(limit, name),
                    getattr(still, name),
                )
                error = at.std(axis=0, ddof=1) / len(at) ** 0.5
                variables[name] = (("draw", "step"), ends, f"{name}, extrapolated in 1/n")
                variables[f"limit_{name}"] = (("statistic", "step"), [at.mean(axis=0), error])
                shift = getattr(narrow, name).mean(axis=0) - getattr(wide, name).mean(axis=0)
                variables[f"shift_{name}"] = ("step", shift, "what half the width changes")
                variables[f"still_{name}"] = ("step", frozen.mean(axis=0))
            parts.append(dataset(**variables, coords={"statistic": list(setting.STATISTIC)}))
        found = xr.concat(parts, dim=xr.Variable("setup", list(SETUPS)))
        return found.assign_coords(step=np.arange(self.steps + 1))

    def statements(self, data: xr.Dataset) -> Claims:
        """The loss at some steps, the whole curve, and the entropy at the end."""
        for setup in data.setup.values.tolist():
            one = data.sel(setup=setup)
            for step in self.shown:
                at = one.sel(step=step)
                theory = setting.from_pair(at.limit_loss, 10 * self.draws - 1)
                text = f"{setup}: loss after {step} step{'s' * (step > 1)}, extrapolated in 1/n"
                # with a mean of c exp(x), x = 2 shift/c of order 1/n, the extrapolation misses by c x**2/4
                order = float(at.shift_loss) ** 2 / theory.value
                reason = "shown: the next order, the square of what half the width changes over the loss"
                yield Claim(text, PLACE, at.loss, theory, (STILL, at.still_loss), order, reason)
            text = f"{setup}: share of that curve in the loss of all steps"
            curves = (one.loss[:, 1:], one.limit_loss.sel(statistic="value")[1:], one.still_loss[1:])
            yield follows(text, PLACE, curves[0], curves[1], (STILL, curves[2]))
            last = one.isel(step=-1)
            theory = setting.from_pair(last.limit_entropy, 10 * self.draws - 1)
            text = f"{setup}: entropy of attention after {self.steps} steps, extrapolated in 1/n"
            yield Claim(text, PLACE, last.entropy, theory, (STILL, last.still_entropy))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(2, data.sizes["setup"], width=2.2, height=1.8)
        for column, setup in zip(grid.T, data.setup.values.tolist(), strict=True):
            for axes, name in zip(column, ("loss", "entropy"), strict=True):
                one = data.sel(setup=setup)
                value, error = one[name].mean("draw"), one[name].std("draw", ddof=1) / data.sizes["draw"] ** 0.5
                line(axes, data.step, one[f"limit_{name}"].sel(statistic="value"), label="limit")
                line(axes, data.step, one[f"still_{name}"], label="queries and keys stay", **setting.RIVAL)
                marks(axes, data.step, value, error, label="extrapolated", ms=2.5, color=COLOURS[0])
            column[0].set(title=setup, yscale="log")
            column[1].set_xlabel("step")
        for axes, name in zip(grid[:, 0], ("loss", "entropy in nats"), strict=True):
            axes.set_ylabel(name)
        grid[0, 0].legend(loc="lower left")
        setting.sizes_title(figure, self, "score_variance", n=f"{self.width} and {2 * self.width}")
        return figure
