"""Configuration of the documentation; figures and pages that run are made when it is built: ``_ext/pages.py``."""

import sys
from pathlib import Path

import bulkedge

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "bulkedge"
author = "The bulkedge developers"
copyright = "2026, the bulkedge developers"
release = bulkedge.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "attributes", "mathml", "pages", "reference"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "bulkedge"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["copy.js"]
exclude_patterns = ["_build", "figures"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
