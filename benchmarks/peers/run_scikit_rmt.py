"""scikit-rmt: a scipy ``rv_continuous``, whose ``ppf`` is scipy's inversion of the closed-form cdf."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
from skrmt.ensemble import MarchenkoPasturDistribution
from worker import serve

serve(
    [
        (
            "MP(1/2) quantiles",
            "",
            lambda: MarchenkoPasturDistribution(ratio=0.5, beta=1, sigma=1.0),
            lambda law, q: law.ppf(np.array(q)),
            "MarchenkoPasturDistribution(ratio=0.5).ppf(q)",
        )
    ]
)
