"""A training step with and without the gap of its attention: what a user of gap-free attention waits for.

Blocks of GPT-2 (width 768, 12 heads) or of a wide model (width 2048, heads of 128), q, k and v views of one projection,
and the 124M GPT-2 of transformers through ``be.nn.remove_gap``, with the cache that it has by default and without. A
step is a forward and a backward pass under bfloat16 autocast and a fused AdamW; 16,384 tokens in it, whatever the
context.
Steps with plain fused attention and without its gap take turns in one process; a ratio is the median over rounds, with
quartiles. ``host`` is the time until the last launch of a step returns: where that is longer than the GPU's work, a
step waits for Python. The goal is at most 1.05 where torch runs eagerly, 1.03 where it compiles, and 1.02 for the peak
of memory. ``be.nn.build_kernels()`` is called first; with ``--kernels triton``, or without a compiler, the kernels are
Triton's.

Needs torch and, for GPT-2, transformers. Rows are added to the numbers that are there, and written one by one; the last
line writes the page of what was measured elsewhere::

    python -m benchmarks.gap_free_step --json docs/benchmarks/gap_free_step.json
    python -m benchmarks.gap_free_step --read docs/benchmarks/gap_free_step.json --page docs/benchmarks/gap_free_step.md
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import bulkedge as be
from benchmarks.harness import Table, command, heading, seconds, today, unbroken
from bulkedge.nn import fused, gap_free_attention, native
from bulkedge.support.files import replace_file

TITLE = "Benchmarks: a training step without the gap"
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TOKENS = 16384 if GPU else 1024
"""Tokens of a step, in as many sequences as the context allows."""
ROUNDS, STEPS = (15, 5) if GPU else (25, 3)
GOALS = {"eager": 1.05, "compiled": 1.03}
KERNELS = {
    "built": "C++ and CUDA",
    "triton": "Triton",
    "torch": "no kernels of ours",
}
MEMORY_GOAL = 1.02


@dataclass(frozen=True)
class Shape:
    """Blocks of a decoder, and the contexts it is trained at."""

    layers: int
    width: int
    heads: int
    contexts: tuple[int, ...]


MODELS = {
    "six blocks of GPT-2": Shape(6, 768, 12, (1024, 2048, 4096, 8192)) if GPU else Shape(2, 256, 4, (256, 1024)),
    "wide blocks": Shape(8, 2048, 16, (2048,)) if GPU else Shape(1, 512, 4, (256,)),
}


DECODERS = {"GPT-2": True, "GPT-2 without a cache": False}
"""Whether transformers' own model keeps keys and values, as it does by default."""


class Block(nn.Module):
    """A layer of a decoder around whatever attends: from a projection and a number of heads to tokens."""

    def __init__(self, shape: Shape, attend: Callable[[Any, int], Any]) -> None:
        super().__init__()
        width, self.heads, self.attend = shape.width, shape.heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """From tokens to tokens."""
        x = x + self.merge(self.attend(self.project(self.norms[0](x)), self.heads))
        return x + self.narrow(gelu(self.widen(self.norms[1](x)), approximate="tanh"))


