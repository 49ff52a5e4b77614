"""Take pictures of every chapter and room of the explorer, at 1280 and 390 pixels, light and dark.

``python tools/explore_pictures.py FOLDER`` writes them all, to be looked at; without a folder it writes those that the
documentation shows, into ``docs/images``. It needs Chromium and the extras ``explore`` and ``test``.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from bulkedge.lab.explore.app import make_server
from bulkedge.lab.explore.course import COURSE
from bulkedge.lab.explore.rooms import ROOMS

SHOWN = {
    **{f"explore_course_{name}".replace("-", "_"): (f"course#{name}", 1280, "light") for name in COURSE},
    "explore_heads": ("heads?head_dim=32&tokens=512&beta=0.8", 1280, "light"),
    "explore_channel": ("channel", 1280, "light"),
    "explore_recovery": ("recovery", 1280, "light"),
    "explore_width": ("width", 1280, "light"),
    "explore_collapse": ("collapse", 1280, "light"),
    "explore_matrix": ("matrix", 1280, "light"),
    "explore_narrow": ("course#sharpness", 390, "dark"),
}
"""Pictures of the documentation: address, width and scheme."""
NARROW = 1000
"""Width from which on controls stand beside the figure."""
DONE = "/simulations\\.|No simulation|Refused/.test(document.querySelector('#status')?.textContent)"


def take(browser, address, path, width, scheme):  # noqa: ANN001, ANN201 - of playwright
    """One picture, when all simulations are in it."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    if "course" in address:
        solve(page, all_of_it=width > NARROW)
    elif "matrix" in address:
        page.set_input_files("#upload input[type=file]", {"name": "head.npy", "mimeType": "", "buffer": head()})
        page.wait_for_selector("#matrix-downloads:not([hidden])", timeout=120_000)
    else:
        page.wait_for_function(DONE, timeout=120_000)
    page.wait_for_timeout(800)
    page.screenshot(path=path, full_page=width > NARROW)  # on a narrow page controls stay at the end of the window
    context.close()
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size)


def solve(page, *, all_of_it):  # noqa: ANN001, ANN201 - likewise
    """Answer the questions of a chapter, if the picture shows what they reveal."""
    page.wait_for_selector("#figure .main-svg", timeout=120_000)
    answers = page.get_by_role("button", name="Show me")
    while all_of_it and answers.count():
        answers.click()
        page.wait_for_timeout(300)
    if "own-head" in page.url:
        page.select_option("#control-head", "B")
    if not all_of_it:
        page.locator("#said").evaluate("each => each.scrollIntoView()")


def head() -> bytes:
    """A head with one direction that was learned, as a file."""
    rng, stream = np.random.default_rng(0), io.BytesIO()
    query, key = rng.standard_normal((2, 400, 64))
    topic = rng.standard_normal((400, 1))
    scores = query @ key.T / 8 * 0.8 + 0.2 * topic @ topic.T
    weights = np.exp(scores)
    np.save(stream, weights / weights.sum(axis=1, keepdims=True))
    return stream.getvalue()


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
            for name in [*(f"course#{name}" for name in COURSE), *ROOMS, "matrix"]
            for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"))
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
