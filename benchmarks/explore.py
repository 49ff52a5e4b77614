"""How long the explorer takes from the move of a slider to the drawn curve, measured in a browser.

``python -m benchmarks.explore`` starts the explorer, opens every room in Chromium without a window, moves each slider
of numbers through its stops, and waits for the frame after Plotly has drawn the curve of each: request, theory, answer
and drawing together. Nothing is warm but what moving the slider itself warms, and the background is left to run. It
writes ``docs/benchmarks/explore.md``.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import numpy as np

MOVES = 25
"""Moves of each slider."""
MOVE = """
async ([id, place]) => {
  const slider = document.getElementById(id), drawn = document.querySelector("#figure .js-plotly-plot");
  const before = drawn.layout.meta, set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const start = performance.now();
  set.call(slider, place);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  while (drawn.layout.meta === before) {
    if (performance.now() - start > 10000) return -1;
    await new Promise(requestAnimationFrame);
  }
  return performance.now() - start;
}
"""


def moves(page, control):  # noqa: ANN001, ANN201 - of playwright, which is not needed elsewhere
    """Milliseconds from each move of a slider to its curve."""
    last = int(control.get_attribute("max"))
    places = np.linspace(0, last, min(MOVES, last + 1)).astype(int).tolist()
    here = int(control.input_value())
    taken = []
    for place in places:
        if place != here:
            taken.append(page.evaluate(MOVE, [control.get_attribute("id"), str(place)]))
            page.wait_for_timeout(60)
        here = place
    return taken


def main() -> None:
    """Measure all rooms and write the page."""
    from playwright.sync_api import sync_playwright

    from bulkedge.explore.rooms import ROOMS
    from bulkedge.explore.server import make_server

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    server = make_server(0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rows = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in sys.argv[1:] or ROOMS:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(f"http://127.0.0.1:{server.port}/{name}")
            page.wait_for_function("document.querySelector('#figure .js-plotly-plot')?.layout?.meta")
            page.wait_for_timeout(3000)
            taken = [each for one in page.locator("input[type=range]").all() for each in moves(page, one)]
            if taken:
                quick = np.quantile(taken, [0.5, 0.95, 1.0])
                rows.append((name, len(taken), *quick))
                print(name, len(taken), quick.round(0))
            page.close()
        browser.close()
    server.shutdown()
    if not sys.argv[1:]:
        write(rows)


def write(rows: list[tuple[str, int, float, float, float]]) -> None:
    """Write the table."""
    from benchmarks.harness import machine

    path = Path(__file__).parents[1] / "docs" / "benchmarks" / "explore.md"
    lines = [
        "# The explorer",
        "",
        "Milliseconds from the move of a slider to the frame with its curve, in Chromium without a window on the same",
        "machine: the request, the theory, the answer and the drawing. `python -m benchmarks.explore` on",
        f"{machine()}.",
        "",
        "| room | moves | median | 95th percentile | slowest |",
        "|---|---|---|---|---|",
        *(f"| {name} | {count} | {a:.0f} | {b:.0f} | {c:.0f} |" for name, count, a, b, c in rows),
        "",
    ]
    path.write_text("\n".join(lines))
    print(path)


if __name__ == "__main__":
    main()
