"""Grids of studies: resumable, on any executor, with the same numbers wherever they run."""

from bulkedge.errors import StoreError
from bulkedge.sweeps.executors import SerialExecutor, local_processes, stop
from bulkedge.sweeps.grid import Sweep, parse_axis
from bulkedge.sweeps.loop import Outcome, run
from bulkedge.sweeps.reading import failures, open_sweep

__all__ = [
    "Outcome",
    "SerialExecutor",
    "StoreError",
    "Sweep",
    "failures",
    "local_processes",
    "open_sweep",
    "parse_axis",
    "run",
    "stop",
]
