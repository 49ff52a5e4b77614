"""What several studies of real heads share: where large matrices are drawn and decomposed; the bulk of causal heads."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.claims import Claim, Rival, share
from bulkedge.lab.studies.equivalence.setting import UNKNOWN
from bulkedge.laws.units import Unit
from bulkedge.spectra import Spectrum

LARGE = 4096
"""Tokens from which on a GPU is worth the import of torch."""


def generator(rng: np.random.Generator, tokens: int) -> Any:
    """A generator for attention of so many tokens: on the GPU, if they are many and there is one, else as it came."""
    if tokens < LARGE or find_spec("torch") is None:
        return rng
    import torch

    if not torch.cuda.is_available():
        return rng
    return torch.Generator("cuda").manual_seed(int(rng.integers(2**62)))


def squared_values(model: SoftmaxAttention, source: Any) -> Spectrum:
    """The spectrum of a draw of attention without its mean."""
    if isinstance(source, np.random.Generator):
        return model.spectrum(source)
    import torch

    weights = model.sample(source)
    rest = model.tokens**0.5 * (weights - model.mask.mean(weights))
    values = torch.linalg.eigvalsh(rest @ rest.mT).clamp(min=0)
    return Spectrum.of(
        values.cpu().numpy(), unit=Unit.SQUARED, rounding=model.tokens**0.5 * 2e-16 * float(values.max())
    )


def causal_bulk(data: xr.Dataset, tokens: int, heads: str) -> list[Claim]:
    """Claims on the bulk of causal heads, against independent scores and against the head without a mask."""
    claims, levels = [], data.level.values
    for name, rival in (("the law of independent scores", "rival"), ("the head without a mask", "unmasked")):
        direction = data[rival].values - levels
        claims.append(
            Claim(
                statement=f"share of {name} in the bulk of {heads}",
                place="ours",
                measured=share(data.mass, levels, data[rival].values),
                predicted=0.0,
                rival=Rival(name, 1.0),
                finite_size=UNKNOWN / tokens * float(np.abs(direction).sum() / (direction @ direction)),
                reason="rank of what no law knows over T: the zero of the constant vector, and the first rows",
            )
        )
    return claims
