"""The page *your matrix*: a matrix of a file or a head of the embedded model, and what it looks like."""

from __future__ import annotations

import re
from base64 import b64decode
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bulkedge.inference.diagnosis import Diagnosis, diagnose
from bulkedge.lab.explore.room import Panel, Trace
from bulkedge.lab.matrix_files import PAGE, read_matrix
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError

NAME, TITLE = "matrix", "Your matrix"
SHOWS = "Which law a matrix looks like, how far it is from it, and which of its singular values stand out."
NOT_CLAIMED = "The nearest of a few laws need not be the right one: the distance says how near it is."
LETTERS = 256  # letters of a book that the embedded model reads; a letter is a token
LAYERS, HEADS = Integers(0, 2), Integers(0, 3)  # layers and heads of the embedded model


class Report(NamedTuple):
    """What a page shows of a fit: laws as curves, because laws themselves stay in the process that made them."""

    facts: dict[str, str]
    note: str
    laws: list[tuple[str, str]]
    outliers: list[tuple[str, str]]
    values: Any
    panels: list[Panel]
    curves: list[Trace]


def report_fit(found: Diagnosis) -> Report:
    """A fit in numbers and words."""
    facts = {"kind": str(found.kind)}
    if np.isfinite(found.beta):
        told = f"{found.head_dim:.0f}" if np.isfinite(found.head_dim) else "like that of independent scores"
        facts |= {"β": f"{found.beta:.3f}", "dimension": told}
    if np.isfinite(found.noise):
        facts["noise of an entry"] = f"{found.noise:.4g}"
    if found.fit is not None:
        facts["p of the whole fit"] = f"{found.fit.value:.2g}"
    laws = [(each.name, f"{each.distance:.3f}") for each in found.candidates]
    least = found.candidates[0].least if found.candidates else 0.0
    beyond = [(f"{each.value:.4g}", p_text(each.p_value, least)) for each in found.outliers]
    return Report(facts, found.verdict, laws, beyond, found.values, *curves_of(found))


def fit_file(name: str, data: bytes, tensor: str | None) -> Report:
    """Read a matrix of a file and fit it."""
    return report_fit(diagnose(read_matrix(name, data, tensor)))


@lru_cache(maxsize=1)
def decoder_attention() -> Any:
    """Attention of the embedded decoder on the opening of a book; it is trained when it is first asked for."""
    import torch

    from bulkedge.models.loading.default import default_model
    from bulkedge.models.loading.packaged import sample_text

    model, tokenizer = default_model()
    model.set_attn_implementation("eager")
    ids = torch.tensor([tokenizer(sample_text("alice")[:LETTERS])["input_ids"]])
    with torch.no_grad():
        found = model(ids, output_attentions=True).attentions
    return torch.cat(found).double().numpy()


def fit_head(layer: int, head: int) -> Report:
    """Fit the attention of a head of the embedded decoder."""
    return report_fit(diagnose(decoder_attention()[LAYERS.check("layer", layer), HEADS.check("head", head)]))


def curves_of(found: Diagnosis) -> tuple[list[Panel], list[Trace]]:
    """The values of a matrix beside its two nearest laws."""
    signed = found.kind == "symmetric matrix"
    values = found.values if signed else np.maximum(found.values, 1e-9)
    if signed:
        ends, x = (np.linspace(1.05 * values[0], 1.05 * values[-1], count) for count in (61, 400))
        weight, widths = np.ones(400), np.diff(ends)
    else:
        low = max(float(np.quantile(values, 0.02)), 1e-6)
        high = max(values[-1], 2 * low)  # all values of a constant matrix are zero
        ends, x = (np.geomspace(low, 1.05 * high, count) for count in (61, 400))
        weight, widths = x, np.diff(np.log(ends))
    heights = np.histogram(values, ends)[0] / (len(values) * widths)
    curves = [Trace("the matrix", ends, heights, look="simulation", shape="bars")]
    looks: tuple[Any, ...] = ("theory", "rival")
    for candidate, look in zip(found.candidates, looks, strict=False):
        density = weight * candidate.law.pdf(x)
        curves.append(Trace(f"{candidate.name} ({candidate.distance:.3f})", x, density, look=look))
    curves += [Trace("outlier", each.value, look="mark", shape="mark") for each in found.outliers]
    label = f"{str(found.unit)[:-1]} of {found.matrix}"
    if signed:
        return [Panel("Density", label, "density(x)", "")], curves
    return [Panel("Density, by the logarithm of the value", label, "x · density(x)", "x")], curves


def p_text(p: float, least: float = 0.0) -> str:
    """A p-value in words.

    >>> p_text(0.0123), p_text(0.0), p_text(float("nan")), p_text(0.05, 0.05)
    ('0.012', 'below 1e-15', 'not known for this law', 'at most 0.05: none of 19 fresh heads reaches as far')
    """
    if np.isnan(p):
        return "not known for this law"
    if least and p <= least:
        return f"at most {p:.2g}: none of {round(1 / least) - 1} fresh heads reaches as far"
    return "below 1e-15" if p < 1e-15 else f"{p:.2g}"


def script(source: str) -> str:
    """About ten lines of Python that diagnose the same matrix."""
    return f"""{source}

import bulkedge as be

found = be.diagnose(matrix)
print(found.verdict)
for candidate in found.candidates:
    print(f"{{candidate.distance:.3f}}  {{candidate.name}}")
for outlier in found.outliers:
    print(f"{{outlier.value:.4g}}  p = {{outlier.p_value:.2g}}")
found.plot().figure.savefig("matrix.png")
"""


def loading_code(name: str, tensor: str | None) -> str:
    """Python that reads a file again, from the folder it is in; names are written as Python writes them."""
    if len(name) > 200 or (tensor is not None and len(tensor) > 500):
        raise DomainError("the name of the file or of the tensor is too long")
    stack = re.fullmatch(re.escape(name) + r"(\[[0-9, ]+\])?", tensor or name)
    if name.lower().endswith(".npy") and stack:
        return f"import numpy as np\n\nmatrix = np.load({name!r}){stack[1] or ''}"
    return (
        "from pathlib import Path\n\nfrom bulkedge.lab.matrix_files import read_matrix\n\n"
        f"matrix = read_matrix({name!r}, Path({name!r}).read_bytes(), {tensor!r})"
    )


def content(sent: str) -> bytes:
    """The bytes of a file as a browser sends it."""
    _, _, text = sent.partition(",")
    if len(text) > PAGE.bytes * 4 / 3 + 8:
        raise DomainError(f"the file is larger than {PAGE.bytes >> 20} MB: send a slice of it")
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise DomainError("the file did not arrive whole: send it again") from error
