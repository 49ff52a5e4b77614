"""How pytest imports the package, and what it skips where an optional package is not installed.

Which modules and examples need an extra is found by trying: an import that fails because an optional package is missing
is a skip that names the package; any other failure is an error.
"""

import re
import signal
import tomllib
from collections.abc import Generator
from doctest import UnexpectedException
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "src"

# tests interrupt processes that they start; a shell tells what runs in the background to ignore Ctrl-C
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def optional_packages() -> set[str]:
    """Import names of what only the extras require; they are those of the distributions, but for scikit-learn's.

    They are read from the source, because a GPU machine runs the tests without an installation.
    """
    extras = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    names = {re.split(r"[^\w.-]", each)[0].lower() for extra in extras.values() for each in extra}
    return (names | {"sklearn"}) - {"bulkedge"}


OPTIONAL = optional_packages()


def missing_package(error: BaseException | None) -> str:
    """The optional package for want of which something failed; empty if that is not why."""
    while error is not None:
        name = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if name in OPTIONAL:
            return name
        error = error.__cause__
    return ""


class NeedsExtra(pytest.File):
    """A module that cannot be imported here: one skip in place of its doctests."""

    package: str

    def collect(self) -> list[pytest.Item]:
        """Skip, and say what is missing."""
        pytest.skip(f"{self.path.relative_to(SOURCES)} needs {self.package}", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Import a module of the package by its own name before its doctests are collected.

    Pytest would import the file a second time under the same name: two classes of the same name are then not the same,
    and workers cannot unpickle either.
    """
    collectors = yield
    if file_path.suffix == ".py" and file_path.is_relative_to(SOURCES) and file_path.stem != "__main__":
        name = ".".join(file_path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        try:
            import_module(name)
        except ImportError as error:
            if package := missing_package(error):
                skipped = NeedsExtra.from_parent(parent, path=file_path)
                skipped.package = package
                return [skipped]
    return collectors


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip an example that needs an extra when it runs."""
    try:
        return (yield)
    except UnexpectedException as error:
        if package := missing_package(error.exc_info[1]):
            pytest.skip(f"needs {package}")
        raise
