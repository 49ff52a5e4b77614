"""Calls that a user gets wrong: every public call with one argument replaced by something it is not for.

The public names are found, not listed: all of ``__all__`` of the package and its rooms, and what the API reference
shows. Good arguments come from the names of the parameters (``BY_NAME``), or from ``FOR`` where a name alone does not
say enough; a new function whose good call fails makes :func:`survey` ask for an entry.

An answer is *clear* if it is an error of :mod:`bulkedge.support.errors` that names the argument, or Python's own
refusal of a call that does not fit the signature. Anything else that is raised is *unclear*: its reader has to open the
source. What returns is *silent* where finite arguments gave nan, where a mask or an imaginary part was ignored, or
where the same numbers in half precision, in a list or in a tensor with a gradient gave another answer.
"""

import inspect
import re
import signal
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np

import bulkedge as be

try:
    import torch
except ImportError:
    torch = None

ROOMS = (
    *("", "spectra", "visibility", "ensembles", "laws", "heads", "recovery", "propagation", "programs", "testing"),
    *("plots", "models", "nn", "lab.sweeps", "lab.gallery"),
)
NEED_TORCH = {"models", "nn"}
LIMIT = 20
"""Seconds after which a call counts as unclear."""

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
if torch is not None:
    GARBAGE |= {
        "tensor": torch.ones(2),
        "tensor of nan": torch.full((3, 3), float("nan")),
        "bfloat16": torch.eye(3, dtype=torch.bfloat16),
        "complex tensor": torch.ones(2, dtype=torch.complex64),
        "tensor of integers": torch.ones(2, 2, dtype=torch.int64),
        "tensor of no device": torch.ones(3, 3, device="meta"),
    }


def rng():
    return np.random.default_rng(1)


def array(*shape):
    """Numbers that half precision holds exactly."""
    return np.round(rng().standard_normal(shape) * 64) / 64


def tensor(*shape):
    return torch.tensor(array(*shape), dtype=torch.float32)


def orthogonal_rows(rows=4, columns=6):
    return np.eye(rows, columns)


LAW, SPECTRUM, CORRELATION = (
    be.MarchenkoPastur(0.5),
    be.Spectrum.of(np.linspace(0.2, 2.5, 20), "eigenvalues"),
    be.recovery.prefix_correlation(6, 3, 0.5),
)


def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def traced(build):
    """A vector of a program that is being written, or what is built on it."""
    from bulkedge.programs.graph import Tracer
    from bulkedge.programs.instructions import Input

    return build(Tracer().write("x", Input, ((1.0, 0.5), (0.5, 1.0))))


