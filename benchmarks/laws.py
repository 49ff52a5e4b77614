"""Densities of free convolutions, quantiles and cold builds, against the packages a theorist would reach for today.

Every tool evaluates the same points in the same run, in an environment of its own. Errors are the largest relative
errors at 40 points inside the support and at 20 within a millionth of an edge, against fifty-digit references that
share no code with any of the tools; wrong points are those inside, of 800, that are off by more than one per cent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import mpmath as mp
import numpy as np

import bulkedge as be
from benchmarks.harness import Table, best, peer, seconds
from bulkedge.laws.law import resolve_once

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import reference  # the tests' references, which are not part of the package

TITLE = "Benchmarks: laws"
POINTS = 1000
PEERS = {
    "rmtool": ["rmtool==1.0"],
    "freealg": ["freealg==0.12.2", "numpy<2.4"],  # its quick start does not run on NumPy 2.4
    "scikit_rmt": ["scikit-rmt==2.1.1"],
}
HALF = mp.mpf("0.5")
LAWS = {
    "SC+MP(1/2)": (
        be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5)),
        lambda x: reference.r_transform_density(lambda w: w + 1 / (1 - w / 2), x),
    ),
    "atoms*MP(1/2)": (
        be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5)),
        lambda x: reference.silverstein_density([1, 5], [HALF, HALF], HALF, x),
    ),
    "FC(2)": (be.FussCatalan(2), lambda x: reference.product_density([1, 1], x)),
    "FC(3)": (be.FussCatalan(3), lambda x: reference.product_density([1, 1, 1], x)),
}
FAMILIES = {
    "Semicircle": be.Semicircle,
    "QuarterCircle": be.QuarterCircle,
    "MarchenkoPastur, ratio 0.5": lambda: be.MarchenkoPastur(0.5),
    "MarchenkoPastur, ratio 0.999999": lambda: be.MarchenkoPastur(0.999999),
    "FussCatalan, order 2": lambda: be.FussCatalan(2),
    "FussCatalan, order 30": lambda: be.FussCatalan(30),
    "ProductLaw, two factors": lambda: be.ProductLaw((0.5, 0.3)),
    "SumLaw, one term and noise": lambda: be.SumLaw((1.0, 0.7), (0.5, np.inf)),
    "SumLaw, five terms": lambda: be.SumLaw((1.0, 0.5, 0.2, 0.1, 0.05), (0.03, 1.0, 30.0, 1000.0, np.inf)),
    "AttentionLaw, beta 1": lambda: be.AttentionLaw(1.0, 1.0),
    "AttentionLaw, beta 0.01": lambda: be.AttentionLaw(0.01, 1.0),
}

LIKED = np.exp(0.6 * np.random.default_rng(0).standard_normal(1200))
"""Popularity of columns whose logarithm has deviation 0.6: a mean query with half of the variance of the scores."""
HEADS = {
    "FiniteHeadLaw, 2048 tokens": lambda: be.FiniteHeadLaw(1.0, 64, 2048),
    "FiniteHeadLaw, 16384 tokens": lambda: be.FiniteHeadLaw(1.0, 64, 16384),
    "FiniteHeadLaw, all entries, 2048 tokens": lambda: be.FiniteHeadLaw(1.0, 64, 2048, large_entries=True),
    "FiniteHeadLaw, QK-norm, 2048 tokens": lambda: be.FiniteHeadLaw(1.0, 64, 2048, qk_norm=True),
    "FiniteHeadLaw, QK-norm, 16384 tokens": lambda: be.FiniteHeadLaw(1.0, 64, 16384, qk_norm=True),
    "CausalLaw": lambda: be.CausalLaw(1.7),
    "CausalHeadLaw, 2048 tokens": lambda: be.CausalHeadLaw(1.0, 64, 2048),
    "CausalHeadLaw, 2**20 tokens": lambda: be.CausalHeadLaw(1.0, 64, 2**20),
    "WindowLaw, 2048 tokens, window of 256": lambda: be.WindowLaw(1.0, 64, 2048, 256),
    "HeadLaw, beta 3, 4096 tokens": lambda: be.HeadLaw(3.0, 64, 4096),
    "HeadLaw, beta 30, 4096 tokens": lambda: be.HeadLaw(30.0, 64, 4096),
    "HeadLaw, beta 3, causal, 4096 tokens": lambda: be.HeadLaw(3.0, 64, 4096, causal=True),
    "SharpHeadLaw, beta 2": lambda: be.SharpHeadLaw(2.0, 1024),
    "AttentionLaw, popular columns": lambda: be.AttentionLaw(0.7, 0.5).with_columns(LIKED),
    "FiniteHeadLaw, sphere, popular columns": lambda: be.FiniteHeadLaw(0.7, 64, 999, qk_norm=True).with_columns(LIKED),
    "FiniteHeadLaw, popular columns": lambda: be.FiniteHeadLaw(0.7, 64, 1200).with_columns(LIKED),
}
"""Laws of attention, each on one line: whatever has a ``cdf`` can stand here."""
KEPT = ("CausalHeadLaw", "WindowLaw", "SharpHeadLaw", "HeadLaw")
"""Laws that keep a table of their own once it is made."""


def points_of(law: be.Law) -> np.ndarray:
    """Evenly spread over the support, with the ends crowded: every fifth point within a millionth of an edge."""
    close = int(POINTS / 5 / (2 * len(law.support)))
    parts = []
    for lo, hi in law.support:
        near = np.geomspace(1e-8, 1e-6, close)
        even = (np.arange((POINTS - 2 * close * len(law.support)) // len(law.support)) + 0.5) * len(law.support) / 800
        parts += [lo + (hi - lo) * share for share in (near, even[even < 1], 1 - near)]
    return np.sort(np.concatenate(parts))


def close_to_edges(points: np.ndarray, law: be.Law) -> np.ndarray:
    """Which points lie within a millionth of an edge."""
    edges = np.array([end for interval in law.support for end in interval])
    return np.asarray(np.abs(points[:, None] - edges).min(axis=1) < 2e-6 * np.ptp(edges))


def densities() -> Table:
    """A warm density of 1000 points, against rmtool and freealg."""
    cases = {name: points_of(law) for name, (law, _) in LAWS.items()}
    job = {"cases": {name: points.tolist() for name, points in cases.items()}}
    answers = [(tool, each) for tool in ("rmtool", "freealg") for each in peer(tool, PEERS[tool], job)]
    table = Table(
        f"Density at {POINTS} points, law already built",
        ["law", "tool", "error inside", "error at an edge", "wrong points", "time", "bulkedge is faster by"],
        "freealg's rows: its default offset from the axis, the most accurate offset we found, and its fitted "
        "algebraic form. "
        "rmtool's documentation asks the user to pick the root above degree three, as in FC(3); "
        "its own heuristic is shown.",
    )
    for name, (law, exact) in LAWS.items():
        points = cases[name]
        close = close_to_edges(points, law)
        inside, edge = np.flatnonzero(~close)[:: sum(~close) // 40], np.flatnonzero(close)[:: sum(close) // 20]
        truth = {k: float(exact(mp.mpf(float(points[k])))) for k in (*inside, *edge)}
        ours = law.pdf(points)
        own = best(lambda law=law, points=points: law.pdf(points))

        rows = [("**bulkedge**", ours, own, "")]
        for tool, answer in answers:
            if answer["case"] == name:
                label, time = f"{tool} {answer['variant']}".strip(), answer["seconds"]
                rows.append((label, np.array(answer["values"], dtype=float), time, f"{time / own:.0f}×"))
        for label, values, time, ratio in rows:
            errors = _error(values, truth, inside), _error(values, truth, edge)
            wrong = int(np.sum(~(np.abs(values - ours) <= 0.01 * ours) & ~close))
            table.add(name, label, *errors, wrong, seconds(time), ratio)
    return table


def _error(values: np.ndarray, truth: dict[int, float], index: np.ndarray) -> str:
    exact = np.array([truth[k] for k in index])
    return f"{np.max(np.nan_to_num(np.abs(values[index] / exact - 1), nan=np.inf)):.1e}"


def quantiles() -> Table:
    """A thousand Marchenko-Pastur quantiles, against scikit-rmt."""
    levels = (np.arange(POINTS) + 0.5) / POINTS
    (answer,) = peer("scikit_rmt", PEERS["scikit_rmt"], {"cases": {"MP(1/2) quantiles": levels.tolist()}})
    law = be.MarchenkoPastur(0.5)
    ours, theirs = law.ppf(levels), np.array(answer["values"], dtype=float)
    own = best(lambda: law.ppf(levels))
    table = Table(
        "1000 quantiles of MP(1/2), law already built",
        ["tool", "largest error of the cdf there", "time", "bulkedge is faster by"],
    )
    table.add("**bulkedge**", _miss(ours, levels), seconds(own), "")
    table.add("scikit-rmt", _miss(theirs, levels), seconds(answer["seconds"]), f"{answer['seconds'] / own:.0f}×")
    return table


def _miss(values: np.ndarray, levels: np.ndarray) -> str:
    """Error of quantiles, by the closed-form distribution function at every hundredth of them."""
    low = (1 - mp.sqrt(HALF)) ** 2
    exact = [
        mp.quad(lambda t: reference.marchenko_pastur_density(0.5, t), [low, mp.mpf(float(x))]) for x in values[50::100]
    ]
    return f"{max(abs(float(mass) - level) for mass, level in zip(exact, levels[50::100], strict=True)):.1e}"


def cold() -> Table:
    """From nothing to 1000 densities: edges, certified solutions, panels and evaluation; nothing is remembered."""
    table = Table("Building a law and evaluating 1000 points", ["law", "time", "goal"])
    for name, build in FAMILIES.items():
        x = points_of(build())
        table.add(name, seconds(best(lambda build=build, x=x: (resolve_once.cache_clear(), build().pdf(x)))), "20 ms")
    rng = np.random.default_rng(0)
    atoms = rng.gamma(3.0, 1.0, 2000)

    def silverstein() -> Any:
        resolve_once.cache_clear()
        law = be.free_mul(be.EmpiricalLaw(atoms), be.MarchenkoPastur(0.5))
        return law.pdf(np.linspace(0.01, law.edge, POINTS))

    table.add("free_mul of 2000 atoms with MP(1/2)", seconds(best(silverstein)), "500 ms")

    def general() -> Any:
        resolve_once.cache_clear()
        law = be.free_add(be.QuarterCircle(), be.FussCatalan(2))
        return law.pdf(np.linspace(0.01, law.edge, POINTS))

    table.add("free_add of two laws without explicit inverse", seconds(best(general)), "")
    return table


def heads() -> Table:
    """Laws of attention from nothing to one value of the distribution function, in units of the quickest of them.

    Processor time, so that other programs on the machine do not count; laws that were resolved before are forgotten.
    """
    table = Table(
        "Building a law of attention",
        ["law", "cold", "over AttentionLaw's", "warm"],
        "Processor time from nothing to one value of the distribution function, and of 1000 values once that is done. "
        "`CausalLaw` is one law for all beta, resolved once in a process: another beta takes less than `AttentionLaw`.",
    )
    unit = build_seconds(lambda: be.AttentionLaw(1.0, 1.0))
    for name, build in {"AttentionLaw": lambda: be.AttentionLaw(1.0, 1.0), **HEADS}.items():
        # these keep tables of their own: only the first build is from nothing
        time = build_seconds(build, 0 if name.startswith(KEPT) else 5)
        law = build()
        x = np.linspace(0.5, 1.5, POINTS) * law.ppf(0.5)
        law.cdf(x)
        start = process_time()
        law.cdf(x)
        table.add(name, seconds(time), f"{time / unit:.1f}", seconds(process_time() - start))
    return table


def build_seconds(build: Callable[[], be.Distribution], least: int = 5) -> float:
    """Least processor time that a law takes to be built, in seconds, of several builds that share nothing."""
    fastest = float("inf")
    for _ in range(least + 1):
        resolve_once.cache_clear()
        start = process_time()
        build().cdf(1.0)
        fastest = min(fastest, process_time() - start)
    return fastest


def tables() -> list[Table]:
    """All of it."""
    return [densities(), quantiles(), cold(), heads()]
