"""Every study of the package runs, records what made it, draws, and can be refuted."""

import json
import math
from dataclasses import MISSING

import numpy as np
import pytest
from matplotlib.figure import Figure
from toys import Toy

from bulkedge.domains import parameters
from bulkedge.studies.base import find, ready, studies
from bulkedge.studies.claims import Claim
from bulkedge.studies.laws.transition import Transition
from bulkedge.version import __version__

SMALL = {
    "equivalence/breakdown": {"tokens": 200, "head_dim": 200, "steps": 6},
    "equivalence/bulk": {"tokens": 200, "head_dim": 200},
    "equivalence/causal": {"tokens": 200, "head_dims": (32, 4096)},
    "equivalence/coefficients": {"steps": 6, "samples": 20_000},
    "equivalence/context": {"largest": 256},
    "equivalence/finite-head": {"tokens": (256,), "head_dims": (32,)},
    "equivalence/inputs": {"tokens": 200, "head_dim": 100, "ratios": (0.5, 1.0), "betas": (0.5,)},
    "equivalence/normaliser": {"sizes": 3},
    "equivalence/outliers": {"tokens": 200, "betas": (1.0, 1.2)},
    "equivalence/poisson": {"tokens": 200, "head_dim": 200},
    "equivalence/taylor": {"tokens": 150},
    "equivalence/top": {"tokens": 200, "head_dim": 200},
    "laws/bulk": {"size": 120},
    "laws/edge": {"size": 50, "draws": 500},
    "laws/transition": {"size": 100, "draws": 4},
    "propagation/all-outliers": {"tokens": 80, "depth": 3},
    "propagation/gradients": {"sizes": (16, 32), "depths": (1, 2), "tokens": 24, "deepest": 4},
    "propagation/jacobian": {"tokens": 40, "depth": 2, "ratios": (0.5, 1.0)},
    "propagation/kernel": {"tokens": 60, "depth": 2},
    "propagation/outliers": {"tokens": 120, "draws": 2},
    "propagation/rank-collapse": {"sizes": (32, 64, 96, 144), "draws": 100, "tokens": 48, "depth": 4},
    "propagation/plateau": {"tokens": 16, "repeats": 12},
    "propagation/real-task": {"context": 16, "steps": 15, "seeds": 6},
    "propagation/scaling": {"sizes": (32, 64, 128), "tokens": 60, "depth": 4},
    "propagation/spectrum": {"tokens": 200},
    "propagation/trainability": {"tokens": 32, "betas": (0.5, 1.5, 3.0), "skips": (0.0, 0.5, 0.85)},
    "propagation/training": {"tokens": 12, "steps": 40, "repeats": 8, "rates": (0.03, 0.1)},
    "propagation/upscaled-skip": {"tokens": 12, "steps": 40, "repeats": 12},
    "recovery/alignment": {"dim": 80, "vocab": 160, "samples": 240, "signals": 6},
    "recovery/bulk": {"dim": 150, "vocab": 300, "samples": 450},
    "recovery/classification": {"dim": 40, "vocab": 80, "samples": 160, "signals": 3, "draws": 3},
    "recovery/embeddings": {"dim": 60, "vocab": 2000},
    "recovery/finite-table": {"dim": 80, "ratios": (0.5, 2.0)},
    "recovery/harmonic": {"dims": (50, 100, 200), "sequences": 2000},
    "recovery/mean-spike": {"dim": 80, "vocab": 160, "samples": 240, "signals": 6},
    "recovery/phase-diagram": {"resolution": 50, "dim": 100},
    "recovery/thresholds": {"sequences": 2000},
    "width/activations": {"draws": 200, "activations": ("clip", "gelu")},
    "width/depth": {"draws": 150, "depth": 3},
    "width/distribution": {"draws": 1500, "heads": (1, 2)},
    "width/head-dim": {"draws": 5000, "head_dims": (4, 8)},
    "width/heads": {"draws": 1000, "heads": (1, 4)},
    "width/kl-decay": {"draws": 20_000, "widths": (4, 6, 8)},
    "width/scaling": {"draws": 500, "widths": (16, 64)},
    "width/tails": {"draws": 2000},
}
"""Sizes at which a study runs in about a second; a new study needs an entry."""


