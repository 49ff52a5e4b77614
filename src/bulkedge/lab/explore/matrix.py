"""What the page *your matrix* says of a file, or of a head of the embedded model: laws it may have, and outliers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bulkedge.lab.explore.curves import Curve, Panel
from bulkedge.lab.explore.fitting import Fit, fit
from bulkedge.lab.explore.uploads import matrix
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError
from bulkedge.version import __version__

NAME, TITLE = "matrix", "Your matrix"
SHOWS = "Which law a matrix looks like, how far it is from it, and which of its singular values stand out."
NOT_CLAIMED = "The nearest of a few laws need not be the right one: the distance says how near it is."
TOKENS = 256
LAYERS, HEADS = Integers(0, 2), Integers(0, 3)
"""Layers and heads of the embedded model."""


class Report(NamedTuple):
    """What a page shows of a fit: laws as curves, because laws themselves stay in the process that made them."""

    facts: dict[str, str]
    note: str
    laws: list[tuple[str, str]]
    outliers: list[tuple[str, str]]
    values: Any
    panels: list[Panel]
    curves: list[Curve]


def reported(found: Fit) -> Report:
    """A fit in numbers and words."""
    facts = {"kind": str(found.kind)}
    if np.isfinite(found.beta):
        told = f"{found.head_dim:.0f}" if np.isfinite(found.head_dim) else "not told from independent scores"
        facts |= {"β": f"{found.beta:.3f}", "dimension": told}
    laws = [(each.name, f"{each.distance:.3f}") for each in found.candidates]
    least = found.candidates[0].least if found.candidates else 0.0
    beyond = [(f"{each.value:.4g}", p_text(each.p_value, least)) for each in found.outliers]
    return Report(facts, found.note, laws, beyond, found.values, *curves_of(found))


def fit_file(name: str, data: bytes, tensor: str | None) -> Report:
    """Read a matrix of a file and fit it."""
    return reported(fit(matrix(name, data, tensor)))


@lru_cache(maxsize=1)
def decoder_attention() -> Any:
    """Attention of the embedded decoder on the opening of a book; it is trained when it is first asked for."""
    import torch

    from bulkedge.models.loading.default import default_model
    from bulkedge.models.loading.packaged import sample_text

    model, tokenizer = default_model()
    model.set_attn_implementation("eager")
    ids = torch.tensor([tokenizer(sample_text("alice")[:TOKENS])["input_ids"]])  # a letter is a token
    with torch.no_grad():
        found = model(ids, output_attentions=True).attentions
    return torch.cat(found).double().numpy()


def fit_head(layer: int, head: int) -> Report:
    """Fit the attention of a head of the embedded decoder."""
    return reported(fit(decoder_attention()[LAYERS.check("layer", layer), HEADS.check("head", head)]))


def curves_of(found: Fit) -> tuple[list[Panel], list[Curve]]:
    """The values of a matrix beside its two nearest laws."""
    values = np.maximum(found.values, 1e-9)
    low = max(float(np.quantile(values, 0.02)), 1e-6)
    high = max(values[-1], 2 * low)  # all values of a constant matrix are zero
    ends = np.geomspace(low, 1.05 * high, 61)
    heights = np.histogram(values, ends)[0] / (len(values) * np.diff(np.log(ends)))
    curves = [Curve("the matrix", ends, heights, look="simulation", shape="bars")]
    x = np.geomspace(low, 1.05 * high, 400)
    looks: tuple[Any, ...] = ("theory", "rival")
    for candidate, look in zip(found.candidates, looks, strict=False):
        curves.append(Curve(f"{candidate.name} ({candidate.distance:.3f})", x, x * candidate.law.pdf(x), look=look))
    curves += [Curve("outlier", each.value, look="mark", shape="mark") for each in found.outliers]
    label = f"squared singular value of {found.matrix}"
    return [Panel("Density, by the logarithm of the value", label, "x · density(x)", "x")], curves


def p_text(p: float, least: float = 0.0) -> str:
    """A p-value in words.

    Examples
    --------
    >>> p_text(0.0123), p_text(0.0), p_text(float("nan")), p_text(0.05, 0.05)
    ('0.012', 'below 1e-15', 'not known for this law', 'at most 0.05: none of 19 fresh heads reaches as far')
    """
    if np.isnan(p):
        return "not known for this law"
    if least:
        draws = round(1 / least) - 1
        return f"at most {p:.2g}: none of {draws} fresh heads reaches as far" if p <= least else f"{p:.2g}"
    return "below 1e-15" if p < 1e-15 else f"{p:.2g}"


def script(source: str) -> str:
    """A program that fits the same matrix."""
    return f'''"""{TITLE}: {SHOWS}

{NOT_CLAIMED} Made by bulkedge {__version__}.
"""

{source}
from bulkedge.lab.explore.curves import save
from bulkedge.lab.explore.fitting import fit
from bulkedge.lab.explore.matrix import curves_of

found = fit(matrix)
print(found.note)
for candidate in found.candidates:
    print(f"{{candidate.distance:.3f}}  {{candidate.name}}  {{candidate.law}}")
for outlier in found.outliers:
    print(f"{{outlier.value:.4g}}  p = {{outlier.p_value:.2g}}")
save("matrix.png", *curves_of(found))
'''


def loading(name: str, tensor: str | None) -> str:
    """Python that reads a file again, from the folder it is in; names are written as Python writes them."""
    if len(name) > 200 or (tensor is not None and len(tensor) > 500):
        raise DomainError("the name of the file or of the tensor is too long")
    return (
        "from pathlib import Path\n\nfrom bulkedge.lab.explore.uploads import matrix as read\n\n"
        f"matrix = read({name!r}, Path({name!r}).read_bytes(), {tensor!r})"
    )
