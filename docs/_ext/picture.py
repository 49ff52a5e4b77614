"""Take the picture of the documentation's first page that the documentation keeps.

    python docs/_ext/picture.py docs/_build docs/images/screen_first_page.png

Needs Chromium and playwright, and pages that `make docs` has built.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = {"width": 1200, "height": 760}


def main(folder: str, target: str) -> None:
    """Open the page and save what a laptop shows of it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        tab.goto((Path(folder) / "index.html").absolute().as_uri())
        tab.wait_for_timeout(500)  # for the font of the formulas
        tab.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
