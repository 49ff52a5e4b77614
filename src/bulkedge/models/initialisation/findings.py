"""The columns of a report, and what they warn of: each warning with the change that mends it and what follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bulkedge.models.initialisation.blueprint import Blueprint
from bulkedge.models.initialisation.recursion import recursion
from bulkedge.support.arrays import Real

LONGER = 8  # how many times as many tokens are asked about
COLLAPSED = 0.95  # mean cosine of tokens from which on they are one
STEEP = 100.0  # ratio of scaled gradients between layers that is worth a warning
FLAT = 0.25  # score scale below which rows are called uniform
FIRST_CHANGE = 0.3  # that change, from where a warm-up is told to start
LARGE_STEP = 1.0  # relative change of the scores in the first step that is worth a warning
COLUMNS = {
    "beta": "standard deviation of a row's scores, after a soft cap",
    "entropy": "mean entropy of a row of attention, nats",
    "largest": "mean largest weight of a row",
    "margin": "sqrt(2 log keys) - beta: below zero a few weights hold a row",
    "gap": "1 - s2/s1 of an attention matrix",
    "rank": "stable rank of an attention matrix",
    "cosine": "mean cosine of two tokens of the stream that enters the layer",
    "token_rank": "stable rank of these tokens, at unit length",
    "power": "mean square of an entry of that stream",
    "gradient": "norm of the gradient with respect to it, for random labels",
    "scaled_gradient": "that times the root of the power",
    "score_change": "change of the scores in the first step of Adam, over the scores",
}
"""Columns of the table, and what they mean; those of the longer context end in ``_long``."""
LONG = ("beta", "entropy", "largest", "margin", "gap", "rank", "cosine", "token_rank", "power")


class Finding(NamedTuple):
    """Something that a configuration will do, the change that mends it, and what follows from that change.

    >>> str(Finding("frozen", "Rows are frozen.", "Halve the score scale.", "Then rows have 5 bits."))
    'Rows are frozen. Halve the score scale. Then rows have 5 bits.'
    """

    name: str
    sentence: str
    remedy: str
    after: str

    def __str__(self) -> str:
        """In one paragraph."""
        return " ".join(each for each in (self.sentence, self.remedy, self.after) if each)


def columns_of(plan: Blueprint, tokens: int, longer: int, repeats: float | None, rate: float | None) -> dict[str, Real]:
    """The columns of the table."""
    found = with_derived(recursion(plan, tokens, repeats=repeats, rate=rate), freezing_points(plan, tokens))
    if longer:
        beyond = recursion(plan, longer, repeats=repeats, gradients=False) | {"margin": np.zeros(plan.depth)}
        beyond["margin"] = freezing_points(plan, longer) - beyond["beta"]
        found |= {f"{name}_long": beyond[name] for name in LONG}
    return found


def freezing_points(plan: Blueprint, tokens: int) -> Real:
    """Score scale at which rows freeze, for every layer."""
    keys = np.array([min(tokens, layer.window or tokens) for layer in plan.layers], dtype=float)
    return np.sqrt(2 * np.log(keys))


def with_derived(found: dict[str, Real], freezing: Real) -> dict[str, Real]:
    """Columns in their order, with those that follow from others."""
    found = found | {
        "margin": freezing - found["beta"], "scaled_gradient": found["gradient"] * np.sqrt(found["power"])
    }  # fmt: skip
    return {name: found[name] for name in COLUMNS if name in found and not np.isnan(found[name]).all()}


# -- warnings ----------------------------------------------------------------------------------------------------------


def findings_of(
    numbers: dict[str, Real], plan: Blueprint | None, tokens: int, repeats: float | None, rate: float | None
) -> Iterator[Finding]:
    """Warnings, the worst first, each with what follows from its remedy."""

    def again(**changes: Any) -> dict[str, Real]:
        return {} if plan is None else columns_of(replace(plan, **changes), tokens, 0, repeats, rate)

    if (numbers["margin"] < 0).any():
        yield _frozen(numbers, plan, again)
    cosine = numbers["cosine"]
    if (cosine > COLLAPSED).any():
        yield _collapsed(cosine, plan, again)
    scaled = numbers["scaled_gradient"]
    steep = scaled[0] / scaled[-1]
    if max(steep, 1 / steep) > STEEP:
        yield _steep(scaled, float(numbers["beta"].max()), plan, again)
    if "score_change" in numbers and numbers["score_change"].max() > LARGE_STEP and rate is not None:
        layer = int(numbers["score_change"].argmax())
        change = float(numbers["score_change"][layer])
        yield Finding(
            "large step",
            f"The first step of Adam changes the scores of layer {layer} by {change:.2g} times their size.",
            f"Warm up from a rate of {rate * FIRST_CHANGE / change:.1g}.",
            f"Then they change by {FIRST_CHANGE} times their size.",
        )


def _frozen(numbers: dict[str, Real], plan: Blueprint | None, again: Any) -> Finding:
    """Rows on a single key."""
    layer = int(numbers["margin"].argmin())
    beta, limit = float(numbers["beta"][layer]), float(numbers["beta"][layer] + numbers["margin"][layer])

    def rows(each: dict[str, Real]) -> str:
        bits, largest = each["entropy"][layer] / math.log(2), each["largest"][layer]
        return f"rows have {bits:.2f} bits and a largest weight of {largest:.2f}"

    sentence = (
        f"Frozen at start: scores of layer {layer} have a standard deviation of {beta:.3g}, beyond "
        f"sqrt(2 log keys) = {limit:.3g}; {rows(numbers)}."
    )
    if plan is None:
        return Finding("frozen", sentence, f"Multiply the score scale by {1 / beta:.2g}.", "")
    remedy, changes = _softer(plan, beta)
    changed = again(**changes)
    return Finding("frozen", sentence, remedy, f"Then {rows(changed)}.")


def _softer(plan: Blueprint, beta: float) -> tuple[str, dict[str, float]]:
    """What brings scores of this deviation to one, in words and as changes of the plan."""
    due = plan.head_dim**-0.5
    if plan.score_scale > 1.5 * due and plan.score_deviation * due / plan.score_scale < 2:
        words = f"Scale scores by 1/sqrt(head_dim) = {due:.3g} instead of {plan.score_scale:.3g}."
        return words, {"score_scale": due}
    if plan.qk_norm != "none":
        return f"Multiply the score scale by {1 / beta:.2g}.", {"score_scale": plan.score_scale / beta}
    query, key = plan.query * beta**-0.5, plan.key * beta**-0.5
    words = f"Draw queries and keys with standard deviations of {query:.2g} and {key:.2g}."
    return words, {"query": query, "key": key}


def _collapsed(cosine: Real, plan: Blueprint | None, again: Any) -> Finding:
    """Tokens that become one."""
    layer = int((cosine > COLLAPSED).argmax())
    sentence = (
        f"Rank collapse by layer {layer}: the mean cosine of two tokens is {cosine[layer]:.2f}, and {cosine[-1]:.2f} in"
        " the last layer."
    )
    if plan is None:
        return Finding("collapse", sentence, "Remove the gap of attention (be.nn.remove_gap).", "")
    changed = again(gap_free=True)["cosine"]
    after = f"Then the cosine is {changed[layer]:.2f} there, and {changed[-1]:.2f} in the last layer."
    return Finding("collapse", sentence, "Remove the gap of attention (be.nn.remove_gap).", after)


def _steep(scaled: Real, beta: float, plan: Blueprint | None, again: Any) -> Finding:
    """Gradients that explode or vanish."""
    ratio = float(scaled[0] / scaled[-1])
    words = "explode" if ratio > 1 else "vanish"
    sentence = (
        f"Gradients {words}: times the root of the stream's power, that of the first layer is {ratio:.3g} times that of"
        " the last."
    )
    if plan is None:
        return Finding("gradients", sentence, "Draw the last map of every branch smaller.", "")
    part = (2 * plan.depth) ** -0.5
    options: dict[str, dict[str, Any]] = {
        f"Draw the last map of every branch 1/sqrt(2 layers) = {part:.2g} times as large.": {
            "output": plan.output * part,
            "down": plan.down * part,
        }
    }
    if beta > 2:
        remedy, softer = _softer(plan, beta)
        options[remedy] = softer
    if plan.placement == "post":
        options["Put the norms before the branches instead of after the sums."] = {
            "placement": "pre",
            "final_norm": True,
        }
    results = {}
    for remedy, changes in options.items():
        after = again(**changes)["scaled_gradient"]
        results[remedy] = float(after[0] / after[-1])
    best = min(results, key=lambda each: abs(math.log(results[each])))
    return Finding("gradients", sentence, best, f"Then it is {results[best]:.3g} times that.")


def notes_of(layers: dict[str, Real], plan: Blueprint, tokens: int, longer: int) -> Iterator[str]:
    """What is worth knowing and no warning."""
    beta = layers["beta"]
    if beta.max() < FLAT:
        yield (
            f"Uniform at start: scores have a standard deviation of at most {beta.max():.2g}, so that rows attend to"
            " all keys about alike. Many models start so, and train well."
        )
    if longer:
        keys, beyond = (max(min(each, layer.window or each) for layer in plan.layers) for each in (tokens, longer))
        factor = math.sqrt(math.log(beyond) / math.log(keys))
        now, then = layers["largest"].mean(), layers["largest_long"].mean()
        if beyond > keys and then < now:
            yield (
                f"At {longer} tokens the largest weight of a row falls from {now:.2g} to {then:.2g}; scores times"
                f" {factor:.3g} keep their distance to freezing."
            )


def summary_of(layers: dict[str, Real]) -> str:
    """The most important numbers of a table in a sentence."""
    beta, cosine, scaled = (layers[name] for name in ("beta", "cosine", "scaled_gradient"))
    return (
        f"Scores have a standard deviation of {beta.min():.2g} to {beta.max():.2g}; the cosine of two tokens goes from"
        f" {cosine[0]:.2f} to {cosine[-1]:.2f}; gradients, scaled by the stream, differ"
        f" {scaled.max() / scaled.min():.2g}-fold."
    )
