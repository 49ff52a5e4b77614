"""How long the explorer takes from the move of a slider to the drawn curve, measured in a browser.

``python -m benchmarks.explore`` starts the explorer, opens every chapter and room in Chromium without a window, moves
each slider of numbers through its stops, and waits for the frame after Plotly has drawn the curve of each: request,
theory, answer and drawing together for rooms, drawing alone for chapters, whose figures are there. Each move is made in
several passes, whose fastest counts: the cost without the machine's
neighbours, as in the other benchmarks. In each pass another parameter is a little different, so that no law is known
from the pass before. It writes ``docs/benchmarks/explore.md``.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bulkedge.support.files import replace_file

MOVES, PASSES = 5, 6
"""Moves of each slider, and how often each is made."""
VARIED = {
    "heads": "popularity={:g}",
    "channel": "decay={:g}",
    "recovery": "correlation={:g}",
    "width": "correlation={:g}",
    "collapse": "skip=0&variance={:g}",
}
"""What is a little different in each pass."""
START = {"heads": 0.0, "channel": 0.7, "recovery": 0.3, "width": 0.1, "collapse": 0.5}
MOVE = """
async ([id, place]) => {
  const slider = document.getElementById(id);
  const drawn = document.querySelector("#figure .js-plotly-plot") || document.getElementById("figure");
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
    taken = []
    for place in np.linspace(0, last, min(MOVES, last + 1)).astype(int).tolist():
        if place != int(control.input_value()):
            taken.append(page.evaluate(MOVE, [control.get_attribute("id"), str(place)]))
            page.wait_for_timeout(30)
        else:
            taken.append(np.inf)  # it was there already
    return taken


def measured(browser, address, name):  # noqa: ANN001, ANN201 - likewise
    """Every move of every slider: the fastest of all passes, all of them, and the processor time of a move."""
    passes, spent = [], 0.0
    for number in range(PASSES):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        if name in VARIED:
            page.goto(f"{address}/{name}?" + VARIED[name].format(START[name] + 0.0013 * number))
            page.wait_for_function("document.querySelector('#figure .js-plotly-plot')?.layout?.meta")
        else:
            page.goto(f"{address}/course#{name}")
            page.wait_for_selector("#figure .main-svg", timeout=120_000)
            while page.get_by_role("button", name="Show me").count():  # with all that is revealed
                page.get_by_role("button", name="Show me").click()
            page.wait_for_function("PAGES.every((each) => each.link || each.figures)", timeout=600_000)  # all chapters
        page.wait_for_timeout(1500)
        protocol = page.context.new_cdp_session(page)
        protocol.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy(protocol)
        passes.append([each for one in page.locator("input[type=range]").all() for each in moves(page, one)])
        spent += busy(protocol) - before
        page.close()
    every, fastest = np.ravel(passes), np.min(passes, axis=0)
    every = every[np.isfinite(every)]
    return fastest[np.isfinite(fastest)], every, 1000 * spent / len(every)


def busy(protocol):  # noqa: ANN001, ANN201 - likewise
    """Seconds of processor time: of the page's main thread, and of this process, which is the server too."""
    found = {each["name"]: each["value"] for each in protocol.send("Performance.getMetrics")["metrics"]}
    return found["TaskDuration"] + time.process_time()


def main() -> None:
    """Measure all chapters and rooms, and write the page."""
    from playwright.sync_api import sync_playwright

    from bulkedge.lab.explore.app import make_server
    from bulkedge.lab.explore.course import COURSE

    warnings.simplefilter("ignore")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    server = make_server(0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rows = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in sys.argv[1:] or [*(name for name in COURSE if name != "own-head"), *VARIED]:  # that has no slider
            taken, every, spent = measured(browser, f"http://127.0.0.1:{server.port}", name)
            rows.append((name, len(taken), *np.quantile(taken, [0.5, 0.95, 1.0]), np.quantile(every, 0.95), spent))
            print(*rows[-1], os.getloadavg()[0], flush=True)
            if not sys.argv[1:]:
                write(rows)  # after every room: a run that is stopped has told something
        browser.close()
    server.shutdown()
    server.app.config["JOBS"].stop()


def write(rows: list[tuple[str, int, float, float, float, float, float]]) -> None:
    """Write the table."""
    path = Path(__file__).parents[1] / "docs" / "benchmarks" / "explore.md"
    when = f"{datetime.now(UTC):%d %B %Y}, {platform.machine()}, Python {platform.python_version()}"
    where = f"{os.cpu_count()} cores, which had {os.getloadavg()[2]:.0f} processes to run besides"
    lines = [
        "# Benchmarks: the explorer",
        "",
        "Milliseconds from the move of a slider to the frame with its curve, in Chromium without a window on the same",
        "machine: for rooms the request, the theory, the answer and the drawing; figures of chapters are in the page.",
        f"Each move was made {PASSES} times, with another parameter a little different so that no law was known",
        "already, and the fastest counts: the cost without the machine's neighbours. Then follow the 95th percentile",
        "of all moves of all passes, with them, and the mean processor time of a move, of page and server together,",
        "which does not depend on them.",
        f"`python -m benchmarks.explore`, {when},",
        f"{where}.",
        "",
        "| chapter or room | moves | median | 95th percentile | slowest | 95th, all passes | processor time |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {count} | {a:.0f} | {b:.0f} | {c:.0f} | {d:.0f} | {e:.0f} |"
            for name, count, a, b, c, d, e in rows
        ),
        "",
    ]
    replace_file(path, "\n".join(lines))


if __name__ == "__main__":
    main()
