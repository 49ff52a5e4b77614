"""The gallery page, in a browser."""

import shutil
from pathlib import Path

import pytest
import xarray as xr

from bulkedge.report import command_for, reproduce
from bulkedge.studies.laws.edge import Edge

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    reproduce([Edge(size=50, draws=200)], folder, seed=3)
    return folder


def test_the_dataset_comes_back(gallery):
    data = xr.open_zarr(gallery / "laws" / "edge" / "data.zarr", consolidated=False)
    assert (data.attrs["study"], data.attrs["seed"]) == ("laws/edge", 3)
    assert float(data["mean"]) == float(Edge(size=50, draws=200).simulate(3)["mean"])


def test_the_command_is_the_one_that_was_run():
    assert command_for(Edge(size=50, level=0.1), 3) == "bulkedge reproduce laws/edge --size 50 --level 0.1 --seed 3"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_opens_without_errors_or_requests(gallery):
    playwright = pytest.importorskip("playwright.sync_api")
    page_file = Path(gallery / "index.html")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        problems, requests = [], []
        page.on(
            "console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        pictures = page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth > 100)")
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        verdicts = page.locator("td.holds, td.fails").count()
        browser.close()
    assert problems == []
    assert pictures == [True]
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert overflow <= 0
    assert verdicts == 2
