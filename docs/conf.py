"""Configuration of the documentation; its figures are those of the studies, drawn when it is built."""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from sphinx.application import Sphinx

import bulkedge
from bulkedge.plots.style import panels, styled
from bulkedge.studies.equivalence.causal import Causal
from bulkedge.studies.equivalence.finite_head import FiniteHead
from bulkedge.studies.heads.hot import Hot
from bulkedge.studies.laws.bulk import Bulk
from bulkedge.studies.laws.edge import Edge
from bulkedge.studies.laws.plot import law_panel
from bulkedge.studies.laws.transition import Transition
from bulkedge.studies.propagation.rank_collapse import RankCollapse
from bulkedge.studies.recovery.alignment import Alignment
from bulkedge.studies.recovery.finite_table import FiniteTable
from bulkedge.studies.width.depth import Depth
from bulkedge.studies.width.distribution import Distribution

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "bulkedge"
author = "The bulkedge developers"
copyright = "2026, the bulkedge developers"
release = bulkedge.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
myst_enable_extensions = ["dollarmath", "deflist"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "bulkedge"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True


def draw_figures(_: Sphinx) -> None:
    folder = HERE / "figures"
    folder.mkdir(exist_ok=True)
    gallery = Bulk(size=1000, draws=2).simulate(seed=0)
    with styled():
        for name in gallery.law.values.tolist():
            figure, axes = panels(1, 1, width=4.6, height=2.8)
            law_panel(axes[0, 0], gallery.sel(law=name))
            axes[0, 0].legend()
            save(figure, folder / f"{name}.svg")
    shown = (Edge(), Transition(), FiniteHead(), Hot(), Causal(), Alignment(), FiniteTable(), Distribution(), Depth())
    for study in (*shown, RankCollapse()):
        save(study.plot(study.simulate(seed=0)), folder / f"{type(study).__name__.lower()}.svg")


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", draw_figures)
