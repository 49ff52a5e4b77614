"""Page and figure of :mod:`benchmarks.trainability_gpu`, from its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.harness import Table, seconds
from benchmarks.trainability_gpu import KINDS, TITLE
from benchmarks.trainability_gpu import __doc__ as about_study

HEADINGS = ["arm", "cosine", "gradient", "rate", "final loss", "by seed", "a step alone"]
BASE, CHANGED = "gap kept", "gap removed"
LOOKS = {
    "gap kept": ("#000000", "-"),
    "gap removed": ("#D55E00", "-"),
    "gap removed, rows to size": ("#E69F00", "--"),
    "shaped": ("#0072B2", "-"),
    "value skip": ("#56B4E9", "--"),
    "norm, gap kept": ("#009E73", "-"),
    "norm, gap removed": ("#CC79A7", "--"),
    "gap kept, small branches": ("#0072B2", "-"),
    "gap removed, small branches": ("#56B4E9", "--"),
    "gap kept, own scales": ("#009E73", "-"),
    "gap removed, own scales": ("#CC79A7", "--"),
}
"""Colours of Okabe and Ito, and dashes, so that neither alone has to be told."""


def groups(numbers: dict[str, Any]) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Kind, depth, and its runs."""
    order = list(LOOKS)
    for kind, depth in dict.fromkeys((run["kind"], run["depth"]) for run in numbers["runs"]):
        runs = [run for run in numbers["runs"] if (run["kind"], run["depth"]) == (kind, depth)]
        yield kind, depth, sorted(runs, key=lambda run: order.index(run["arm"]))


def trained(run: dict[str, Any]) -> bool:
    """Whether all of its seeds ended with a loss that is a number."""
    return "final" in run and all(each is not None for each in run["final"])


def curve(run: dict[str, Any]) -> tuple[Any, Any]:
    """Steps (point) and losses (point, seed), nan where a loss was no number."""
    steps = np.array([each[0] for each in run["curve"]], dtype=float)
    return steps, np.array([[math.nan if loss is None else loss for loss in each[1]] for each in run["curve"]])


def loss_after(run: dict[str, Any], time: float) -> float:
    """Mean over seeds of the loss when the arm, alone on the device, has trained for so many seconds."""
    steps, losses = curve(run)
    return float(np.interp(time / run["step_seconds"], steps, losses.mean(axis=1)))


