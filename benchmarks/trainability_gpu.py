"""Does removing the gap help deep decoders to learn, and where? Trained on one GPU, with the known rivals.

Decoders of 12 and 24 layers learn a language of :mod:`benchmarks.deep_decoder`: letters of a fixed Markov chain, in
segments that repeat. Each *kind* of layer is trained with several *arms*:

* plain: attention alone, without skip connections. *gap removed, rows to size* multiplies rows of attention by what
  the theory says makes up for their number of keys; *shaped* is ``alpha I + beta A - gamma C``, all three learnt from
  one on and queries from zero on, so that it starts as the identity (Noci et al. 2023; He and Hofmann 2023); *value
  skip* learns ``alpha I + beta A`` from the identity (He et al. 2023); *norm* is a LayerNorm after every layer.
* post-norm: attention and feed-forward, ``norm(x + branch(x))``. *Small branches* have their last map divided by
  ``sqrt(2 depth)`` at the start.
* pre-norm: attention and feed-forward, ``x + branch(norm(x))``, all branches small in that sense. *Own scales* are
  those of ``be.nn.initial_scales``, with the gap or without.

Scores have standard deviation one at the start, values and outputs are orthogonal; in the plain kind without norm
values are scaled layer by layer so that a batch keeps its mean square. For every arm the learning rate is the best of a
grid on a seed that is not reported; AdamW, clipped gradients, warm-up and cosine, numbers of steps and the text that a
seed reads are the same for all. Curves are losses on sequences that were not seen before.

Groups of decoders train in processes that share the GPU, so that their own time says nothing. The time of a step is
measured before, for each arm with its three seeds at once and nothing else on the GPU; loss against wall time is loss
against steps times that.

The number of steps is what fits into ``--seconds``: the rate grid is done first and its speed measured, the rest is
what the remaining time allows. Results are appended to a file beside the JSON as they come. The second line writes
the page and the figure of a run made elsewhere, the third is for machines without a GPU::

    PYTHONPATH=src python -m benchmarks.trainability_gpu --json trainability_gpu.json --seconds 270 --workers 6
    python -m benchmarks.trainability_gpu --read docs/benchmarks/trainability_gpu.json --page --figure
    python -m benchmarks.trainability_gpu --toy --seconds 120 --workers 2 --json toy.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bulkedge.support.files import replace_file

TITLE = "Benchmarks: training deep decoders with and without the gap"
DEPTHS, SEEDS, RATE_SEED = (12, 24), (0, 1, 2), 100
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
GRID_SHARE, MOST_STEPS, TIMED = 0.3, 1500, 6
"""Share of the time that goes to the rate grid, the most steps of a run, and steps that are timed alone."""
RESERVE, SAFETY = 12.0, 0.85
"""Seconds kept for the end, and the share of what is left that is planned for."""
DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Run:
    """A group to train: its place in the study, and what :func:`benchmarks.deep_decoder.train` needs."""

    kind: str
    depth: int
    design: Any
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    steps: int = 0

    @property
    def name(self) -> tuple[str, int, str]:
        """What tells it from others."""
        return self.kind, self.depth, self.design.name


def arms(kind: str, depth: int, size: Any) -> list[Any]:
    """Designs of one kind of layer."""
    from benchmarks.deep_decoder import Design
    from bulkedge.nn.scales import initial_scales

    small = (2 * depth) ** -0.5
    if kind == "plain":
        return [
            Design("gap kept"),
            Design("gap removed", (0.0, 1.0, 1.0)),
            Design("gap removed, rows to size", (0.0, 1.0, 1.0), level=True),
            Design("shaped", (1.0, 1.0, 1.0), learnt=True, beta=0.0),
            Design("value skip", (1.0, 0.0, 0.0), learnt=True),
            Design("norm, gap kept", norm="post"),
            Design("norm, gap removed", (0.0, 1.0, 1.0), norm="post"),
        ]
    if kind == "post-norm":
        common: dict[str, Any] = {"skip": 1.0, "norm": "post", "mlp": True}
        return [
            Design("gap kept", **common),
            Design("gap removed", (0.0, 1.0, 1.0), **common),
            Design("gap kept, small branches", branch=small, **common),
            Design("gap removed, small branches", (0.0, 1.0, 1.0), branch=small, **common),
        ]
    common = {"skip": 1.0, "norm": "pre", "mlp": True, "branch": small}
    sizes = (depth, size.context, size.width, size.width // size.heads)
    return [
        Design("gap kept", **common),
        Design("gap removed", (0.0, 1.0, 1.0), **common),
        Design("shaped", (1.0, 1.0, 1.0), learnt=True, beta=0.0, **common),
        *(
            Design(f"gap {name}, own scales", (0.0, 1.0, gamma), **common, scales=initial_scales(
                *sizes, norm="pre", mask="causal", gap=not gamma
            ))
            for name, gamma in (("kept", 0.0), ("removed", 1.0))
        ),
    ]  # fmt: skip


KINDS = {
    "plain": "attention alone, no skip connection; a norm after every layer where the arm says so",
    "post-norm": "attention and feed-forward, x ← norm(x + branch(x))",
    "pre-norm": "attention and feed-forward, x ← x + branch(norm(x))",
}
"""What a layer is."""


def work(jobs: Any, results: Any, size: Any, device: str) -> None:
    """A worker: trains what it is given until there is nothing more."""
    import torch

    from benchmarks.deep_decoder import train

    torch.set_num_threads(1)
    results.put("ready")
    while (job := jobs.get()) is not None:
        run, deadline = job
        began = time.time()
        if began > deadline:
            results.put((run, {"problem": "the time was over before it began"}))
            continue
        try:
            found = train(run.design, run.depth, size, list(run.seeds), list(run.rates), run.steps, device, deadline)
        except Exception as error:  # noqa: BLE001 - one run that fails shall not end the others
            found = {"problem": f"{type(error).__name__}: {error}"[:500]}
        results.put((run, found | {"shared_seconds": time.time() - began}))


def solo_seconds(run: Run, size: Any, device: str) -> float:
    """Of a step of a group that has the device to itself: the median of a few."""
    import torch

    from benchmarks.deep_decoder import Adam, Decoders, text_for

    decoders = Decoders(run.design, run.depth, size, list(run.seeds), device)
    adam = Adam(decoders.weights, [1e-4] * len(run.seeds), 100, warm_up=True)
    text = text_for(list(run.seeds), size.batch, size, device, purpose=3)
    taken = []
    for _ in range(TIMED + 2):
        began = time.perf_counter()
        adam.step(torch.autograd.grad(decoders.losses(text).sum(), decoders.weights)[0])
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[2:])[TIMED // 2]


class Pool:
    """Workers that share the device, and the deadline of all they do."""

    def __init__(self, workers: int, size: Any, device: str, end: float, lines: Path | None) -> None:
        """Start them; they load while other things are done."""
        context = multiprocessing.get_context("spawn")
        self.jobs, self.results, self.end, self.lines = context.Queue(), context.Queue(), end, lines
        self.processes = [
            context.Process(target=work, args=(self.jobs, self.results, size, device), daemon=True)
            for _ in range(workers)
        ]
        for each in self.processes:
            each.start()

    def ready(self) -> None:
        """Wait until all have loaded."""
        for _ in self.processes:
            self.results.get(timeout=max(1.0, self.end - time.time()))

    def train(self, runs: list[Run], deadline: float) -> dict[tuple[str, int, str], dict[str, Any]]:
        """Results by name; what is not there when the time is over is left out."""
        for run in runs:
            self.jobs.put((run, deadline))
        found = {}
        while len(found) < len(runs):
            try:
                run, result = self.results.get(timeout=max(0.1, deadline + RESERVE / 2 - time.time()))
            except queue.Empty:
                break
            if run not in runs:  # of an earlier call, that came too late
                continue
            found[run.name] = result
            about = f"{run.kind}, {run.depth} layers, {run.design.name}"
            print(f"{about}: {result.get('problem') or rounded(result['final'])}", flush=True)
            if self.lines:
                with self.lines.open("a") as file:
                    line = {"run": about, "seeds": run.seeds, "rates": run.rates, **result}
                    file.write(json.dumps(numbers_only(line)) + "\n")
        return found

    def stop(self) -> None:
        """End the workers."""
        for each in self.processes:
            if each.is_alive():
                each.terminate()


def rounded(values: list[float]) -> str:
    """For a line of progress."""
    return ", ".join(f"{each:.3f}" for each in values)


def numbers_only(value: Any) -> Any:
    """JSON has no nan and no infinity: a loss that is no number becomes null."""
    if isinstance(value, dict):
        return {key: numbers_only(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [numbers_only(each) for each in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def best_rate(result: dict[str, Any], rates: tuple[float, ...]) -> float | None:
    """Of the lowest final loss that is a number; None if there is none."""
    finite = [(loss, rate) for loss, rate in zip(result.get("final", []), rates, strict=False) if loss < float("inf")]
    return min(finite)[1] if finite else None


def steps_that_fit(runs: list[Run], solo: dict[Any, float], seconds: float, speed: float, most: int) -> int:
    """Of all runs alike; `speed` is what sharing the device gains over one after the other."""
    return max(2, min(most, int(seconds * speed / sum(solo[run.name] for run in runs))))


def study(chosen: argparse.Namespace) -> dict[str, Any]:
    """Time every arm, find its rate, train its seeds."""
    import torch

    from benchmarks.deep_decoder import Size, levels

    torch.set_num_threads(1)
    begin = time.time()
    end = begin + chosen.seconds - RESERVE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = Size(*((32, 2, 32, 8) if chosen.toy else (256, 4, 256, 16)))
    pool = Pool(chosen.workers, size, device, end, chosen.json and chosen.json.with_suffix(".lines"))
    try:
        places = [(kind, depth) for kind in chosen.kinds for depth in chosen.depths]
        runs = [Run(*place, design, SEEDS, ()) for place in places for design in arms(*place, size)]
        pool.ready()
        print(f"loaded after {time.time() - begin:.0f} s", flush=True)
        solo = {run.name: solo_seconds(run, size, device) for run in runs}
        if device == "cuda":
            torch.cuda.empty_cache()
        print(f"timed after {time.time() - begin:.0f} s", flush=True)
        about, found = trained(pool, runs, solo, chosen)
    finally:
        pool.stop()
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    where = {"device": name, "date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    what = {"size": asdict(size), "levels": levels(size.context), "seeds": SEEDS, "grid_seed": RATE_SEED}
    how = {"workers": chosen.workers, "seconds": time.time() - begin}
    return where | what | how | about | {"runs": found}


def trained(
    pool: Pool, runs: list[Run], solo: dict[Any, float], chosen: argparse.Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Numbers of steps and how they came about; for each run its rate and losses."""
    ordered = sorted(runs, key=lambda run: -solo[run.name])  # the longest first, so that all end together
    rates, began = tuple(chosen.rates), time.time()
    share = GRID_SHARE * (pool.end - began)
    # as if nothing were gained by sharing the device, and groups took time in proportion to their size
    few = steps_that_fit(runs, solo, share, min(1.0, len(SEEDS) / len(rates)), chosen.steps)
    tries = [replace(run, seeds=(RATE_SEED,) * len(rates), rates=rates, steps=few) for run in ordered]
    grid = pool.train(tries, began + 2 * share)
    spent = time.time() - began
    speed = few * sum(solo.values()) / spent
    print(f"rates: {few} steps, {spent:.0f} s, {speed:.2f} times one after the other", flush=True)
    best = {name: rate for name, result in grid.items() if (rate := best_rate(result, rates)) is not None}
    final = [run for run in ordered if run.name in best]
    steps = steps_that_fit(final, solo, SAFETY * (pool.end - time.time()), speed, chosen.steps)
    found = pool.train([replace(run, rates=(best[run.name],) * len(SEEDS), steps=steps) for run in final], pool.end)
    about = {"steps": steps, "grid_steps": few, "rates": rates, "sharing": speed}
    lines = []
    for run in runs:
        tried = grid.get(run.name, {})
        line = {"kind": run.kind, "depth": run.depth, "arm": run.design.name, "step_seconds": solo[run.name]}
        missing = {"problem": tried.get("problem", "no rate with a finite loss, or no time")}
        lines.append(line | {"rate": best.get(run.name), "grid": tried.get("final")} | found.get(run.name, missing))
    return about, lines


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the study, or read one, and write what is asked for."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--read", type=Path, help="numbers written before, instead of a run")
    page, figure = DOCS / "benchmarks/trainability_gpu.md", DOCS / "images/trainability_gpu.png"
    parser.add_argument("--page", type=Path, nargs="?", const=page, help="where to write a page of tables")
    parser.add_argument("--figure", type=Path, nargs="?", const=figure, help="where to draw the curves")
    parser.add_argument("--seconds", type=float, default=270.0, help="of all of it, loading included")
    parser.add_argument("--workers", type=int, default=6, help="processes that share the device")
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=list(KINDS), help="kinds of layers")
    parser.add_argument("--depths", type=int, nargs="*", default=list(DEPTHS), help="numbers of layers")
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES), help="learning rates to choose from")
    parser.add_argument("--steps", type=int, default=MOST_STEPS, help="the most steps of a run")
    parser.add_argument("--toy", action="store_true", help="width and context 32, for a try without a GPU")
    chosen = parser.parse_args(arguments)
    numbers: dict[str, Any] = json.loads(chosen.read.read_text()) if chosen.read else numbers_only(study(chosen))
    if chosen.json:
        replace_file(chosen.json, json.dumps(numbers))
    if chosen.page or chosen.figure:
        from benchmarks import trainability_page

        if chosen.page:
            replace_file(chosen.page, trainability_page.page(numbers))
        if chosen.figure:
            trainability_page.figure(numbers).savefig(chosen.figure, dpi=160)
    return numbers


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