def model():
    """Two small layers of torch's own attention: patched, watched and scanned in a moment."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def seeded():
    return torch.Generator().manual_seed(0)


def decoder():
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=64)
    return transformers.GPT2Model(config).eval()


def measures():
    from bulkedge.heads.measures.attention_measures import measure_heads

    return measure_heads(rng().standard_normal((2, 40, 40)))


def made_up():
    from scans import made_up_scan

    return made_up_scan(2, 3)


def stack():
    return be.AttentionStack(2, 8, 16)


def linear_stack():
    return be.AttentionStack(2, 8, 16, gap=False)


BY_NAME = {
    "x": lambda: 1.0, "q": lambda: 0.5, "s": lambda: 0.0, "p": lambda: 0.5, "z": lambda: 5.0, "w": lambda: 0.1,
    "t": lambda: 0.5, "k": lambda: 2, "n": lambda: 100, "level": lambda: 0.05, "dyson": lambda: 1, "rng": rng,
    "size": lambda: 3, "theta": lambda: 6.0, "ratio": lambda: 0.5, "factor": lambda: 2.0, "order": lambda: 2,
    "values": lambda: np.array([1.0, 2.0]), "weights": lambda: np.array([0.5, 0.5]), "unit": lambda: "eigenvalues",
    "strength": lambda: 2.0, "variance": lambda: 1.0, "scale": lambda: 1.0, "ratios": lambda: (0.5, 0.3),
    "variances": lambda: (1.0, 0.5), "rate": lambda: 1.0, "beta": lambda: 0.5, "head_ratio": lambda: 0.5,
    "head_dim": lambda: 16, "tokens": lambda: 128, "width": lambda: 16, "depth": lambda: 2, "law": lambda: LAW,
    "mu": lambda: LAW, "nu": lambda: be.EmpiricalLaw([1.0, 5.0]), "first": lambda: array(20, 2),
    "second": lambda: array(20, 2) * 2, "matrix": lambda: array(6, 4), "operator": lambda: array(6, 4),
    "spectrum": lambda: SPECTRUM, "ensemble": lambda: be.Wishart(5, 9), "draws": lambda: 3, "dim": lambda: 20,
    "samples": lambda: 40, "vocab": lambda: 40, "signal": lambda: 1.0, "length": lambda: 6, "prefix": lambda: 3,
    "correlation": lambda: 0.5, "mask": lambda: "full", "stack": stack, "gram": lambda: np.eye(2),
    "embeddings": lambda: array(300, 10), "count": lambda: 2, "inputs": lambda: 3, "queries": lambda: 5,
    "keys": lambda: 4, "visible": lambda: np.tri(3, dtype=bool), "scores": lambda: array(3, 3),
    "popularity": lambda: np.linspace(0.5, 1.5, 16), "draw": lambda: 1, "similarity": lambda: 0.2, "axes": axes,
    "layers": lambda: list(stack().layers(rng())), "left": lambda: array(6, 1), "right": lambda: array(4, 1),
    "directions": lambda: array(4, 1), "block": lambda: array(4, 2), "truth": lambda: 1.0, "error": lambda: 0.1,
    "seeds": lambda: 3, "model": model, "label": lambda: "text", "rows": lambda: 2, "columns": lambda: 2,
    "query": lambda: tensor(1, 2, 6, 4), "key": lambda: tensor(1, 2, 6, 4), "value": lambda: tensor(1, 2, 6, 4),
    "statistic": lambda: "largest", "loss": lambda: "frobenius", "tests": lambda: 5, "couplings": lambda: [0.5, 0.2],
    "mean": lambda: [0.1, 0.0], "name": lambda: "tanh", "new_tokens": lambda: 512, "distortion": lambda: 5.0,
    "probes": lambda: 4, "steps": lambda: 4, "vectors": lambda: traced(lambda x: x), "points": lambda: 256,
    "every": lambda: 5, "step": lambda: 3, "layer": lambda: 1, "gap": lambda: True, "tolerance": lambda: 0.1,
}  # fmt: skip
"""Good values by the name of the parameter, each made anew for each call."""


def eigenvalues():
    """Forty, as of a sample covariance."""
    return be.MarchenkoPastur(0.5).ppf(np.linspace(0.01, 0.99, 40))


FOR = {
    "MarchenkoPastur.singular_spike": {"unit": lambda: "squared singular values"},
    "MarchenkoPastur.shrink_sample": {"values": lambda: 3.0},
    "Semicircle.transforms": None,
    "Semicircle.shrink_sample": None,
    "IndependentProduct": {"first": lambda: be.FussCatalan(2), "second": lambda: be.FussCatalan(2)},
    "CorrelatedAttentionLaw": {"gram": lambda: be.EmpiricalLaw([1.0])},
    "CausalHeadLaw": {"head_dim": lambda: 32, "tokens": lambda: 200},
    "heads.matrix_and_law": {"q": lambda: array(40, 4), "k": lambda: array(40, 4), "labels": lambda: np.arange(40)},
    "WindowLaw": {"head_dim": lambda: 32, "tokens": lambda: 200, "width": lambda: 50, "after": lambda: 0},
    "HeadLaw": {"beta": lambda: 0.5, "head_dim": lambda: 64, "tokens": lambda: 500},
    "CovarianceShrinker.": {"X": lambda: array(30, 12)},
    "SharpHeadLaw": {"beta": lambda: 2.0, "tokens": lambda: 500},
    "SharpHeadLaw.cdf": {"x": lambda: 0.5},
    "ProfileLaw": {"variances": lambda: ((1.0, 2.0),), "rows": lambda: (1.0,), "columns": lambda: (0.5, 0.5)},
    "rectangular_add": {"mu": be.QuarterCircle, "nu": lambda: be.EmpiricalLaw([1.0, 5.0])},
    "Wigner": {"size": lambda: 20},
    "FiniteHeadLaw": {"head_dim": lambda: 64, "tokens": lambda: 512},
    "FiniteHeadLaw.with_columns": {"popularity": lambda: np.linspace(0.5, 1.5, 512)},
    "SoftmaxAttention": {"inputs": lambda: np.eye(20), "tokens": lambda: 20, "head_dim": lambda: 8},
    "SoftmaxAttention.normalisers": {"scores": lambda: array(20, 20)},
    "PooledSequences": {"weights": lambda: be.recovery.mean_weights(6), "correlation": lambda: CORRELATION},
    "PooledMixture": {
        "sizes": lambda: (5, 5),
        "gram": lambda: np.eye(2),
        "weights": lambda: be.recovery.mean_weights(2),
        "correlation": lambda: np.eye(2),
    },
    "PooledMixture.aligned": None,  # its other arguments are those of the class
    "SkipIsometry.kernel_law": {"ratio": lambda: 0.5},
    "SkipIsometry.stack": {"tokens": lambda: 8, "width": lambda: 8},
    "propagation.skip_isometry": {"depth": lambda: 4, "power": lambda: 1.0},
    "programs.train": {
        "inputs": lambda: np.eye(6).reshape(2, 3, 6),
        "targets": lambda: np.array([1.0, -1.0]),
        "setup": lambda: be.programs.Training(steps=1),
        "draws": lambda: 2,
    },
    "RandomMarkov": {"tokens": lambda: 20},
    "RandomMarkov.check_tails": None,
    "AttentionStack": {"tokens": lambda: 8},
    "AttentionStack.at_depth": {"depth": lambda: 2},
    "AttentionStack.attend": None,
    "AttentionStack.step": None,
    "AttentionStack.require_free": None,
    "attention_spectrum": {"attention": lambda: np.full((4, 4), 0.25)},
    "cosine_similarity": {"tokens": lambda: array(5, 3)},
    "AttentionOperator": {"query": lambda: array(6, 4), "key": lambda: array(6, 4)},
    "AttentionOperator.sweep": {"block": lambda: array(6, 2)},
    "AttentionOperator.less": {"right": lambda: array(6, 1)},
    "AttentionOperator.without": {"directions": lambda: array(6, 1)},
    "AttentionOperator.less_popularity": {"popularity": lambda: np.full(6, 1.0)},
    "MapOperator": {
        "forward": lambda: lambda v: v,
        "backward": lambda: lambda u: u,
        "shape": lambda: (4, 4),
        "like": lambda: array(1),
    },
    "MatrixOperator.sweep": {"less": lambda: array(6, 2)},
    "Product": {"factors": lambda: [be.spectra.MatrixOperator(np.eye(4))]},
    "Gram": {"operator": lambda: be.spectra.MatrixOperator(array(6, 4))},
    "Hermitised": {"operator": lambda: be.spectra.MatrixOperator(array(6, 4))},
    "operator_spectrum": {"operator": lambda: be.spectra.MatrixOperator(array(20, 20))},
    "trace_of": {"function": lambda: np.square},
    "trace_moments": {"powers": lambda: (1, 2)},
    "stopping.Rule": None,
    "denoise": {"matrix": lambda: array(30, 20)},
    "LawNull": {"size": lambda: 20},
    "SimulatedNull": {"members": lambda: tuple(be.Wishart(5, 9).spectrum(rng()) for _ in range(3))},
    "SimulatedNull.edge": {"level": lambda: 0.5},
    "LawNull.p_value": {"spectrum": lambda: be.Spectrum.of(np.linspace(0.2, 2.5, 20), "eigenvalues")},
    "Estimate": {"value": lambda: 1.0, "error": lambda: 0.1},
    "Estimate.jackknife": {"statistic": lambda: np.mean, "draws": lambda: array(9)},
    "Estimate.mean": {"parts": lambda: [be.Estimate(1.0, 0.1), be.Estimate(2.0, 0.1)]},
    "Estimate.of": {"draws": lambda: array(9)},
    "StepDistribution": {"unit": lambda: "eigenvalues"},
    "Spectrum.padded": {"size": lambda: 30},
    "score_scales": {"channel_or_beta": lambda: 1.0},
    "Mask.additive": {"mask": lambda: np.zeros((3, 3))},
    "Mask.cross": {"queries": lambda: 5, "keys": lambda: 4},
    "Mask.padding": {"visible": lambda: [True, False], "queries": lambda: 3},
    "Mask.window": {"tokens": lambda: 5, "width": lambda: 2, "after": lambda: 1},
    "Mask.chunks": {"tokens": lambda: 5, "width": lambda: 2, "causal": lambda: True},
    "Mask.mean": {"like": lambda: array(2)},
    "Mask.visible": {"like": lambda: array(2)},
    "visibility.additive": {"mask": lambda: np.zeros((3, 3))},
    "seen_keys": {"mask": lambda: np.zeros((3, 3))},
    "visibility.mask_for": {"tokens": lambda: 5},
    "visibility.prefix_mean_values": {"tokens": lambda: 20, "popularity": lambda: np.linspace(0.5, 1.5, 20)},
    "Channel": {"couplings": lambda: [0.5, 0.2]},
    "Channel.from_moments": {
        "query_mean": lambda: np.zeros(2),
        "query_cov": lambda: np.eye(2),
        "key_cov": lambda: np.eye(2),
        "key_mean": lambda: np.zeros(2),
    },
    "Channel.popularity": {"k": lambda: array(6, 4)},
    "from_qk": {"q": lambda: array(40, 4), "k": lambda: array(40, 4), "popularity": lambda: np.ones(40)},
    "ChannelLaw": None,
    "CausalChannel": None,
    "Kind": None,
    "kinds_of": {"measures": measures},
    "optimal_weights": {"correlation": lambda: CORRELATION},
    "self_attention_weights": {"sequences": lambda: array(4, 3), "score_scale": lambda: 1.0},
    "spiked_correlation": {"length": lambda: 2, "direction": lambda: [1.0, 1.0]},
    "draw_signs": {"correlation": lambda: CORRELATION, "samples": lambda: 5},
    "self_attention_spread": {"correlation": lambda: CORRELATION, "vocab": lambda: 40},
    "learned_weights": {
        "table": lambda: array(8, 5),
        "tokens": lambda: np.arange(12).reshape(4, 3) % 8,
        "labels": lambda: np.array([1.0, -1.0, 1.0, -1.0]),
        "ridge": lambda: 1.0,
        "restarts": lambda: 1,
    },
    "pool": {
        "table": lambda: array(8, 5),
        "tokens": lambda: np.arange(12).reshape(4, 3) % 8,
        "weights": lambda: be.recovery.mean_weights(3),
    },
    "RidgeClassifier": {"ridge": lambda: 1.0, "population": lambda: be.recovery.prefix_majority(5, 3, 0.5)},
    "RidgeClassifier.": {"weights": lambda: be.recovery.mean_weights(5)},
    "RidgeClassifier.tested": None,
    "RidgeClassifier.learned": {"restarts": lambda: 1},
    "Trainability": {"tokens": lambda: 100},
    "Trainability.similarities": None,
    "Trainability.next_similarity": None,
    "pullback": {"cotangent": lambda: array(8, 16)},
    "gradient_norms": {"stack": stack},
    "deepest": {"stack": linear_stack, "distortion": lambda: 0.9},
    "tradeoff": {"stack": linear_stack},
    "finite_moments": {"stack": lambda: be.AttentionStack(2, 8, 16, gap=False, entries="exponential")},
    "Program.vectors": {"name": lambda: "g2"},
    "Program.weight": {"name": lambda: "W1"},
    "Isometry": {
        "spread": lambda: 1.0, "depth": lambda: 2, "mean": lambda: 1.0, "layer_mean": lambda: 1.0,
    },
    "Isometry.distortion": {"mean": lambda: 1.0},
    "programs.trace": {"function": lambda: be.programs.linear},
    "attention_layer": {"heads": lambda: 2},
    "nonlin": {"function": lambda: be.programs.RELU, "vectors": lambda: traced(be.programs.linear)},
    "programs.dot": {
        "left": lambda: TRACED[0],
        "right": lambda: TRACED[1],
    },
    "programs.moment": {"vectors": lambda: TRACED[0]},
    "programs.center": {"vectors": lambda: TRACED[0]},
    "programs.sum_copies": {"vectors": lambda: traced(lambda x: be.programs.linear(x, copies=2))},
    "programs.scalar": {"function": lambda: be.programs.softmax, "scalars": lambda: TRACED[2]},
    "programs.softmax": {"scores": lambda: array(1, 3, 3, 2)},
    "programs.stack": {"block": lambda: be.programs.Attention(heads=1)},
    "layer_norm": {"x": lambda: traced(lambda x: x)},
    "PiecewiseLinear": {"name": lambda: "step", "knots": lambda: (0.0,), "slopes": lambda: (0.0, 1.0)},
    "PiecewiseLinear.": {"deviation": lambda: np.ones(2)},
    "Smooth": {"function": lambda: np.tanh},
    "HeadMixture": {"gram": lambda: np.eye(2)},
    "HeadMixture.kernel_values": {"scale": lambda: 1.0},
    "FiniteMixture": {"limit": lambda: be.programs.HeadMixture(np.eye(2)), "head_dim": lambda: 8},
    "infinite_head_kernel": {"gram": lambda: np.eye(2), "rng": rng},
    "estimate": {"distance": lambda: be.programs.energy_distance, "resamples": lambda: 5},
    "two_sample_test": {"permutations": lambda: 9},
    "with_singular_values": {"rows": lambda: 5},
    "values_of": {"size": lambda: 5},
    "hard_spectra": {"size": lambda: 20},
    "Placed": {"share": lambda: 0.5},
    "MostSeconds": {"seconds": lambda: 1.0},
    "matrix_and_law": {"q": lambda: array(40, 4), "k": lambda: array(40, 4)},
    "check_operator": {
        "operator": lambda: be.spectra.MatrixOperator(array(6, 4)), "matrix": lambda: array(6, 4),
        "columns": lambda: 3,
    },
    "coverage": {"estimates": lambda: [be.Estimate(1.0, 0.1), be.Estimate(2.0, 0.1)]},
    "covered": {"run": lambda: lambda rng: (1.0, 0.1)},
    "cumulative": {"values": lambda: SPECTRUM},
    "comparison": {"result": lambda: be.compare(SPECTRUM, LAW)},
    "without_gap": {"attention": lambda: np.full((4, 4), 0.25)},
    "without_outliers": {"attention": lambda: np.full((4, 4), 0.25), "count": lambda: 1},
    "Watch.attach": None,
    "Watch.save": None,
    "GapFreeAttention": {"args": lambda: 16, "num_heads": lambda: 2},
    "GapFreeAttention.forward": None,
    "apply_patch": {"model": decoder, "kind": lambda: "gap_free"},
    "patches": {"model": decoder},
    "remove_gap": {"model": decoder},
    "initial_scales": {"tokens": lambda: 64},
    "initialise": {"module": lambda: model().layers[0].self_attn, "tokens": lambda: 64, "rng": seeded},
    "initialise_stack": {"scales": lambda: be.nn.initial_scales(2, 64, 16, 8), "rng": seeded},
    "records_of": {"configuration": lambda: decoder().config},
    "nn.restore": {"patched": lambda: be.nn.remove_gap(decoder())},
    "restore_gap": {"model": lambda: be.nn.remove_gap(decoder()).model},
    "prune_heads": {"model": decoder, "heads": lambda: [(0, 0)], "replace": lambda: "zero"},
    "scale_scores": {"model": decoder, "factors": lambda: {"h.0.attn": 2.0}},
    "transform": {"kind": lambda: "a_kind_of_the_tests"},
    "transform_call": None,
    "check_interface": {"model": decoder},
    "skip_weights": {"skip": lambda: 0.5},
    "value_std": {"layer": lambda: 1},
    "capture": {"src": lambda: tensor(1, 6, 16)},
    "stream": {"visit": lambda: id, "src": lambda: tensor(1, 6, 16)},
    "ablate_heads": None,
    "preflight": {"config_or_model": decoder, "tokens": lambda: 16, "texts": lambda: [[1, 2, 1]], "rate": lambda: 0.1},
    "embedding_table": {"name": lambda: next(iter(be.models.TABLES))},
    "sample_text": {"name": lambda: next(iter(be.models.TEXTS))},
    "probe": {"model": decoder, "tokens": lambda: 16, "prompts": lambda: 1},
    "watch": {"rows": lambda: 4, "rate": lambda: 0.1, "group": lambda: None},
    "check_attention": {
        "batch": lambda: tensor(1, 6, 16), "causal": lambda: False, "before": lambda: None, "forward": lambda: None,
    },
    "Watch": {"rows": lambda: 4, "rate": lambda: 0.1, "group": lambda: None, "updates": lambda: False},
    "free_deconvolve": {"values": eigenvalues},
    "shrink_spectrum": {"values": eigenvalues},
    "load_state_dict": {"state": dict}, "logger": {"send": lambda: print}, "resume": {"path": lambda: "nowhere"},
    "scan": {
        "model": decoder, "inputs_or_texts": lambda: {"input_ids": torch.arange(40)[None]}, "probe": lambda: False,
        "draws": lambda: 0,
    },
    "compare_scans": None,
    "scan_weights": {"path": lambda: Path("no such folder")},
    "load_watch": {"path": lambda: Path("no such folder")},
    "load_scan": {"path": lambda: Path("no such folder")},
    "load_model": {"name": lambda: "no such folder"},
}  # fmt: skip
"""Good values where the name of a parameter does not say enough, by callable, or by class with a dot for all of its
methods; None leaves a callable out: what only the package itself calls, or what takes a trained model."""


def _traced_pair():
    def build(x):
        left, right = be.programs.linear(x), be.programs.linear(x)
        return left, right, be.programs.dot(left, right)

    return traced(build)


TRACED = _traced_pair()
FAILS = {"scan_weights", "load_scan", "load_watch", "load_model", "held_out_loss", "packaged_model", "resume",
         "load_state_dict"}  # fmt: skip
"""Whose good call is not made: they read files, a trained model or what was saved."""
LEFT_OUT = {"default_model", "local_processes", "stop", "run", "open_sweep", "failures", "parse_axis", "Sweep",
            "Gallery", "read", "sources", "Visit", "AttentionLayer", "Scan", "Preflight", "Finding", "Circuits",
            "AttentionCheck", "Bug",
            "Visibility", "hidden_patches", "visible_rows", "check_mask", "MaskOrName", "SerialExecutor",
            "softmax_of_gaussians",
            "Unit", "Study", "styled", "Patch", "Pruning", "Reproduction"}  # fmt: skip
"""Trained models, processes and folders, which have tests of their own; what the package itself makes."""
COMPLEX = {"spectrum", "top_singular", "schatten_norm", "trace_moments", "trace_of", "stable_rank", "effective_rank"}
"""What complex matrices are welcome to."""


def public():
    """Name -> callable, of the package, its rooms and the API reference; the shortest name first found."""
    found, seen = {}, set()
    for room in ROOMS:
        if room in NEED_TORCH and torch is None:
            continue
        module = import_module(f"bulkedge.{room}".rstrip("."))
        names = getattr(module, "__all__", None) or re.findall(
            r"^(?:def|class) ([a-zA-Z]\w*)", inspect.getsource(module), re.MULTILINE
        )
        for name in names:
            add(found, seen, f"{room}.{name}".lstrip("."), getattr(module, name))
    for path in re.findall(r"\.\. auto(?:class|function):: bulkedge\.(\S+)", "".join(
        page.read_text(encoding="utf-8") for page in sorted((Path(__file__).parents[1] / "docs").glob("api*.md"))
    )):  # fmt: skip
        home, _, name = path.rpartition(".")
        if home.split(".")[0] in NEED_TORCH and torch is None:
            continue
        try:
            each = getattr(import_module(f"bulkedge.{home}".rstrip(".")), name)
        except ImportError:  # a method of a class
            continue
        add(found, seen, path, each)
    return found


def add(found, seen, name, each):
    if inspect.isclass(each) and (issubclass(each, Exception) or inspect.isabstract(each) or hasattr(each, "_fields")):
        return
    if inspect.ismodule(each) or not callable(each) or id(each) in seen or not hasattr(each, "__qualname__"):
        return
    if name.rpartition(".")[2] in LEFT_OUT:
        return
    seen.add(id(each))
    found[name] = each


def fitted_shrinker():
    from bulkedge.inference.estimator import CovarianceShrinker

    return CovarianceShrinker().fit(array(30, 12))


RESULTS = {
    "Spectra", "Comparison", "Comparisons", "TopSingular", "Denoised", "Outcome", "Reproduction", "Origin", "Spike",
    "SingularSpike", "Outlier", "SingularOutlier", "OperatorErrors", "TableSpectrum", "Scales", "Alarm", "BooleanMask",
    "WindowMask", "FullMask", "Distribution", "Law", "Ensemble", "Operator", "Null", "Spectrum", "Mask", "Kinds",
    "Overlaps", "Program", "SkipIsometry", "TrainingCurves", "Population", "GoodnessOfFit", "Diagnosis",
}  # fmt: skip
"""Classes that functions return: their methods are called, not they."""
INSTANCES = {
    "Semicircle": lambda: LAW,
    "SoftmaxAttention": lambda: be.SoftmaxAttention(40, 64),
    "Spectrum": lambda: SPECTRUM,
    "Mask": lambda: be.Mask.causal(8),
    "Channel": lambda: be.heads.Channel.from_qk(array(40, 4), array(40, 4)),
    "ChannelLaw": lambda: be.heads.ChannelLaw.from_qk(array(40, 4), array(40, 4)),
    "CovarianceShrinker": fitted_shrinker,
    "atoms": lambda: be.EmpiricalLaw([1.0, 5.0]),
    "SkipIsometry": lambda: be.propagation.skip_isometry(4, 1.0),
    "Program": lambda: be.programs.attention_layer(np.eye(2), heads=1),
}


def given(name, function, owner=""):
    """The good arguments of a call, or None if it is left out; an unknown parameter raises KeyError."""
    keys = [key for key in FOR if f".{name}".endswith(f".{key}") or (owner and f".{owner}.".endswith(f".{key}"))]
    if any(FOR[key] is None for key in keys):
        return None
    own = {}
    for key in sorted(keys, key=lambda key: not key.endswith(".")):
        own |= FOR[key]
    arguments = {}
    for each in inspect.signature(function).parameters.values():
        if each.name in own:
            arguments[each.name] = own[each.name]
        elif each.default is inspect.Parameter.empty and each.kind != each.VAR_KEYWORD:
            arguments[each.name] = BY_NAME[each.name]
        elif each.kind is not each.VAR_KEYWORD:
            arguments[each.name] = lambda value=each.default: value
    arguments |= {key: own[key] for key in own.keys() & {"num_heads", "src"}}
    return {key: value for key, value in arguments.items() if value is not None}


def calls():  # noqa: C901 - classes, their methods, and what is missing
    """Name -> (callable, thunks of good arguments); the methods of a class once, of the first that has them."""
    found, seen, unknown = {}, set(), []
    for name, each in public().items():
        try:
            arguments = given(name, each) if name.rpartition(".")[2] not in RESULTS else None
        except KeyError as missing:
            unknown.append(f"{name}: {missing}")
            continue
        if arguments is not None and inspect.signature(each).parameters:
            found[name] = (each, arguments)
        if inspect.isclass(each):
            make = INSTANCES.get(name.rpartition(".")[2]) or (
                (lambda each=each, a=arguments: invoke(each, {k: v() for k, v in a.items()})) if arguments else None
            )
            for key, method in methods(each):
                bound = None
                if id(getattr(method, "__func__", method)) in seen:
                    continue
                if not inspect.ismethod(method):
                    if make is None:
                        continue
                    bound = getattr(make(), key)
                seen.add(id(getattr(method, "__func__", method)))
                try:
                    arguments_of = given(f"{name}.{key}", bound or method, name)
                except KeyError as missing:
                    unknown.append(f"{name}.{key}: {missing}")
                    continue
                if arguments_of:
                    found[f"{name}.{key}"] = (bound or method, arguments_of)
    for key in ("pdf", "cdf", "ppf", "rvs", "moment", "cauchy", "inverse_cauchy", "spike", "spikes", "scaled"):
        method = getattr(INSTANCES["atoms"](), key)
        found[f"atoms.{key}"] = (method, given(f"atoms.{key}", method))
    assert not unknown, "tests/calls.py needs good arguments, in BY_NAME or FOR, of\n" + "\n".join(unknown)
    return found


def methods(cls):
    """Public methods of a class of the package that take arguments."""
    for key, each in inspect.getmembers(cls):
        if key.startswith("_") or not (inspect.isfunction(each) or inspect.ismethod(each)):
            continue
        if not (each.__module__ or "").startswith("bulkedge"):
            continue
        if [one for one in inspect.signature(each).parameters if one != "self"]:
            yield key, each


def invoke(function, arguments):
    """Call with keywords; what a star collects, or what is positional only, by position."""
    parameters = inspect.signature(function).parameters.values()
    starred = [each.name for each in parameters if each.kind is each.VAR_POSITIONAL]
    if starred:
        before = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        values = [arguments.pop(name) for name in [*before, *starred] if name in arguments]
        return function(*values, **arguments)
    return function(**arguments)


def variants(value):
    """What a good array or tensor may be replaced by: label -> (value, whether it holds the same numbers)."""
    if torch is not None and isinstance(value, torch.Tensor) and value.is_floating_point():
        holed = value.clone()
        holed.view(-1)[0] = float("nan")
        return {
            "with a nan": (holed, False),
            "complex": (value + 1j, False),
            "integers": (value.long(), False),
            "a row less": (value[..., 1:, :] if value.dim() > 1 else value[1:], False),
            "an axis more": (value[None], False),
            "an array": (value.numpy(), False),
            "bfloat16 of its own": (value.to(torch.bfloat16), False),
            "float16": (value.to(torch.float16), False),
            "float64": (value.double(), False),
            "with a gradient": (value.clone().requires_grad_(), True),
        }
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        value = np.array(value)
    if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind != "f":
        return {}
    holed = value.copy()
    holed.flat[0] = np.nan
    hidden = np.ma.masked_array(value, np.zeros(value.shape, dtype=bool))
    hidden.mask.flat[0] = True
    found = {
        "with a nan": (holed, False),
        "complex": (value * (1 + 1j), False),
        "with a mask": (hidden, False),
        "a row less": (value[1:], False),
        "an axis more": (value[None], False),
        "objects": (value.astype(object), False),
        "texts": (value.astype(str), False),
        "half precision": (value.astype(np.float16), True),
        "in a list": (value.tolist(), True),
        "big-endian": (value.astype(">f8"), True),
    }
    if torch is not None:
        found["a tensor with a gradient"] = (torch.tensor(value, requires_grad=True), True)
    return found


def numbers(result):
    """All numbers in a result, flat."""
    if torch is not None and isinstance(result, torch.Tensor):
        if not result.is_floating_point():
            return np.zeros(0)
        result = result.detach().double().numpy() if result.device.type != "meta" else np.zeros(0)
    if isinstance(result, be.Spectrum):
        result = result.values
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        parts = [numbers(each) for each in result]
        return np.concatenate(parts) if parts else np.zeros(0)
    if isinstance(result, bool | str) or result is None:
        return np.zeros(0)
    if isinstance(result, int | float | np.floating) or (isinstance(result, np.ndarray) and result.dtype.kind == "f"):
        return np.asarray(result, dtype=float).ravel()
    return np.zeros(0)


class TooLongError(Exception):
    """A call that did not come back."""


def stop(*_):
    raise TooLongError(f"no answer in {LIMIT} s")


def outcome(function, arguments, name):
    """``(returned, result)``, ``(clear, None)``, or what is wrong with the error."""
    given_name = name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT)
        try:
            result = invoke(function, dict(arguments))
        except be.BulkedgeError as error:
            named = given_name in str(error)
            return ("clear" if named else f"vague {type(error).__name__}: {error}"), None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            return f"unclear {type(error).__name__}: {error}", None
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, old)
    ours = (be.RegimeWarning, be.AccuracyWarning)
    wild = [
        each for each in caught if issubclass(each.category, RuntimeWarning) and not issubclass(each.category, ours)
    ]
    if wild:
        return f"unclear warning: {wild[0].message}", None
    return ("warned" if caught else "returned"), result


def trials(function, arguments, name):
    """Label -> (replacement, whether the answer must be the same, whether it is finite), of one argument."""
    found = {label: (value, False) for label, value in GARBAGE.items()}
    return found | variants(arguments[name]())


def finite(value):
    try:
        return (
            bool(np.all(np.isfinite(np.asarray(value, dtype=float))))
            and np.max(np.abs(np.asarray(value, dtype=float)), initial=0) < 1e100
        )
    except Exception:  # noqa: BLE001
        return False


def survey(every=1, start=0, only=None):
    """Counts of outcomes over all calls, arguments and replacements, or every so-many-th; the findings are listed."""
    counts, findings, number = Counter(), [], start
    for target, (function, thunks) in calls().items():
        if only is not None and target not in only:
            continue
        good, expected = outcome(function, {key: make() for key, make in thunks.items()}, "?")
        if target.rpartition(".")[2] not in FAILS:
            assert good in ("returned", "warned"), f"tests/calls.py needs good arguments of {target}: {good}"
        same = numbers(expected)
        for name in [each for each in thunks if each != "src"]:
            for label, (value, alike) in trials(function, thunks, name).items():
                number += 1
                if number % every:
                    continue
                arguments = {key: make() for key, make in thunks.items()} | {name: value}
                found, result = outcome(function, arguments, name)
                if found == good != "returned":  # what fails for other reasons, as it does with good arguments
                    found = "returned"
                elif found in ("returned", "warned"):
                    found = silent(target, label, value, alike, result, same, found == "warned") or "returned"
                counts[found.split(" ")[0]] += 1
                if not found.startswith(("clear", "returned")):
                    findings.append(f"{target}({name}={label}): {found[:150]}")
    return counts, findings


def silent(target, label, value, alike, result, same, warned):  # noqa: PLR0913, PLR0917 - of one trial
    """What is wrong with an answer that came without an error; empty if nothing is."""
    got = numbers(result)
    if label == "with a mask":
        return "silent: the mask is ignored"
    if (
        label == "complex"
        and isinstance(value, np.ndarray)
        and got.size != 0
        and target.rpartition(".")[2] not in COMPLEX
        and not target.endswith("cauchy")
    ):
        return "silent: the imaginary part is ignored"
    lost = np.isnan(got).any() and not np.isnan(same).any() and not target.endswith(("ppf", "isf", "score_scales"))
    if lost and not warned and finite(value):
        return "silent: nan"
    if alike and got.shape == same.shape and not np.allclose(got, same, rtol=1e-3, atol=1e-3, equal_nan=True):
        return f"silent: {got[:3]} for {same[:3]}"
    if alike and got.shape != same.shape:
        return f"silent: shape {got.shape} for {same.shape}"
    return ""
