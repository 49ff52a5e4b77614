"""Every chapter and room at three widths, light and dark: no text lies on another, and none is cut."""

import re

import pytest

pytest.importorskip("dash")

from bulkedge.lab.explore.course import COURSE
from bulkedge.lab.explore.export import chapter_json
from bulkedge.lab.explore.matrix import NAME as MATRIX
from bulkedge.lab.explore.rooms import ROOMS

WIDTHS, SCHEMES = (390, 800, 1280), ("light", "dark")
SAMPLE = [("sentence", 390, "dark"), ("depth", 800, "light"), ("recovery", 1280, "light")]
"""What the quick run looks at."""
ALL = [(name, width, scheme) for name in [*COURSE, *ROOMS, MATRIX] for width in WIDTHS for scheme in SCHEMES]
DRAWN = "document.querySelector('#figure .main-svg') || document.querySelector('#upload')"

FAULTS = """() => {
  const found = [], own = (node) => node.getBoundingClientRect();
  const words = (node) => node.textContent.trim().slice(0, 40);
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
  // texts: of the page, those of elements with text of their own; of figures, every label
  const texts = [...document.querySelectorAll("body *")].filter((node) => {
    if (node.closest("script, style, details:not([open]), option, select, .modebar, #controls, noscript")) return false;
    const box = own(node), shown = box.width > 1 && box.height > 1 && getComputedStyle(node).visibility !== "hidden";
    if (node.closest("svg"))
      return shown && node.matches("text") && words(node) && getComputedStyle(node).opacity !== "0";
    return shown && [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
  });
  const boxes = texts.map((node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [node, node.closest("svg") ? own(node) : range.getBoundingClientRect()];
  });
  boxes.forEach(([node, box]) => {
    if (box.left < -1 || box.right > innerWidth + 1) found.push("cut by the window: " + words(node));
    const svg = node.closest("svg");
    if (svg && (box.bottom > own(svg).bottom + 1 || box.top < own(svg).top - 1))
      found.push("cut by its figure: " + words(node));
  });
  // in the controls, which scroll on a narrow page, only what is cut by its own box
  document.querySelectorAll("#controls *, button, td, dd, .question").forEach((node) => {
    if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth && getComputedStyle(node).display !== "inline")
      found.push("cut by its box: " + words(node));
  });
  const figure = document.querySelector("#figure .main-svg"), after = document.querySelector("details.python");
  if (figure && after && own(after).top < own(figure).bottom - 1) found.push("the figure lies on what comes after it");
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, p] = boxes[i], [b, q] = boxes[j];
    if (a.contains(b) || b.contains(a)) continue;
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 2 && high > 3) found.push(`overlap: ${words(a)} | ${words(b)}`);
  }
  return found;
}"""


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [pytest.param(*each, marks=() if each in SAMPLE else pytest.mark.slow) for each in ALL],
)
def test_nothing_overlaps_and_nothing_is_cut(browser, server, name, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    if name in COURSE:
        chapter_json(name)  # here, where warnings are those of this test; the server finds it
        others = re.compile(rf"/course/(?!{name}\.)")
        page.route(others, lambda route: route.abort())  # and no other chapter is computed
    page.goto(f"{server}/course#{name}" if name in COURSE else f"{server}/{name}")
    page.wait_for_function(DRAWN, timeout=120_000)
    found = settled(page)
    while page.get_by_role("button", name="Show me").count():  # and what the answers reveal
        page.get_by_role("button", name="Show me").click()
        found += settled(page)
    context.close()
    assert found == []


def settled(page):
    """The faults of a page when it has come to rest: Plotly places legends and labels in several steps."""
    for _ in range(20):
        page.wait_for_timeout(200)
        found = page.evaluate(FAULTS)
        if not found:
            break
    return found
