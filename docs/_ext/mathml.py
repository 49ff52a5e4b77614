"""Render mathematics as MathML, which browsers draw themselves: the pages work without a network."""

from docutils.nodes import SkipNode, math, math_block
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def converted(node: math | math_block, *, as_block: bool = False) -> str:
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        raise ValueError(
            f"{node.astext()!r}: {error} (docutils wants braces: \\frac{{1}}{{2}}, not \\frac12)"
        ) from error


def inline(translator: HTML5Translator, node: math) -> None:
    translator.body.append(converted(node))
    raise SkipNode


def block(translator: HTML5Translator, node: math_block) -> None:
    translator.body.append(f'<div class="math">{converted(node, as_block=True)}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
