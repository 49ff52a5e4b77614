"""The figures of the documentation: those of the studies at their quick sizes, drawn when it is built."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import bulkedge as be
from bulkedge.plots.style import panels, styled
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.equivalence.causal import EquivalenceCausal
from bulkedge.lab.studies.equivalence.finite_head import EquivalenceFiniteHead
from bulkedge.lab.studies.heads.sharp import HeadsSharp
from bulkedge.lab.studies.laws.bulk import LawsBulk, law_panel
from bulkedge.lab.studies.laws.edge import LawsEdge
from bulkedge.lab.studies.laws.transition import LawsTransition
from bulkedge.lab.studies.propagation.rank_collapse import PropagationRankCollapse
from bulkedge.lab.studies.recovery.alignment import RecoveryAlignment
from bulkedge.lab.studies.recovery.finite_table import RecoveryFiniteTable
from bulkedge.lab.studies.width.depth import WidthDepth
from bulkedge.lab.studies.width.distribution import WidthDistribution

STUDIES: tuple[type[Study], ...] = (
    LawsEdge, LawsTransition, EquivalenceFiniteHead, HeadsSharp, EquivalenceCausal, RecoveryAlignment,
    RecoveryFiniteTable, WidthDistribution, WidthDepth, PropagationRankCollapse,
)  # fmt: skip
"""Studies whose figure stands on a page, in a file named after the figure."""


def draw(folder: Path) -> None:
    """Draw all of them into a folder: a panel for each law, and the figures of the studies."""
    bulks = LawsBulk(size=1000, draws=2).simulate(seed=0)
    with styled():
        for name in bulks.law.values.tolist():
            figure, axes = panels(1, 1, width=4.6, height=2.8)
            law_panel(axes[0, 0], bulks.sel(law=name))
            axes[0, 0].set(xlabel="value", ylabel="density")
            axes[0, 0].legend()
            save(figure, folder / f"{name}.svg")
    for kind in STUDIES:
        study = kind()
        save(study.plot(study.simulate(seed=0)), folder / f"{kind.__module__.rpartition('.')[2]}.svg")
    save(operator_figure(), folder / "operators.svg")


def operator_figure(tokens: int = 2048) -> Figure:
    """The spectrum of an attention matrix that is not formed, on its law and beside a rival."""
    query, key = np.random.default_rng(0).standard_normal((2, tokens, 64))
    found = be.attention_spectrum(be.AttentionOperator(query, key))
    law = be.FiniteHeadLaw(beta=1.0, head_dim=64, tokens=tokens)
    rival = be.MarchenkoPastur(1.0, law.mean())
    x = np.geomspace(1e-4, 1.1 * found.values[-1], 600)
    with styled():
        figure, axes = panels(1, 1, width=5.2, height=3.0)
        axes[0, 0].step(found.values, np.cumsum(found.weights), where="post", label="from products", linewidth=2.5)
        axes[0, 0].plot(x, law.cdf(x), "--", label="finite-head law", color="black", linewidth=1.0)
        axes[0, 0].plot(x, rival.cdf(x), ":", label="Marchenko–Pastur")
        axes[0, 0].set(xscale="log", xlim=(x[0], x[-1]), xlabel="squared singular value", ylabel="share below")
        axes[0, 0].legend()
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure, on no background and without a date, so that it fits both themes and is the same every time."""
    figure.savefig(path, metadata={"Date": None}, transparent=True)