@pytest.mark.parametrize("name", studies())
def test_study(name):
    if missing := studies()[name].missing():
        pytest.skip(f"needs {' and '.join(missing)}")
    study = studies()[name].preset(**SMALL[name])
    data = study.simulate(seed=5)
    assert data.attrs["study"] == name
    assert json.loads(data.attrs["parameters"]) == json.loads(json.dumps(study.parameters()))
    assert (data.attrs["seed"], data.attrs["bulkedge"]) == (5, __version__)
    assert data.identical(study.simulate(seed=5))
    assert_shows_its_data(study.plot(data))
    claims = study.claims(data)
    assert claims
    assert [claim.statement for claim in claims if not claim.holds] == []
    assert len({claim.statement for claim in claims}) == len(claims)


def assert_shows_its_data(figure):
    """Every panel has something in it, and at least a quarter of every line within its limits."""
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    for axes in [each for each in figure.axes if each.axison and each.get_visible()]:
        drawn = [*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.containers]
        assert drawn, axes.get_title()
        for line in axes.lines:
            x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
            if line.get_transform() != axes.transData or len(x) < 3:
                continue  # lines across the panel are not data
            (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
            known = np.isfinite(x) & np.isfinite(y)
            seen = (x >= left) & (x <= right) & (y >= low) & (y <= high)
            assert np.sum(seen[known]) >= 0.25 * np.sum(known), f"{axes.get_title()}: {line.get_label()}"


@pytest.mark.parametrize("name", studies())
def test_both_presets_are_valid_and_documented(name):
    family = studies()[name]
    assert family.summary().endswith(".")
    assert any(each.paper is not MISSING for each in parameters(family))
    assert family.preset("paper") != family.preset("quick")


def test_a_wrong_dataset_is_refuted():
    study = Transition(size=100, draws=4)
    data = study.simulate(0)
    data["location"] = 1.2 * data.location
    failed = [claim.statement for claim in study.claims(data) if not claim.holds]
    assert failed == [f"{model}: mean largest eigenvalue above 1.3 thresholds" for model in ("wigner", "covariance")]


def test_find():
    assert [study.name() for study in find("")] == list(studies())
    assert find("laws/edge") == [studies()["laws/edge"]]
    assert [study.name() for study in find("laws")] == [name for name in studies() if name.startswith("laws/")]
    with pytest.raises(ValueError, match="study = 'lows' is unknown; there are equivalence/breakdown"):
        find("lows")


def test_studies_that_lack_a_package_are_left_out_and_said_to_be(monkeypatch):
    monkeypatch.setattr(studies()["laws/edge"], "requires", ("no_such_package",))
    chosen, sentences = ready("laws")
    assert [study.name() for study in chosen] == ["laws/bulk", "laws/transition"]
    assert sentences == ["laws/edge: not without no_such_package (pip install 'bulkedge[no_such_package]')"]
    with pytest.raises(ValueError, match="laws/edge: not without no_such_package"):
        ready("laws/edge")
    assert "laws/edge" in studies()


def test_presets():
    assert Toy.preset("paper").rate == 2.0
    assert Toy.preset("paper", rate=3, size=7) == Toy(rate=3.0, size=7)
    assert Toy.name() == "toys.Toy"


@pytest.mark.parametrize(
    ("relation", "measured", "holds"),
    [
        ("=", 1.05, True),
        ("=", 0.95, True),
        ("=", 1.2, False),
        ("=", math.nan, False),
        ("<=", 0.0, True),
        ("<=", 1.05, True),
        ("<=", 1.2, False),
        ("<=", math.nan, False),
        (">=", 2.0, True),
        (">=", 0.95, True),
        (">=", 0.8, False),
        (">=", math.nan, False),
    ],
)
def test_verdicts(relation, measured, holds):
    claim = Claim("s", "p", 1.0, np.float64(measured), 0.0, 0.1, "r", relation)
    assert claim.holds is holds
    assert claim.record()["holds"] is holds
