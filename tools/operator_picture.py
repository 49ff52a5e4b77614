"""Draw docs/images/products.png: the longest spectrum that a GPU has measured from products, on its law.

The numbers are those of ``docs/benchmarks/operator_gpu.json``, which ``python -m benchmarks.operator_gpu --json``
writes.
"""

import json
from pathlib import Path

import numpy as np

import bulkedge as be
from bulkedge.plots.style import panels, styled

DOCS = Path(__file__).parents[1] / "docs"
HEAD_DIM = 64


def main() -> None:
    """Read, draw and write."""
    lines = json.loads((DOCS / "benchmarks/operator_gpu.json").read_text())["spectra"]
    line = max((each for each in lines if each["kind"] == "full"), key=lambda each: each["tokens"])
    tokens, floor = line["tokens"], line["told apart from"]
    values = np.array(line["quantiles"])
    levels = (np.arange(len(values)) + 0.5) / len(values)
    law = be.FiniteHeadLaw(beta=1.0, head_dim=HEAD_DIM, tokens=tokens)
    rival = be.MarchenkoPastur(1.0, law.mean())
    x = np.geomspace(floor / 30, 2 * values[-1], 400)
    with styled():
        figure, axes = panels(1, 1, height=3.2)
        axis = axes[0, 0]
        figure.set_size_inches(6.6, 3.3)
        told = values >= floor
        axis.plot(values[told], levels[told], "o", markersize=2.5, color="black", label="measured, from products alone")
        axis.plot(x, law.cdf(x), color="#0072B2", label=f"FiniteHeadLaw: {line['distance to law']:.3f} away")
        away = line["distance to Marchenko-Pastur"]
        axis.plot(x, rival.cdf(x), "--", color="#D55E00", label=f"Marchenko–Pastur: {away:.2f} away")
        axis.axvspan(x[0], floor, color="0.92", zorder=0)
        axis.annotate("counted, not placed", (floor / 1.15, 0.95), ha="right", fontsize=7)
        axis.set(xscale="log", xlim=(x[0], x[-1]), ylim=(0, 1.02), ylabel="share of the values below")
        axis.set(xlabel=f"squared singular value of √T (A − C), T = {tokens:,} tokens")
        axis.legend(loc="lower right", fontsize=7)
        figure.savefig(DOCS / "images/products.png", dpi=160)


if __name__ == "__main__":
    main()
