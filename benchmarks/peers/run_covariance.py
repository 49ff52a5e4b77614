"""scikit-learn's Ledoit-Wolf and OAS, and nonlinshrink (analytical nonlinear shrinkage, Ledoit and Wolf 2020)."""

import json
import os
import sys
import time
import warnings

import numpy as np

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever the peers print goes to stderr
warnings.simplefilter("ignore")

from nonlinshrink import shrink_cov  # noqa: E402 - it warns when it is imported
from sklearn.covariance import ledoit_wolf, oas  # noqa: E402

PEERS = {
    "Ledoit-Wolf, linear": lambda data: ledoit_wolf(data, assume_centered=True)[0],
    "OAS": lambda data: oas(data, assume_centered=True)[0],
    "nonlinshrink": lambda data: shrink_cov(data, k=0),
}


def processor_time(run):
    """The fastest of five calls after one that is not counted, in seconds of processor time."""
    run()
    taken = []
    for _ in range(5):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


job = json.load(sys.stdin)
answers = []
for cell in job["cells"]:
    rng, population = np.random.default_rng(cell["seed"]), np.array(cell["population"])
    losses = {name: [] for name in PEERS}
    for _ in range(cell["draws"]):
        data = rng.standard_normal((cell["samples"], len(population))) * np.sqrt(population)
        for name, estimate in PEERS.items():
            try:
                error = np.sum((estimate(data) - np.diag(population)) ** 2) / np.sum(population**2)
            except (ValueError, AssertionError):  # it refuses singular samples
                error = None
            losses[name].append(error)
    answers.append({"losses": losses})
taken = []
for dim, samples in job["timed"]:
    data = np.random.default_rng(0).standard_normal((samples, dim)) * np.linspace(1, 3, dim)
    taken.append({name: processor_time(lambda data=data, run=run: run(data)) for name, run in PEERS.items()})
answers.append({"seconds": taken})
json.dump(answers, out)
out.flush()
