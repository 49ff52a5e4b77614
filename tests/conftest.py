"""Test profiles and tiers: the same examples every time, no deadline on a shared machine, marks by folder."""

import os
import shutil

# workers of pytest-xdist share the cores; threads of BLAS and torch on top of them would spin. Set before both are
# imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "bulkedge", max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("bulkedge"), max_examples=1000, derandomize=False)
settings.load_profile("bulkedge")

TESTS = Path(__file__).parent
TIERS = {
    "limits": "limits",
    "studies": "studies",
    "test_report.py": "studies",
    "test_page.py": "studies",
    "models/test_page.py": "studies",
    "explore/test_page.py": "studies",
    "explore/test_layout.py": "studies",
    "explore/test_course.py": "studies",
    "test_workers.py": "processes",
    "conformance": "conformance",
    "sweeps/test_interruption.py": "processes",
    "sweeps/test_cluster.py": "processes",
    "sweeps/test_loop.py": "processes",
    "test_portability.py": "processes",
    "laws": "accuracy",
    "nn": "torch",
}
"""The mark of each folder or file; what has none is the core, which takes less than a minute."""


SLOW = set((TESTS / "slow_tests.txt").read_text(encoding="utf-8").splitlines())
"""Tests that took long when last measured (``tools/slow_tests.py``)."""


def pytest_collection_modifyitems(items):
    """Mark what is slow, and what is not of the core."""
    for item in items:
        if item.nodeid in SLOW and item.get_closest_marker("always") is None:
            item.add_marker(pytest.mark.slow)
        place = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        for start, mark in TIERS.items():
            if place == start or place.startswith(f"{start}/"):
                item.add_marker(getattr(pytest.mark, mark))


@pytest.fixture
def exhibits(monkeypatch):
    """The command line knows three small studies and no other."""
    from exhibits import EXHIBITS

    monkeypatch.setattr("bulkedge.lab.studies.base.studies", lambda: EXHIBITS)
    monkeypatch.setattr("bulkedge.lab.gallery.run.available_cores", lambda: 1)


@pytest.fixture(scope="module")
def browser():
    """Chromium, where the machine has one."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """Opens a file, and checks in the end that nothing was complained of or asked for."""
    problems, requests, contexts = [], [], []

    def opened(path, width=1280, scheme="light", fragment=""):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