def spread(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{mean(values):.3f} ± {stdev(values) / math.sqrt(len(values)):.3f}"


def average(values: list[float | None]) -> str:
    """Mean of what was measured at the start, over seeds."""
    if any(each is None for each in values):
        return "no number"
    return f"{mean(each for each in values if each is not None):.2g}"


def table(kind: str, depth: int, runs: list[dict[str, Any]]) -> Table:
    """Losses of all arms of one kind and depth."""
    done = [run for run in runs if "curve" in run]
    time = min((run["step_seconds"] * run["steps"] for run in done), default=0.0)
    result = Table(
        f"{kind.capitalize()}, {depth} layers",
        [
            "arm",
            "cosine",
            "gradient",
            "rate",
            "final loss",
            "by seed",
            "a step alone",
            f"loss after {seconds(time)} alone",
        ],
        f"{KINDS[kind][0].upper()}{KINDS[kind][1:]}.",
    )
    for run in runs:
        if "curve" not in run:
            result.add(run["arm"], "", "", "", run["problem"], "", seconds(run["step_seconds"]), "")
            continue
        losses = ", ".join("no number" if each is None else f"{each:.3f}" for each in run["final"])
        final = spread(run["final"]) if trained(run) else "diverged"
        after = loss_after(run, time)
        begun = [average(run[name]) for name in ("cosine", "gradient")]
        alone, later = seconds(run["step_seconds"]), "–" if math.isnan(after) else f"{after:.3f}"
        result.add(run["arm"], *begun, f"{run['rate']:g}", final, losses, alone, later)
    return result


def difference(runs: list[dict[str, Any]], one: str, other: str) -> tuple[float, float] | None:
    """Final loss of one arm less that of another, over seeds they share, and its standard error."""
    found = {run["arm"]: run["final"] for run in runs if trained(run)}
    if one not in found or other not in found:
        return None
    apart = [first - second for first, second in zip(found[one], found[other], strict=True)]
    return mean(apart), stdev(apart) / math.sqrt(len(apart))


def verdicts(numbers: dict[str, Any]) -> list[str]:
    """A sentence for each kind and depth: what removing the gap did, and which arm was best."""
    said = []
    for kind, depth, runs in groups(numbers):
        losses = {run["arm"]: mean(run["final"]) for run in runs if trained(run)}
        found = difference(runs, CHANGED, BASE)
        if found is None:
            ended = [name for name in (BASE, CHANGED) if name not in losses]
            text = f"no comparison, because not every seed of {' and '.join(ended)} ended with a number"
        else:
            gain, error = found
            verdict = "lower" if gain < -2 * error else "higher" if gain > 2 * error else "undecided"
            text = f"without the gap {gain:+.3f} ± {error:.3f} nats a letter ({verdict})"
        best = min(losses, key=lambda name: losses[name], default=None)
        ending = f"; the best arm is *{best}* with {losses[best]:.3f}" if best else ""
        said.append(f"* {kind}, {depth} layers: {text}{ending}.")
    return said


def page(numbers: dict[str, Any]) -> str:
    """Markdown of the numbers."""
    size, levels = numbers["size"], numbers["levels"]
    about = (
        f"Measured on one {numbers['device']}, torch {numbers['torch']}, on {numbers['date']}: width {size['width']}, "
        f"{size['heads']} heads, context {size['context']}, {size['batch']} sequences a step, {numbers['steps']} steps "
        f"({numbers['steps'] * size['batch'] * size['context'] / 1e6:.2g} million letters) of each of seeds "
        f"{', '.join(map(str, numbers['seeds']))}; rates from {', '.join(f'{each:g}' for each in numbers['rates'])} "
        f"by {numbers['grid_steps']} steps of seed {numbers['grid_seed']}; {numbers['seconds']:.0f} seconds in all."
    )
    known = ", ".join(f"{value:.3f} ({name})" for name, value in levels.items())
    at = [sum(run.get("rate") == end(numbers["rates"]) for run in numbers["runs"]) for end in (min, max)]
    at_edge = (
        f"The best rate was the smallest of the grid in {at[0]} arms of {len(numbers['runs'])}, the largest in {at[1]}."
    )
    parts = [
        f"# {TITLE}", (about_study or "").strip(), about,
        f"Losses in nats a letter. To compare with: {known}; the last is a bound: repetition has to be noticed.",
        "![Loss against letters and against time](../images/trainability_gpu.png)",
        "The arm *gap removed* less *gap kept*, with the standard error over seeds; decided from two of them on:",
        "\n".join(verdicts(numbers)), at_edge,
        "At the start: *cosine*, the mean over pairs of tokens after the last layer; *gradient*, its norm.",
        *(table(*group).markdown() for group in groups(numbers)),
    ]  # fmt: skip
    return "\n\n".join(each.strip() for each in parts if each) + "\n"


def figure(numbers: dict[str, Any]) -> Any:
    """Loss against letters, and below it against time alone on the device; a column for each kind, two rows a depth."""
    from bulkedge.plots.style import panels, styled

    found = list(groups(numbers))
    kinds, depths = (list(dict.fromkeys(group[k] for group in found)) for k in (0, 1))
    a_step = numbers["size"]["batch"] * numbers["size"]["context"] / 1e6
    with styled():
        drawn, axes = panels(2 * len(depths), len(kinds), height=2.3)
        for kind, depth, runs in found:
            column, row = kinds.index(kind), 2 * depths.index(depth)
            for lower, (unit, label) in enumerate(((a_step, "million letters"), (None, "seconds alone on the device"))):
                axis = axes[row + lower, column]
                for run in runs:
                    if "curve" in run:
                        _draw(axis, run, unit or run["step_seconds"])
                _levels(axis, numbers["levels"], found)
                axis.set(xlabel=label, ylabel="" if column else "nats a letter")
                axis.set_title("" if lower else f"{kind}, {depth} layers")
        for column in range(len(kinds)):
            # below the last panel of its column, where no curve is
            axes[-1, column].legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), fontsize=7, frameon=False)
    return drawn


def _draw(axis: Any, run: dict[str, Any], unit: float) -> None:
    """Median over seeds, and each seed as a thin line: one that diverges hides no other."""
    colour, dashes = LOOKS[run["arm"]]
    steps, losses = curve(run)
    axis.plot(unit * steps, np.median(losses, axis=1), dashes, color=colour, label=run["arm"], linewidth=1.3)
    axis.plot(unit * steps, losses, color=colour, alpha=0.3, linewidth=0.5)


def _levels(axis: Any, levels: dict[str, float], found: list[Any]) -> None:
    """Known losses as dotted lines, and one range for all panels: from below the lowest curve to a blind guess."""
    lowest = min(float(np.nanmin(curve(run)[1])) for _, _, runs in found for run in runs if "curve" in run)
    top = levels["uniform"]
    axis.set_ylim(lowest - 0.08 * (top - lowest), top + 0.08 * (top - lowest))
    for name, value in levels.items():
        if name != "uniform" and value >= lowest:
            axis.axhline(value, color="0.5", linewidth=0.7, linestyle=":", zorder=1)
            axis.annotate(
                name, (1, value), xycoords=("axes fraction", "data"), ha="right", va="top", fontsize=6, color="0.35"
            )
