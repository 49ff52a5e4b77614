"""What pytest leaves alone, and how it imports the package.

Modules that need torch, Triton or Dash are left alone where those are not installed. Processes that tests start and
interrupt listen to Ctrl-C, also where this one was told not to, as shells tell what runs in the background.
"""

import signal
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "src"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

READING = ("default", "layers", "loading", "probing")
"""Modules of ``models`` that need torch."""

collect_ignore_glob = []
if not find_spec("torch"):
    collect_ignore_glob += [
        "src/bulkedge/nn/*",
        *(f"src/bulkedge/spectra/operators/{name}.py" for name in ("fused", "tiles")),
        *(f"src/bulkedge/models/{name}.py" for name in READING),
    ]
if not find_spec("dash"):
    collect_ignore_glob += [f"src/bulkedge/explore/{name}.py" for name in ("app", "layout", "matrix_page")]
if not find_spec("triton"):
    collect_ignore_glob += ["src/bulkedge/nn/kernels.py", "src/bulkedge/spectra/operators/kernels.py"]


def pytest_collect_file(file_path: Path) -> None:
    """Import a module of the package by its own name before its doctests are collected.

    Pytest would import the file a second time, under the same name and beside the module that everyone else has: two
    classes of the same name are then not the same, and workers cannot unpickle either.
    """
    if file_path.suffix == ".py" and file_path.is_relative_to(SOURCES) and file_path.stem != "__main__":
        name = ".".join(file_path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        with suppress(ImportError):  # which pytest will meet again, and report
            import_module(name)
