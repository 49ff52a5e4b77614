"""Take pictures of every room of the explorer, at 1400 and 390 pixels, light and dark.

``python tools/explore_pictures.py FOLDER`` writes them all, to be looked at; without a folder it writes the three that
the documentation shows, into ``docs/images``. It needs Chromium and the extras ``explore`` and ``test``.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from bulkedge.explore.rooms import ROOMS
from bulkedge.explore.server import make_server

SHOWN = {
    "explore_heads": ("heads?head_dim=32&tokens=512&beta=0.8", 1200, "light"),
    "explore_recovery": ("recovery", 1200, "light"),
    "explore_narrow": ("channel?coupling=0.6", 390, "dark"),
}
"""Pictures of the documentation: address, width and scheme."""
DONE = "/simulations\\.|No simulation|Refused/.test(document.querySelector('#status')?.textContent)"


def take(browser, address, path, width, scheme):  # noqa: ANN001, ANN201 - of playwright
    """One picture, when all simulations are in it."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    if "matrix" not in address:
        page.wait_for_function(DONE, timeout=120_000)
    page.wait_for_timeout(500)
    page.screenshot(path=path, full_page=True)
    context.close()
    print(path, path.stat().st_size)


def main() -> None:
    """Serve, and take the pictures."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    server = make_server(0, apart=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pictures = SHOWN
    folder = Path(__file__).parents[1] / "docs" / "images"
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {
            f"{name}_{width}_{scheme}": (name, width, scheme)
            for name in [*ROOMS, "matrix"]
            for width, scheme in ((1400, "light"), (1400, "dark"), (390, "light"), (390, "dark"))
        }
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (path, width, scheme) in pictures.items():
            take(browser, f"http://127.0.0.1:{server.port}/{path}", folder / f"{name}.png", width, scheme)
        browser.close()
    server.shutdown()
    server.app.config["JOBS"].stop()


if __name__ == "__main__":
    main()
