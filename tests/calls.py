"""Calls that a user gets wrong: every public call with one argument replaced by something it is not for.

An answer is *clear* if it is an error of :mod:`bulkedge.support.errors` that names the argument, or Python's own
refusal of a call that does not fit the signature. Anything else that is raised (IndexError, a warning turned error) is
*unclear*: its reader has to open the source. What returns is not judged here.
"""

import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np

import bulkedge as be

GARBAGE = {
    "None": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "minus one": -1,
    "zero": 0,
    "half": 0.5,
    "huge": 10**400,
    "large": 1e300,
    "tiny": 1e-300,
    "true": True,
    "complex": 1 + 2j,
    "text": "many",
    "number as text": "3",
    "bytes": b"3",
    "empty list": [],
    "ragged": [[1.0, 2.0], [3.0]],
    "list": [1.0, 2.0, 3.0],
    "list with nan": [1.0, float("nan")],
    "list of text": ["a", "b"],
    "nested": [[1.0, 2.0], [3.0, 4.0]],
    "empty array": np.array([]),
    "array": np.array([1.0, 2.0]),
    "matrix": np.eye(3),
    "cube": np.ones((2, 2, 2)),
    "complex array": np.array([1.0, 2.0 + 1j]),
    "array of objects": np.array([None, 1], dtype=object),
    "masked": np.ma.masked_array([1.0, 2.0], [False, True]),
    "boolean array": np.array([True, False]),
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "dict": {"a": 1},
    "set": {1.0, 2.0},
    "object": object(),
    "class": int,
    "function": len,
    "fraction": Fraction(1, 3),
    "decimal": Decimal("0.5"),
    "tuple": (1, 2),
    "law": be.Semicircle(),
    "law class": be.Semicircle,
    "generator": np.random.default_rng(0),
    "spectrum": be.Spectrum.of([1.0, 2.0], "eigenvalues"),
}

CORRELATION = be.recovery.prefix_correlation(6, 3, 0.5)
WEIGHTS = be.recovery.mean_weights(6)
SPECTRUM = be.Spectrum.of(np.linspace(0.2, 2.5, 20), "eigenvalues")
MASK = be.Mask.causal(8)


def rng():
    return np.random.default_rng(1)


