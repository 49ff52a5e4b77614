"""Attention without its gap against plain fused attention: forward, and forward with backward.

Both run in turns in the same process; a ratio is the median over rounds, with the quartiles of the rounds. Bfloat16 on
a GPU with contexts from 1024 to 32768, single precision and shorter ones on a CPU. The goal is at most 3 % over plain
attention.

Needs torch and nothing else of bulkedge::

    python -m benchmarks.gap_free --json gap_free.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.harness import Table, seconds

TITLE = "Benchmarks: attention without its gap"
GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
TOKENS = 32768 if GPU else 4096
"""Tokens in a batch; a longer context has fewer rows, so that every size is the same work for what is linear in it."""
CONTEXTS = [2**k for k in range(10, 16)] if GPU else [1024, 4096]
HEADS, DIM = (16, 64) if GPU else (4, 64)
ROUNDS, LEAST_SECONDS = (30, 0.005) if GPU else (5, 0.0)
CASES = ("full", "causal", "padding", "causal, shared heads")
GOAL = 1.03


def gap_free() -> Callable[..., Any]:
    """The function, from its file: the package would import NumPy's friends, which a bare GPU machine has not."""
    path = Path(__file__).parent.parent / "src" / "bulkedge" / "nn" / "attention.py"
    spec = importlib.util.spec_from_file_location("bulkedge_nn_attention", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gap_free_attention  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Measurement:
    """One case at one size."""

    case: str
    tokens: int
    batch: int
    what: str
    implementation: str
    plain_seconds: float
    ratio: float
    lower: float
    upper: float
    problem: str = ""


def inputs(case: str, tokens: int) -> tuple[list[Any], dict[str, Any]]:
    """Queries, keys, values, and the options of the call."""
    batch, shared = max(1, TOKENS // tokens), "shared" in case
    rng = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(batch, heads, tokens, DIM) for heads in (HEADS, *2 * [HEADS // 4 if shared else HEADS])]
    made = [torch.randn(each, generator=rng, device=DEVICE).to(DTYPE).requires_grad_() for each in shapes]
    options: dict[str, Any] = {"is_causal": "causal" in case, "enable_gqa": shared}
    if case == "padding":
        lengths = torch.linspace(tokens // 2, tokens, batch, device=DEVICE).long()
        options["attn_mask"] = (torch.arange(tokens, device=DEVICE) < lengths[:, None])[:, None, None, :]
    return made, options


def largest_error(case: str) -> float:
    """Against the explicit matrix in double precision, at a length that is no multiple of anything."""
    made, options = inputs(case, 333)
    q, k, v = (each.detach()[:1].double() for each in made)
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    seen = torch.ones(333, 333, dtype=torch.bool, device=DEVICE)
    seen = seen.tril() if options["is_causal"] else seen & options.get("attn_mask", seen)[:1]
    attention = (q @ k.mT / DIM**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    explicit = (attention - seen / seen.sum(-1, keepdim=True)) @ v
    return float((gap_free()(*made, **options)[:1].detach().double() - explicit).abs().max())


def timed(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of one call, from several in a row."""
    if GPU:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / repeats
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def call(attention: Callable[..., Any], made: list[Any], options: dict[str, Any], what: str) -> Callable[[], Any]:
    """The work to be timed."""

    def forward() -> Any:
        with torch.no_grad():
            return attention(*made, **options)

    def both() -> Any:
        output = attention(*made, **options)
        return torch.autograd.grad(output, made, torch.ones_like(output))

    return forward if what == "forward" else both


def measure(case: str, tokens: int, what: str, implementation: str, attention: Callable[..., Any]) -> Measurement:
    """Plain and gap-free attention in turns; a kernel that fails is reported as such."""
    made, options = inputs(case, tokens)
    about = (case, tokens, max(1, TOKENS // tokens), what, implementation)
    try:
        plain, other = (call(each, made, options, what) for each in (scaled_dot_product_attention, attention))
        for each in (plain, other, plain, other):
            each()
        repeats = max(1, round(LEAST_SECONDS / max(timed(plain, 1), 1e-6)))
        rounds = [(timed(plain, repeats), timed(other, repeats)) for _ in range(ROUNDS)]
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        return Measurement(*about, *4 * [float("nan")], problem=str(error).splitlines()[0][:200])
    ratios = [theirs / ours for ours, theirs in rounds]
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return Measurement(*about, statistics.median(each for each, _ in rounds), statistics.median(ratios), lower, upper)


def measurements(*, compiled: bool) -> list[Measurement]:
    """Every case at every size."""
    implementations = {"eager": gap_free()}
    if compiled:
        implementations["compiled"] = torch.compile(gap_free(), dynamic=False)
    return [
        measure(case, tokens, what, name, attention)
        for name, attention in implementations.items()
        for case in CASES
        for what in ("forward", "forward and backward")
        for tokens in CONTEXTS
    ]


def table(found: list[Measurement], name: str) -> Table:
    """Ratios of one implementation."""
    over = sum(not each.ratio <= GOAL for each in found)
    result = Table(
        f"{name}: {DTYPE}, {HEADS} heads of {DIM}, {TOKENS} tokens in a batch",
        ["case", "what", "context", "plain", "gap-free / plain", "quartiles"],
        f"{len(found) - over} of {len(found)} at most {GOAL}.",
    )
    for each in found:
        ratio = each.problem or f"{each.ratio:.3f}"
        spread = f"{each.lower:.3f} to {each.upper:.3f}"
        result.add(each.case, each.what, str(each.tokens), seconds(each.plain_seconds), ratio, spread)
    return result


def tables() -> list[Table]:
    """Without compilation, whose time is not what a user of the function waits for."""
    return [table(measurements(compiled=False), "Eager")]


def main() -> None:
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--compiled", action="store_true", help="measure it under torch.compile too")
    chosen = parser.parse_args()
    for case in CASES:
        print(f"{case}: largest error {largest_error(case):.2g}")
    found = measurements(compiled=chosen.compiled)
    for name in dict.fromkeys(each.implementation for each in found):
        print(table([each for each in found if each.implementation == name], name).text())
    if chosen.json:
        device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
        about: dict[str, Any] = {
            "device": device,
            "torch": torch.__version__,
            "dtype": str(DTYPE),
            "heads": HEADS,
            "dim": DIM,
        }
        about["largest_errors"] = {case: largest_error(case) for case in CASES}
        # a kernel that failed has no numbers, and JSON no nan
        numbers = [{key: each for key, each in asdict(one).items() if each == each} for one in found]  # noqa: PLR0124
        chosen.json.write_text(json.dumps(about | {"measurements": numbers}, indent=1))


if __name__ == "__main__":
    main()
