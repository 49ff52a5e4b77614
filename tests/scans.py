"""Made-up scans with every variable of a real one, of any size, for tests of what is done with them."""

import numpy as np
import xarray as xr

KINDS = (
    "collapsed",
    "sink",
    "fixed columns",
    "offset",
    "local",
    "same token",
    "low-rank content",
    "content",
    "random spectrum",
)
SHARES = ("largest", "sink_mass", "offset_mass", "near_mass", "same_token_mass", "column_energy", "gap", "evenness")
POSITIVE = {
    "beta": 1.5,
    "beta_without_sink": 1.2,
    "entropy": 3.0,
    "stable_rank": 12.0,
    "effective_rank": 60.0,
    "s1": 1.6,
    "coupling": 0.3,
    "effective_dim": 9.0,
    "predicted_entropy": 3.1,
    "distance": 0.08,
    "null_distance": 0.03,
    "output": 0.05,
    "variation": 0.04,
    "output_error": 0.003,
    "variation_error": 0.003,
}
TESTED = ("beta", "entropy", "largest", "offset_mass", "near_mass", "column_energy", "stable_rank", "effective_rank")
LEVELS = (np.arange(33) + 0.5) / 33


def made_up_scan(  # noqa: PLR0913
    layers=6, heads=12, texts=1, draws=19, *, probe=True, seed=0, model="made-up", titles=None
):
    """Numbers in the ranges of a trained decoder's; nothing in them is a measurement."""
    rng = np.random.default_rng(seed)
    shape = texts, layers * heads
    layer = np.repeat(np.arange(layers), heads)
    data = xr.Dataset(
        {
            **numbers(rng, shape),
            **nulls(rng, shape, draws),
            **by_kind(rng, shape[1], probe=probe),
            **spectra(rng, shape, draws),
        },
        coords={
            "layer": ("item", layer),
            "head": ("item", np.tile(np.arange(heads), layers)),
            "module": ("item", [f"model.layers.{each}.self_attn" for each in layer]),
            "title": ("text", titles or [f"text {number}" for number in range(texts)]),
            "module_name": ("layer_index", [f"model.layers.{each}.self_attn" for each in range(layers)]),
            "level": LEVELS,
            "factor": [2, 8, 32],
        },
        attrs={
            "model": model,
            "tokens": 512,
            "draws": draws,
            "version": "0.1",
            "architecture": "Made<Up>ForCausalLM",
            "causal": 1,
        },
    )
    data["picture"] = ("item", "row", "column"), pictures(rng, data["kind"].values)
    depth = np.arange(layers) / layers
    data["token_stable_rank"] = ("text", "layer_index"), 40 * np.exp(-3 * depth) + rng.random((texts, layers))
    data["token_cosine"] = ("text", "layer_index"), 0.1 + 0.7 * depth + 0.05 * rng.random((texts, layers))
    longer = data["entropy"].values[0][:, None] + 0.8 * np.log([2, 8, 32])
    data["longer_entropy"] = ("item", "factor"), longer
    data["scale"] = ("item", "factor"), 1 + rng.random((shape[1], 1)) * np.log([2, 8, 32]) / 10
    return data


def numbers(rng, shape):
    found = {name: scale * rng.lognormal(0, 0.5, shape[1]) for name, scale in POSITIVE.items()}
    found |= {name: rng.beta(0.7, 2, shape[1]) for name in SHARES}
    noise = rng.lognormal(0, 0.02, shape)
    found = {name: (("text", "item"), values * noise) for name, values in found.items()}
    found["near_mass"] = found["near_mass"][0], found["near_mass"][1] - 0.1
    found["popularity_correlation"] = ("text", "item"), rng.uniform(-0.2, 1, shape)
    found["offset"] = ("text", "item"), -rng.geometric(0.3, shape).astype(float)
    found["sink_count"] = ("text", "item"), rng.integers(0, 3, shape).astype(float)
    found["sink_position"] = ("text", "item"), np.where(found["sink_count"][1] > 0, rng.integers(0, 9, shape), -1.0)
    found["coupling"][1][:, ::7] = np.nan  # heads that the channel does not describe
    return found


def nulls(rng, shape, draws):
    def values(low, high):
        return ("text", "item"), rng.uniform(low, high, shape) if draws else np.full(shape, np.nan)

    found = {f"p_{name}": values(0.001, 1) for name in (*TESTED, "spectrum")}
    found |= {f"null_{name}": values(0.5, 3) for name in TESTED}
    return found | {"p": values(0.0005, 1), "q": values(0.01, 1)}


def by_kind(rng, items, *, probe):
    kind = rng.choice(KINDS, items, p=(0.05, 0.2, 0.15, 0.1, 0.15, 0.05, 0.1, 0.1, 0.1))
    second = rng.choice(KINDS, items)
    kinds = [
        one if rng.random() < 0.6 or one == two else f"{one}, {two}" for one, two in zip(kind, second, strict=True)
    ]
    found = {"kind": ("item", kind.astype(object)), "kinds": ("item", np.array(kinds, dtype=object))}
    for name in KINDS:
        found[f"score_{name}"] = "item", np.where(kind == name, rng.uniform(0.6, 1, items), rng.uniform(0, 0.5, items))
    found["agreement"] = "item", rng.choice([1 / 3, 2 / 3, 1.0], items)
    for name in ("induction", "duplicate", "previous"):
        found[name] = "item", rng.beta(0.3, 3, items) if probe else np.full(items, np.nan)
    return found


def spectra(rng, shape, draws):
    """Quantiles that fall over three decades, and a band around a curve of the same shape."""
    curve = np.exp(-7 * (1 - LEVELS)) * np.ones((*shape, 1))
    own = curve ** rng.uniform(0.6, 1.5, (shape[1], 1)) * rng.lognormal(0, 0.05, (*shape, 1))
    band = {"null_low": 0.8 * curve, "null_middle": curve, "null_high": 1.25 * curve}
    if not draws:
        band = {name: np.full_like(values, np.nan) for name, values in band.items()}
    return {name: (("text", "item", "level"), values) for name, values in {"spectrum": own, **band}.items()}


def pictures(rng, kinds, side=48):
    """Causal attention of every kind, square-root scale."""
    rows, columns = np.indices((side, side))
    seen = columns <= rows
    drawn = {
        "collapsed": np.ones((side, side)),
        "sink": np.where(columns == 0, 40.0, 1),
        "fixed columns": np.where(columns % 7 == 2, 20.0, 1),
        "offset": np.where(rows - columns == 1, 60.0, 1),
        "local": np.exp(-np.abs(rows - columns) / 3.0) * 30,
    }
    images = np.empty((len(kinds), side, side), dtype=np.uint8)
    for number, kind in enumerate(kinds):
        weights = drawn.get(kind, 1.0) * rng.lognormal(0, 0.3 if kind in drawn else 1.5, (side, side)) * seen
        weights = np.sqrt(weights / weights.sum(1, keepdims=True))
        images[number] = np.rint(255 * weights / weights.max())
    return images