def calls():
    """Name → (callable, keyword arguments that work)."""
    law, atoms, singular = be.MarchenkoPastur(0.5), be.EmpiricalLaw([1.0, 5.0]), be.QuarterCircle()
    made = {
        "Semicircle": (be.Semicircle, {"variance": 1.0}),
        "QuarterCircle": (be.QuarterCircle, {"variance": 1.0}),
        "MarchenkoPastur": (be.MarchenkoPastur, {"ratio": 0.5, "scale": 1.0}),
        "ProductLaw": (be.ProductLaw, {"ratios": (0.5, 0.3), "scale": 1.0}),
        "FussCatalan": (be.FussCatalan, {"order": 2, "scale": 1.0}),
        "IndependentProduct": (be.IndependentProduct, {"first": be.FussCatalan(2), "second": be.FussCatalan(2)}),
        "SumLaw": (be.SumLaw, {"variances": (1.0, 0.5), "ratios": (0.5, np.inf)}),
        "AttentionLaw": (be.AttentionLaw, {"beta": 1.0, "head_ratio": 1.0}),
        "FiniteHeadLaw": (be.FiniteHeadLaw, {"beta": 1.0, "head_dim": 64, "tokens": 512, "qk_norm": True}),
        "CorrelatedAttentionLaw": (
            be.CorrelatedAttentionLaw,
            {"beta": 0.5, "head_ratio": 0.5, "gram": be.EmpiricalLaw([1.0])},
        ),
        "CausalLaw": (be.CausalLaw, {"variance": 1.0}),
        "CausalHeadLaw": (be.CausalHeadLaw, {"beta": 0.5, "head_dim": 32, "tokens": 200}),
        "SharpHeadLaw": (be.SharpHeadLaw, {"beta": 2.0, "tokens": 500}),
        "ProfileLaw": (be.ProfileLaw, {"variances": ((1.0, 2.0),), "rows": (1.0,), "columns": (0.5, 0.5)}),
        "PoissonLaw": (be.PoissonLaw, {"rate": 1.0}),
        "EmpiricalLaw": (be.EmpiricalLaw, {"values": [1.0, 2.0], "weights": [0.5, 0.5]}),
        "StepDistribution": (be.StepDistribution, {"values": [1.0], "weights": [1.0], "unit": "eigenvalues"}),
        "TracyWidom": (be.TracyWidom, {"dyson": 1}),
        "free_add": (be.free_add, {"mu": law, "nu": atoms}),
        "free_mul": (be.free_mul, {"mu": law, "nu": atoms}),
        "rectangular_add": (be.rectangular_add, {"mu": singular, "nu": atoms, "ratio": 0.5}),
        "Wigner": (be.Wigner, {"size": 20, "variance": 1.0}),
        "Wishart": (be.Wishart, {"dim": 20, "samples": 40, "scale": 1.0}),
        "GaussianProduct": (be.GaussianProduct, {"dim": 20, "ratios": (0.5,), "scale": 1.0}),
        "GaussianSum": (be.GaussianSum, {"tokens": 20, "variances": (1.0,), "ratios": (0.5,)}),
        "SoftmaxAttention": (
            be.SoftmaxAttention,
            {"tokens": 20, "head_dim": 8, "beta": 1.0, "qk_norm": False, "mask": "full", "inputs": np.eye(20)},
        ),
        "PooledSequences": (
            be.PooledSequences,
            {"dim": 20, "vocab": 40, "samples": 50, "signal": 1.0, "weights": WEIGHTS, "correlation": CORRELATION},
        ),
        "RandomMarkov": (be.RandomMarkov, {"tokens": 20, "variance": 1.0, "entries": "lognormal"}),
        "AttentionStack": (be.AttentionStack, {"depth": 2, "tokens": 8, "width": 16}),
        "spectrum": (be.spectrum, {"matrix": np.eye(4), "kind": "singular"}),
        "attention_spectrum": (be.attention_spectrum, {"attention": np.full((4, 4), 0.25), "mask": "full"}),
        "Spectrum.of": (be.Spectrum.of, {"values": [1.0, 2.0], "unit": "eigenvalues"}),
        "Spectrum.scaled": (SPECTRUM.scaled, {"factor": 2.0}),
        "compare": (be.compare, {"spectrum": SPECTRUM, "law": law, "level": 0.05, "dyson": 1}),
        "stable_rank": (be.stable_rank, {"matrix": np.eye(3)}),
        "effective_rank": (be.effective_rank, {"matrix": np.eye(3)}),
        "cosine_similarity": (be.cosine_similarity, {"tokens": np.eye(3)}),
        "Mask.full": (be.Mask.full, {"tokens": 5}),
        "Mask.window": (be.Mask.window, {"tokens": 5, "width": 2}),
        "Mask.cross": (be.Mask.cross, {"queries": 5, "keys": 4}),
        "Mask.padding": (be.Mask.padding, {"visible": [True, False], "queries": 3}),
        "Mask.of": (be.Mask.of, {"visible": np.eye(3, dtype=bool)}),
        "Mask &": (MASK.__and__, {"other": MASK}),
        "SimulatedNull.of": (be.SimulatedNull.of, {"ensemble": be.Wishart(5, 9), "draws": 3, "rng": 0}),
        "null_of": (be.null_of, {"ensemble": be.Wishart(5, 9), "size": 5, "draws": 3, "rng": 0}),
        "mean_weights": (be.recovery.mean_weights, {"length": 5}),
        "causal_weights": (be.recovery.causal_weights, {"length": 5}),
        "optimal_weights": (be.recovery.optimal_weights, {"correlation": CORRELATION}),
        "self_attention_weights": (
            be.recovery.self_attention_weights,
            {"sequences": np.ones((4, 3)), "score_scale": 1.0},
        ),
        "prefix_correlation": (be.recovery.prefix_correlation, {"length": 6, "prefix": 3, "correlation": 0.5}),
        "spiked_correlation": (be.recovery.spiked_correlation, {"length": 2, "direction": [1, 1], "strength": 1.0}),
        "autoregressive_correlation": (be.recovery.autoregressive_correlation, {"length": 6, "correlation": 0.5}),
        "draw_signs": (be.recovery.draw_signs, {"correlation": CORRELATION, "samples": 5, "rng": rng()}),
        "table_spectrum": (be.recovery.table_spectrum, {"embeddings": rng().standard_normal((300, 10)), "rng": rng()}),
        "Trainability": (be.propagation.Trainability, {"tokens": 100, "depth": 4}),
        "freezing_beta": (be.propagation.freezing_beta, {"tokens": 100}),
        "attention_layer": (be.programs.attention_layer, {"gram": np.eye(2), "heads": 2}),
    }
    for name, value in (("mp", law), ("atoms", atoms)):
        made |= {
            f"{name}.pdf": (value.pdf, {"x": 1.0}),
            f"{name}.cdf": (value.cdf, {"x": 1.0}),
            f"{name}.ppf": (value.ppf, {"q": 0.5}),
            f"{name}.rvs": (value.rvs, {"size": 3, "rng": rng()}),
            f"{name}.moment": (value.moment, {"k": 2}),
            f"{name}.cauchy": (value.cauchy, {"z": 5.0}),
            f"{name}.inverse_cauchy": (value.inverse_cauchy, {"w": 0.1}),
            f"{name}.spike": (value.spike, {"theta": 2.0}),
            f"{name}.spikes": (value.spikes, {"theta": (2.0, -1.0)}),
            f"{name}.singular_spike": (
                value.singular_spike,
                {"strength": 2.0, "ratio": 0.5, "unit": "squared singular values"},
            ),
            f"{name}.sample_spike": (value.sample_spike, {"theta": 6.0, "ratio": 0.5}),
            f"{name}.scaled": (value.scaled, {"factor": 2.0}),
        }
    made |= {
        "mp.finite_edge": (law.finite_edge, {"n": 100, "level": 0.05, "dyson": 1}),
        "TracyWidom.cdf": (be.TracyWidom(1).cdf, {"s": 0.0}),
        "ensemble.sample": (be.Wishart(5, 9).sample, {"rng": rng()}),
        "attention.spectrum": (be.SoftmaxAttention(20, 8).spectrum, {"rng": rng()}),
    }
    return made


def outcome(function, arguments, name, value):
    """``returned``, ``clear``, or the type of the error that is not."""
    given = arguments | {name: value}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", be.RegimeWarning)
        try:
            function(**given)
        except be.BulkedgeError as error:
            return "clear" if name in str(error) else f"vague {type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            return f"unclear {type(error).__name__}: {error}"
    return "returned"


def survey(chosen=None):
    """Count outcomes over all calls, arguments and garbage; the unclear ones are listed."""
    counts, findings = Counter(), []
    for target, (function, arguments) in calls().items():
        if chosen is not None and target not in chosen:
            continue
        good = outcome(function, arguments, *next(iter(arguments.items())))
        assert good == "returned", f"{target}: {good}"
        for name in arguments:
            for label, value in GARBAGE.items():
                found = outcome(function, arguments, name, value)
                counts[found.split(" ")[0]] += 1
                if not found.startswith(("clear", "returned")):
                    findings.append(f"{target}({name}={label}): {found[:150]}")
    return counts, findings
