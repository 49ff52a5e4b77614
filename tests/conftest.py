"""Test profiles: the same examples every time, no deadline on a shared machine."""

import os

# workers of pytest-xdist share the cores; BLAS threads on top of them would spin. Set before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "bulkedge", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("bulkedge"), max_examples=1000, derandomize=False)
settings.load_profile("bulkedge")