def by_views(attend: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """Causal attention of queries, keys and values as views of a projection."""

    def attended(projected: Any, heads: int) -> Any:
        batch, tokens, width = projected.shape
        three = (each.view(batch, tokens, heads, -1).transpose(1, 2) for each in projected.split(width // 3, -1))
        return attend(*three, is_causal=True).transpose(1, 2).reshape(batch, tokens, width // 3)

    return attended


PLAIN, VIEWS = by_views(scaled_dot_product_attention), by_views(gap_free_attention)


@dataclass(frozen=True)
class Measurement:
    """Plain and gap-free steps of one model at one context."""

    model: str
    context: int
    mode: str
    kernels: str
    plain_seconds: float
    ratio: float
    lower: float
    upper: float
    plain_host: float
    host: float
    plain_gib: float
    memory_ratio: float
    day: str

    @property
    def what(self) -> tuple[str, ...]:
        """That it is a measurement of; another takes its place."""
        return self.model, str(self.context), self.mode, self.kernels


def blocks(shape: Shape, context: int, attend: Callable[..., Any], *, compiled: bool) -> Callable[[], Any]:
    """A step of a decoder's blocks."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(*(Block(shape, attend) for _ in range(shape.layers))).to(DEVICE)
    inputs = torch.randn(TOKENS // context, context, shape.width, device=DEVICE)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    forward = torch.compile(model, fullgraph=True) if compiled else model

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = forward(inputs).float().square().mean()
        loss.backward()
        optimiser.step()

    return step


def gpt2(context: int, *, cache: bool, removed: bool, compiled: bool) -> Callable[[], Any]:
    """A step of the 124M GPT-2 of transformers, with fresh weights and no dropout.

    Without a cache transformers writes causal masks out when it compiles, since positions might be of packed sequences.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_positions=context, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=cache)
    model: Any = GPT2LMHeadModel(config).to(DEVICE).train()
    if removed:
        be.nn.remove_gap(model)
    inputs = torch.randint(config.vocab_size, (TOKENS // context, context), device=DEVICE)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    with torch.no_grad():  # a patched model looks at its first pass, once
        model(input_ids=inputs[:1])
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = forward(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimiser.step()

    return step


def timed(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Seconds of a step, and until its last launch has returned."""
    wait()
    start = time.perf_counter()
    step()
    host = time.perf_counter() - start
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps, host


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def peak(step: Callable[[], Any]) -> float:
    """GiB that a step has at most; nothing on a CPU, where torch does not count."""
    if not GPU:
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    step()
    wait()
    return torch.cuda.max_memory_allocated() / 2**30


def measure(name: str, context: int, mode: str, make: Callable[..., Callable[[], Any]]) -> Measurement:
    """Both kinds of steps in turns; peaks with one of the two models on the device."""
    made, peaks = [], []
    for removed in (False, True):
        gc.collect()  # what is freed later would be missing from the peak
        before = torch.cuda.memory_allocated() / 2**30 if GPU else 0.0
        torch._dynamo.reset()
        step = make(removed=removed)
        for _ in range(3):
            step()
        peaks.append(peak(step) - before)
        made.append(step)
    rounds = [[timed(step, STEPS) for step in made] for _ in range(ROUNDS)]
    ratios = [free[0] / plain[0] for plain, free in rounds]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    plain, plain_host = (statistics.median(each[0][k] for each in rounds) for k in range(2))
    host = statistics.median(each[1][1] for each in rounds)
    times = {"plain_seconds": plain, "ratio": middle, "lower": lower, "upper": upper}
    hosts = {"plain_host": plain_host, "host": host}
    memory = {"plain_gib": peaks[0], "memory_ratio": peaks[1] / peaks[0]}
    return Measurement(name, context, mode, used(), **times, **hosts, **memory, day=today())


def used() -> str:
    """Which kernels of ours take part."""
    return "built" if native.Library.loaded else "triton" if GPU and fused.TRITON else "torch"


def choose(kernels: str) -> None:
    """Build the kernels if they are to be used; say why where that fails."""
    native.Library.loaded = False
    if GPU and kernels == "built":
        try:
            be.nn.build_kernels()
        except native.BuildError as error:
            print(f"not built: {error}")


def measurements(modes: list[str], models: list[str], contexts: list[int] | None = None) -> Iterator[Measurement]:
    """Every model at every context, eagerly and compiled."""
    step_of("six blocks of GPT-2", 256, removed=False, compiled=False)()  # libraries keep room for themselves once
    for mode, name in product(modes, models):
        own = MODELS[name].contexts if name in MODELS else ((1024,) if GPU else (128,))
        for context in contexts or own:
            yield measure(name, context, mode, partial(step_of, name, context, compiled=mode == "compiled"))


def step_of(name: str, context: int, *, removed: bool, compiled: bool) -> Callable[[], Any]:
    """A step of a model by its name, with the gap or without."""
    if name in DECODERS:
        return gpt2(context, cache=DECODERS[name], removed=removed, compiled=compiled)
    return blocks(MODELS[name], context, VIEWS if removed else PLAIN, compiled=compiled)


def tables(found: list[Measurement]) -> list[Table]:
    """One for each mode and kind of kernels."""
    headings = ["model", "context", "plain step", "gap-free / plain", "quartiles", "host, plain", "host", "plain peak"]
    headings += ["memory, gap-free / plain", "measured"]
    result = []
    for mode, kernels in dict.fromkeys((each.mode, each.kernels) for each in found):
        rows = [each for each in found if (each.mode, each.kernels) == (mode, kernels)]
        met = sum(each.ratio <= GOALS[mode] for each in rows)
        fit = sum(each.memory_ratio <= MEMORY_GOAL for each in rows)
        note = f"{met} of {len(rows)} at most {GOALS[mode]}; memory: {fit} of {len(rows)} at most {MEMORY_GOAL}."
        table = Table(f"{mode.capitalize()}, {KERNELS[kernels]}", headings, note)
        for each in rows:
            spread, memory = f"{each.lower:.3f} to {each.upper:.3f}", f"{each.memory_ratio:.3f}"
            times = [seconds(value) for value in (each.plain_host, each.host)]
            table.add(
                *(each.model, str(each.context), seconds(each.plain_seconds), f"{each.ratio:.3f}", spread, *times),
                *(f"{each.plain_gib:.2f} GiB", memory, unbroken(each.day)),
            )
        result.append(table)
    return result


def written(found: list[Measurement]) -> dict[str, Any]:
    """Numbers and where they come from, for JSON."""
    device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    about = f"one {device}, torch {torch.__version__}, {TOKENS} tokens a step"
    return {"measured": today(), "about": about, "measurements": [asdict(each) for each in found]}


def read(path: Path | None) -> dict[tuple[str, ...], Measurement]:
    """What was measured before, by what it is of."""
    if path is None or not path.exists():
        return {}
    rows = (Measurement(**each) for each in json.loads(path.read_text())["measurements"])
    return {each.what: each for each in rows}


def page(numbers: dict[str, Any]) -> str:
    """Markdown of what was written."""
    found = [Measurement(**each) for each in numbers["measurements"]]
    return "\n\n".join([heading(TITLE, __doc__ or "", numbers), *(each.markdown() for each in tables(found))])


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--modes", nargs="*", choices=tuple(GOALS), default=list(GOALS))
    names = [*MODELS, *DECODERS]
    parser.add_argument("--models", nargs="*", choices=names, default=names, help="all of them unless named")
    parser.add_argument("--contexts", nargs="*", type=int, help="tokens of a sequence, instead of each model's own")
    parser.add_argument("--kernels", choices=("built", "triton"), default="built", help="of attention without its gap")

    def measured(chosen: argparse.Namespace) -> dict[str, Any]:
        choose(chosen.kernels)
        rows = read(chosen.json)
        for each in measurements(chosen.modes, chosen.models, chosen.contexts):
            print(each, flush=True)
            rows[each.what] = each
            if chosen.json:
                replace_file(chosen.json, json.dumps(written([*rows.values()]), indent=1) + "\n")
        return written([*rows.values()])

    command(parser, measured, page)


if __name__ == "__main__":
    main()
