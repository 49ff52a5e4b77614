"""Grids of studies: resumable, on any executor, with the same numbers wherever they run."""

from bulkedge.lab.sweeps.grid import Sweep, parse_axis
from bulkedge.lab.sweeps.loop import Outcome, run
from bulkedge.lab.sweeps.read import failures, open_sweep
from bulkedge.support.errors import StoreError
from bulkedge.support.threads import SerialExecutor, local_processes, stop

__all__ = [
    "Outcome", "SerialExecutor", "StoreError", "Sweep", "failures", "local_processes", "open_sweep", "parse_axis",
    "run", "stop",
]  # fmt: skip
