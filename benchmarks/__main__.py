"""Run every benchmark, print its tables and write them to docs/benchmarks."""

import importlib
import os
import platform
import sys
from pathlib import Path

from bulkedge.support.files import replace_file

# one thread for everybody: ratios should not depend on who threads better
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

BENCHMARKS = ["laws", "sweep", "attention", "pooled", "width", "channel", "scan", "operator", "covariance"]
"""All but those whose pages were measured on a GPU; each of them runs by itself: ``python -m benchmarks.gap_free``."""
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks"


def main() -> None:
    import numpy as np

    from benchmarks.harness import page, record

    DOCS.mkdir(parents=True, exist_ok=True)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    for name in sys.argv[1:] or BENCHMARKS:
        try:
            module = importlib.import_module(f"benchmarks.{name}")
        except ImportError as error:
            print(f"{name} left out: {error}")
            continue
        tables = module.tables()
        for table in tables:
            print(table.text())
        replace_file((DOCS / f"{name}.md"), page(module.TITLE, module.__doc__, record(tables, machine)))


if __name__ == "__main__":
    main()
