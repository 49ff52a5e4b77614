"""Open every built page in Chromium and list what is cut off: code, tables, formulas; missing pictures, pages too wide.

``python docs/_ext/measure.py docs/_build`` exits with 1 if it finds anything; ``make docs`` runs it. Without Chromium
or playwright it says so and leaves it at that.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

WIDTHS = (1400, 390)
"""Widths of the window, in pixels: a laptop's, where no code is cut off, and a telephone's."""

FAULTS = """(desktop) => {
    const found = [];
    const text = (node) => node.textContent.trim().slice(0, 60);
    if (desktop) for (const pre of document.querySelectorAll("pre"))
        if (pre.scrollWidth > pre.clientWidth) found.push(`code cut off: ${text(pre)}`);
    if (desktop) for (const box of document.querySelectorAll(".table-wrapper, div.output, div.math"))
        if (box.scrollWidth > box.clientWidth + 1) found.push(`table or formula cut off: ${text(box)}`);
    for (const image of document.querySelectorAll("img"))
        if (image.loading !== "lazy" && image.complete && !image.naturalWidth) found.push(`no picture: ${image.src}`);
    if (document.documentElement.scrollWidth > window.innerWidth) found.push("wider than the window");
    return found;
}"""


def faults(pages: list[Path], browser: Any) -> list[str]:
    """A line for each fault of the pages, each opened at every width."""
    found = []
    for width in WIDTHS:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        for page in pages:
            tab.goto(page.as_uri())
            found += [f"{page.name}, {width} px: {each}" for each in tab.evaluate(FAULTS, width == WIDTHS[0])]
        tab.close()
    return found


def main(folder: str) -> int:
    """Measure all pages of a folder; the exit status."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("pages were not measured: that takes Chromium and playwright")
        return 0
    pages = sorted(page.absolute() for page in Path(folder).rglob("*.html") if "_static" not in page.parts)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = faults(pages, browser)
        browser.close()
    print("\n".join(found) or f"{len(pages)} pages measured, nothing is cut off")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
