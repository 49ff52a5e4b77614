"""Spectra of operators: the distribution of all singular values from a few dozen products, with its error."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.laws.distribution import Unit
from bulkedge.spectra.curves import SpectralDensity
from bulkedge.spectra.deflation import Deflation, deflate
from bulkedge.spectra.dense import Spectra, Spectrum
from bulkedge.spectra.krylov import GolubKahan
from bulkedge.spectra.operators.base import Operator
from bulkedge.spectra.quadrature import density, simulated_deviations
from bulkedge.spectra.stopping import ACCURACY, SHARE, IterationState, MostSteps, Placed, Reached, Rule
from bulkedge.support.arrays import object_array
from bulkedge.support.domains import FUNCTION, Instance, Interval, takes
from bulkedge.support.errors import AccuracyWarning
from bulkedge.support.random import normal
from bulkedge.support.threads import thin_products

CONFIDENCE = Interval(0.5, 0.999)
LEAST_PROBES, MOST_PROBES = 32, 256
"""Few probes sample well where there are many values, but blocks of this width find large values in few steps."""
LONG = 2**19
"""Values beyond which half as many probes do: their basis would not fit beside directions that are set aside."""
FIRST_STEPS, MOST_STEPS = 8, 160  # steps before the first checkpoint, and the most that are made
FEWER = 1.4
"""The distribution is held against that of so many times fewer steps, and the next checkpoint is at most so many times
later: then what it is held against may be known already."""
CONFIRMING = 1.1  # the factor to the next checkpoint from one that is accurate enough
ENOUGH_STEPS = 40  # values close to zero that are not told apart after so many steps will not be after a few more
DRAWS = 100  # simulated frames for the sampling error: its quantile of 0.9 is then right to a twentieth of itself
QUANTILES = 4000  # values that stand for the continuous part of an estimated spectrum
TWO_SIDED = 2**30  # numbers in both bases up to which the left one is kept too
KOLMOGOROV = 1.3
"""About the quantile 0.9 of the largest deviation of a Brownian bridge, by which the number of probes is chosen."""


@takes(operator=Instance(Operator), stop=FUNCTION)
def operator_spectrum(  # noqa: PLR0913 - what is wanted, and how it is sought
    operator: Operator,
    tolerance: float = 0.01,
    confidence: float = 0.9,
    rng: Any = None,
    stop: Rule | None = None,
    *,
    placed: float = 0.0,
) -> Any:
    """The distribution of the singular values of an operator, by block Golub-Kahan quadrature.

    Random probes are orthonormal, and as many as the tolerance needs: their sampling error is that of a random frame of
    the space, known without looking at the matrix. Steps are made until the error is reached at two checkpoints.

    Parameters
    ----------
    operator : Operator
        One matrix or a batch; the members of a batch are done one by one.
    tolerance : float
        Kolmogorov distance wanted between the estimated distribution function and the true one.
    confidence : float
        Probability with which it is wanted.
    rng : numpy.random.Generator or torch.Generator, optional
        Draws the probes. By default a generator of a fixed seed on the operator's device: the same numbers every time.
    stop : Rule, optional
        When to stop; by default at the tolerance and the share of values that is to be placed, or after 160 steps.
    placed : float
        Share of the values that is to be told apart, instead of being counted as close to zero. Each step more places
        some more of them.

    Returns
    -------
    Spectrum or Spectra
        Values with weights that stand for the distribution. ``error`` is the stated Kolmogorov distance, and of values
        below ``rounding`` only the number is known.

    Warns
    -----
    AccuracyWarning
        If the iteration stopped at an error above the tolerance, or if more values close to zero than was asked for
        are not told apart.

    Examples
    --------
    >>> from bulkedge.spectra import MatrixOperator
    >>> matrix = np.random.default_rng(0).standard_normal((300, 200)) / 300**0.5
    >>> found = operator_spectrum(MatrixOperator(matrix), tolerance=0.05)
    >>> found.size, found.error < 0.05
    (200, True)
    """
    wanted = _Accuracy(
        ACCURACY.check("tolerance", tolerance),
        CONFIDENCE.check("confidence", confidence),
        SHARE.check("placed", placed),
    )
    if operator.batch:
        members = [
            operator_spectrum(operator[index], tolerance, confidence, rng, stop, placed=placed)
            for index in np.ndindex(operator.batch)
        ]
        return Spectra(object_array(operator.batch, members))
    if operator.shape[-1] > operator.shape[-2]:
        operator = operator.T
    rule = stop or ((Reached(wanted.tolerance) & Placed(wanted.placed)) | MostSteps(MOST_STEPS))
    with full_precision(operator.like):
        found, steps = _iterate(operator, wanted, rng, rule)
    found.warn(wanted, steps)
    values, weights = found.density.quantiles(QUANTILES)
    return Spectrum(
        values,
        weights,
        operator.shape[-1],
        Unit.SINGULAR,
        rounding=found.floor,
        error=found.error,
        kernel=operator.shape[-2] - operator.shape[-1],
    )


@dataclass(frozen=True)
class _Accuracy:
    """What a run is made for: a distance, how surely, and the share of the values that is told apart."""

    tolerance: float
    confidence: float
    placed: float


@dataclass(frozen=True)
class _Assessment:
    """A density, its error, and the value below which only the number of values is known, the floor."""

    # apart_from: above it the density is known to the tolerance (zero: everywhere); once values are lumped, the floor

    density: SpectralDensity
    error: float
    floor: float
    lumped: bool
    final: bool = True
    apart_from: float = 0.0

    @property
    def placed(self) -> float:
        """Share of the values that are told apart."""
        lowest = max(self.apart_from, self.floor) if self.lumped else self.apart_from
        return 1 - float(self.density.cdf(np.array([lowest]))[0]) if lowest > 0 else 1.0

    def warn(self, wanted: _Accuracy, steps: int) -> None:
        """Say what was not reached."""
        said = []
        if self.error > wanted.tolerance:
            said.append(
                f"the distribution is known to {self.error:.2g}, not to {wanted.tolerance:g}: allow more steps, or a "
                "larger tolerance"
            )
        below = f"{1 - self.placed:.1%} of the values are below {self.floor:.3g}, and are not told apart"
        if self.lumped and self.placed < wanted.placed:
            said.append(
                f"{below}: {self.placed:.1%} are placed after {steps} steps, not {wanted.placed:.1%}; allow more steps "
                "(operator_spectrum(..., stop=...)), or ask for fewer values"
            )
        elif self.lumped and not said and not wanted.placed:
            said.append(f"{below}: the spectrum comes too close to zero for so few products; placed= asks for more")
        for words in said:
            warnings.warn(words, AccuracyWarning, stacklevel=4)


def frame(operator: Operator, probes: int, rng: Any = None) -> Any:
    """Random orthonormal probes for the domain of an operator."""
    like, xp = operator.like, array_namespace(operator.like)
    if rng is None and is_torch_array(like):
        import torch

        rng = torch.Generator(device=like.device).manual_seed(0)
    drawn = normal(np.random.default_rng(0) if rng is None else rng, (operator.shape[-1], probes))
    with thin_products():
        return xp.linalg.qr(xp.asarray(drawn, dtype=like.dtype, device=device(like)))[0]


class _Densities(dict[int, SpectralDensity]):
    """Densities after some steps of a run, each computed once, and what was set aside before it."""

    def __init__(self, aside: Deflation | None) -> None:
        super().__init__()
        self.aside = aside

    def with_deflation(self, found: _Assessment) -> _Assessment:
        """An assessment of the run, with what setting aside adds to its error."""
        if self.aside is None:
            return found
        error, floor = self.aside.error(found.density), max(found.floor, self.aside.noise)
        return replace(found, error=found.error + error, floor=floor)


def _iterate(operator: Operator, wanted: _Accuracy, rng: Any, rule: Rule) -> tuple[_Assessment, int]:
    """Step until the rule says stop, with large known values set aside if worth it; what is known, and the steps."""
    tolerance, start = wanted.tolerance, time.perf_counter()
    block = frame(operator, _probes(operator.shape[-1], tolerance), rng)
    run, known = _start(operator, block, deflate(operator, block, tolerance), wanted)
    found = _advance(run, known, FIRST_STEPS, wanted)
    if known.aside is not None and not known.aside.worth(found.density, tolerance):
        run, known = _start(operator, block, None, wanted)
        found = _advance(run, known, FIRST_STEPS, wanted)
    course: list[tuple[int, float]] = []
    while True:
        course.append((run.steps, found.error))
        errors, seconds = tuple(error for _, error in course), time.perf_counter() - start
        checkpoint = IterationState(run.steps, 2 * block.shape[1] * run.steps, seconds, errors, found.placed)
        if run.exhausted or rule(checkpoint):
            final = found if found.final else known.with_deflation(_assess(run, known, wanted, enough=0))
            return final, run.steps
        following = max(_next(course, tolerance), _next_to_place(found, run.steps, wanted.placed))
        # the most steps are not overshot by a checkpoint that lies beyond them
        found = _advance(run, known, MOST_STEPS if run.steps < MOST_STEPS < following else following, wanted)


def _start(operator: Operator, block: Any, aside: Deflation | None, wanted: _Accuracy) -> tuple[GolubKahan, _Densities]:
    """A run from a block of probes, or from those in the complement of what is set aside."""
    # more than most runs make; those that are asked to place values may make all
    steps = MOST_STEPS if wanted.placed else 64
    two_sided = block.shape[1] * steps * sum(operator.shape) <= TWO_SIDED
    if aside is not None:
        operator, block = aside.operator, aside.block
    return GolubKahan(operator, block, two_sided=two_sided), _Densities(aside)


def _advance(run: GolubKahan, known: _Densities, target: float, wanted: _Accuracy) -> _Assessment:
    """What is known after so many steps."""
    while run.steps < target and not run.exhausted:
        run.step()
    # beside a GPU all of the processor is there for the small decompositions
    with nullcontext() if is_torch_array(run.operator.like) else thin_products():
        return known.with_deflation(_assess(run, known, wanted))


def _next(course: list[tuple[int, float]], tolerance: float) -> float:
    """Steps of the next checkpoint, if the error falls as a power; looking early costs less than looking late."""
    steps, error = course[-1]
    if error <= tolerance:
        return steps * CONFIRMING
    if len(course) < 2:
        return steps * FEWER
    before, larger = course[-2]
    power = np.clip(np.log(larger / error) / np.log(steps / before), 1.0, 4.0)
    following = float(np.clip(steps * (error / tolerance) ** (1 / power), steps + 1, steps * FEWER))
    # from there on values close to zero need not be told apart, which may be enough
    return ENOUGH_STEPS if steps < ENOUGH_STEPS < following else following


def _next_to_place(found: _Assessment, steps: int, share: float) -> float:
    """Steps of the next checkpoint, by the share of values to place: the floor falls as one over the steps."""
    # the floor's place is read off a curve not known there, so steps are not too long
    if found.placed >= share:
        return 0.0
    values, weights = found.density.quantiles(QUANTILES)
    lowest = float(np.interp(1 - share, np.cumsum(weights), values))
    return steps * float(np.clip(found.floor / max(lowest, 1e-300), CONFIRMING, FEWER))


def _probes(size: int, tolerance: float) -> int:
    """Enough for a sampling error of three quarters of the tolerance, which leaves some for the number of steps."""
    needed = int(np.ceil(2 / size * (KOLMOGOROV / (0.75 * tolerance)) ** 2))
    least = LEAST_PROBES if size <= LONG else LEAST_PROBES // 2
    return min(size, MOST_PROBES, max(least, -(-needed // 8) * 8))


def _assess(run: GolubKahan, known: _Densities, wanted: _Accuracy, enough: int = ENOUGH_STEPS) -> _Assessment:
    """The density after all steps, beside that of fewer and beside simulated frames; ``known`` is added to."""
    projection, size = run.projection(), run.operator.shape[-1]
    found, noise = _after(run, run.steps, known), projection.rounding
    if not found.nodes.size:
        return _Assessment(found, 0.0, noise, lumped=False)
    unresolved, floor, apart_from, earlier = 0.0, 0.0, 0.0, found
    if not projection.exhausted:
        earlier = _after(run, max(1, round(run.steps / FEWER)), known)
        unresolved, floor = _distance_to_fewer(found, earlier, wanted.tolerance)
        apart_from = floor if floor > noise else 0.0
        if floor and run.steps < enough:  # values close to zero may still be told apart
            unresolved, floor = _distance_to_fewer(found, earlier, np.inf)
    if unresolved > wanted.tolerance:  # there is more to do: the sampling error need not be simulated
        error = float(np.hypot(unresolved, KOLMOGOROV * (2 / (size * projection.probes)) ** 0.5))
        return _Assessment(found, error, max(floor, noise), floor > noise, run.steps >= enough, apart_from)
    rng = np.random.default_rng(run.steps)
    places, drawn = simulated_deviations(found, projection.probes, run.steps, DRAWS, rng)
    sampling = np.quantile(np.abs(drawn).max(axis=1, initial=0.0), wanted.confidence)
    # where both are large at the same places, they are added
    shift = np.where(places > floor, found.cdf(places) - earlier.cdf(places), 0.0)
    both = np.quantile(np.abs(drawn + shift).max(axis=1, initial=0.0), wanted.confidence)
    # a curve does not follow the steps of a finite spectrum
    steps = 0.0 if found.points.all() else 1 / size
    error = float(max(np.hypot(sampling, unresolved), both)) + steps
    return _Assessment(found, error, max(floor, noise), floor > noise, apart_from=apart_from)


def _after(run: GolubKahan, steps: int, known: _Densities) -> SpectralDensity:
    """The density of all values after some of the steps, which is computed once."""
    if steps not in known:
        aside, size = known.aside, run.operator.shape[-1]
        rest = density(run.projection(steps), size if aside is None else aside.rest)
        known[steps] = rest if aside is None else aside.whole(rest)
    return known[steps]


def _distance_to_fewer(found: SpectralDensity, before: SpectralDensity, tolerance: float) -> tuple[float, float]:
    """Distance from the distribution after fewer steps, and the value above which that holds."""
    # if less than the tolerance is known close to zero, it is said of the values there, not as one large error
    top = max(found.top, before.top, *found.locked, *before.locked)
    knots = np.concatenate([found.nodes, before.nodes])
    grids = np.linspace(0, top, 4000), np.linspace(0, found.top, 4000)
    x = np.unique(np.concatenate([*grids, knots * (1 - 1e-6), knots * (1 + 1e-6)]))
    apart = np.abs(found.cdf(x) - before.cdf(x))
    lowest, highest = (float(each.nodes[min(1, len(each.nodes) - 1)]) for each in (found, before))
    doubt = found.doubt(before, float(apart[x <= lowest].max(initial=0.0)))
    if doubt <= tolerance:
        return max(float(apart.max()), doubt), 0.0
    # beyond its second node the distribution is known; beyond that of fewer steps they can be compared
    differ = x[(x > lowest) & (x <= highest) & (apart > tolerance / 2)]
    floor = max(lowest, float(differ.max(initial=0.0)))
    return float(apart[x > floor].max(initial=0.0)), floor


@contextmanager
def full_precision(like: Any) -> Iterator[None]:
    """Products of torch with all digits of single precision; nothing changes for arrays of NumPy."""
    # TF32 or bfloat16 would leave parts of the largest values behind, not small beside the small values
    if not is_torch_array(like):
        yield
        return
    import torch

    # newer versions of torch have a setting for each device beside the one for all
    backends = (getattr(each, "matmul", None) for each in (torch.backends.cuda, torch.backends.mkldnn))
    devices: list[Any] = [each for each in backends if _has_setting(each)]
    before, each_before = _for_all(), [each.fp32_precision for each in devices]
    if before == "highest" and all(each in {"none", "ieee"} for each in each_before):
        yield
        return
    try:
        if before is not None:
            torch.set_float32_matmul_precision("highest")
        for each in devices:
            each.fp32_precision = "ieee"
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for each, setting in zip(devices, each_before, strict=True):
            each.fp32_precision = setting


def _for_all() -> str | None:
    """The setting for all devices; None where torch refuses to say, as those for each contradict it."""
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _has_setting(backend: Any) -> bool:
    """Whether a backend of torch has the newer setting; those of older versions refuse any name they do not know."""
    try:
        return isinstance(backend.fp32_precision, str)
    except (AttributeError, AssertionError):
        return False
