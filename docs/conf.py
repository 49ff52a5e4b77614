"""Configuration of the documentation; figures are drawn from the gallery of ``make demo`` when it is built."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "examples")]

import law_gallery
import matplotlib.pyplot as plt

import bulkedge

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
    exhibits = {each.name: partial(law_gallery.draw, each) for each in law_gallery.GALLERY}
    for name, draw in (exhibits | {"tracy_widom": law_gallery.draw_tracy_widom}).items():
        figure, axes = plt.subplots(figsize=(5.4, 3.2), constrained_layout=True)
        draw(axes, np.random.default_rng(0))
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", draw_figures)
